"""Opening a published cascade as its manifest and its config say."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from tidal.arlo.embedded import EmbeddedModels, load_embedded
from tidal.arlo.manifest import load_arlo_manifest
from tidal.errors import InvalidArgument
from tidal.service import Service, ServiceContext
from tidal.tabi.choice import Choice
from tidal.tabi.manifest import TabiManifest, load_tabi_manifest
from tidal.tabi.parameters import TabiParameters
from tidal.tabi.placement import embedded_levels
from tidal.tabi.reading import Readers
from tidal.tabi.service import TabiService
from tidal.tabi.task_levels import task_problem


def load(context: ServiceContext, parameters: TabiParameters) -> Callable[[ServiceContext], Service]:
    """Read the published version once; what comes back starts a service on it, again after a failure.

    Raises:
        InvalidArgument: the version does not fit its files, its levels or the config, or no candidate meets the
            config's target.
    """
    manifest = load_tabi_manifest(context.version_dir)
    manifest.check_files(context.version_dir)
    if parameters.overload_accuracy is not None and parameters.overload_ms is None:
        raise InvalidArgument("config.pbtxt has the parameter overload_accuracy without overload_ms")
    choice = Choice(manifest, parameters.target())
    for problem in absent_levels(context.model_dir.parent, manifest, choice.levels):
        context.log.warning(problem)
    readers = Readers(manifest, context.version_dir, truncate=parameters.truncate)
    repository = context.model_dir.parent
    numbers = embedded_levels(repository, manifest, parameters.levels, choice.levels)
    embedded = {}
    for index in numbers:
        level = manifest.levels[index]
        embedded[index] = load_embedded(repository / level.model / str(level.version), level.model, context.log)
    candidate = manifest.candidates[choice.default]
    context.log.info(f"candidate '{candidate.name}' serves, on level {', '.join(str(n + 1) for n in candidate.levels)}")

    def start(fresh: ServiceContext) -> Service:
        counted = {
            model.name: fresh.metrics.within("runtime", level=str(index + 1)) for index, model in embedded.items()
        }
        models = EmbeddedModels(fresh, list(embedded.values()), counted)
        return TabiService(fresh, manifest, parameters, choice, readers, models)

    return start


def absent_levels(repository: Path, manifest: TabiManifest, levels: Iterable[int]) -> list[str]:
    """What is missing of the levels' versions in a repository, a sentence each; they may lie in another one.

    Of a task also whether it is another one than the cascade was built with: it may come back while that serves.

    Raises:
        InvalidArgument: a level's version is not the one that the cascade was built with.
    """
    problems = []
    for index in levels:
        level = manifest.levels[index]
        folder = repository / level.model / str(level.version)
        rebuild = f"rebuild with `{manifest.rebuild_command(repository)}`"
        if level.task is not None:
            problem = task_problem(repository, manifest, index)
            problems += [] if problem is None else [f"level {index + 1}: {problem}"]
        elif not folder.is_dir():
            problems.append(
                f"level {index + 1} needs version {level.version} of model '{level.model}', which is not in "
                f"{repository}; {rebuild}"
            )
        elif load_arlo_manifest(folder).fingerprint != level.fingerprint:
            raise InvalidArgument(
                f"version {level.version} of model '{level.model}' is not the one that the cascade '{manifest.name}' "
                f"was built with; {rebuild}"
            )
    return problems
