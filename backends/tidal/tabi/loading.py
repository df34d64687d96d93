"""Opens a published cascade according to its manifest and its config.pbtxt."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from tidal.arlo.embedded import EmbeddedModels, load_embedded
from tidal.errors import InvalidArgument
from tidal.service import Service, ServiceContext
from tidal.tabi.choice import CandidateChoice
from tidal.tabi.early import load_early_routers
from tidal.tabi.jobs import LevelCall
from tidal.tabi.levels import embedded_levels, missing_levels
from tidal.tabi.manifest import load_tabi_manifest
from tidal.tabi.parameters import TabiParameters
from tidal.tabi.service import TabiService
from tidal.tabi.tokenization import LevelTokenizers

# Time for which a thread may keep the interpreter while others wait for it, in seconds. With Python's default of 5 ms
# the threads of embedded levels wait several ms for it after each batch. Separate runs of 2 and 3 rounds on two busy
# cores gave 780 requests per second instead of 1,050 (one-layer levels, 64 in flight).
_SWITCH_S = 0.0005


def load(context: ServiceContext, parameters: TabiParameters) -> Callable[[ServiceContext], Service]:
    """Read the published version once; the returned function starts a service on it, again after a failure.

    Args:
        context: Context of the model being loaded.
        parameters: Parameters of its config.pbtxt.

    Raises:
        InvalidArgument: The version does not match its files, its levels or the config, or no candidate meets the
            target of the config.
    """
    manifest = load_tabi_manifest(context.version_dir)
    manifest.check_files(context.version_dir)
    if parameters.overload_accuracy is not None and parameters.overload_ms is None:
        raise InvalidArgument("config.pbtxt has the parameter overload_accuracy without overload_ms")
    choice = CandidateChoice(manifest, parameters.target())
    repository = context.model_dir.parent
    for problem in missing_levels(repository, manifest, choice.levels):
        context.log.warning(problem)
    tokenizers = LevelTokenizers(manifest, context.version_dir, truncate=parameters.truncate)
    early_routers = load_early_routers(manifest, context.version_dir)
    embedded = {}
    for index in embedded_levels(repository, manifest, parameters.levels, choice.levels):
        level = manifest.levels[index]
        embedded[index] = load_embedded(repository / level.model / str(level.version), level.model, context.log)
    if embedded:
        sys.setswitchinterval(_SWITCH_S)
    candidate = manifest.candidates[choice.default]
    context.log.info(f"candidate '{candidate.name}' serves, on level {', '.join(str(n + 1) for n in candidate.levels)}")

    def start(fresh: ServiceContext) -> Service:
        metrics = {
            model.name: fresh.metrics.within("runtime", level=str(index + 1)) for index, model in embedded.items()
        }
        models = partial(EmbeddedModels[LevelCall], fresh, list(embedded.values()), metrics)
        return TabiService(fresh, manifest, parameters, choice, tokenizers, early_routers, models)

    return start
