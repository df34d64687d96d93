"""Publishing: the versions of a repository, with everything that they require, into a store.

All contents come first, then the manifests of required versions, then those of the versions that require them. So a
reader sees a version when it and all that it requires are complete, and a publisher that was killed is continued by the
next: contents that are stored are not sent again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from tidal.catalog.graph import ModelGraph
from tidal.catalog.manifests import load_published
from tidal.engines.entries import engine_entry
from tidal.errors import InvalidArgument, NotFound, did_you_mean
from tidal.manifest import MANIFEST_FILE, Published, Version
from tidal.repository.config import CONFIG_FILE
from tidal.tabi.manifest import TabiManifest
from tidal.tasks.folder import tasks_folder
from tidal.tasks.record import TASK_FILE, TENSORS_FILE
from tidal.version_store.folder import describe_file, list_folder
from tidal.version_store.store import VersionStore
from tidal.version_store.stored_version import Binding, Requirement, StoredFile, StoredTask, StoredVersion
from tidal.version_store.transfers import ByteCount, Report
from tidal.version_store.upload import upload

# A model and its version; None for the newest.
Wanted = tuple[str, int | None]


@dataclass(frozen=True, slots=True)
class Publication:
    """What was done with one version.

    Attributes:
        model: Name of the model.
        version: Number of the version.
        state: Whether this call published it.
        files: Number of its files.
        bytes: Their size in bytes.
        uploaded_bytes: Bytes that were sent for it; contents that the store had are not sent.
    """

    model: str
    version: int
    state: Literal["published", "published before"]
    files: int
    bytes: int
    uploaded_bytes: int


def publish(store: VersionStore, repository: Path, wanted: Sequence[Wanted], report: Report) -> list[Publication]:
    """Publish versions with all that they require.

    Args:
        store: The store.
        repository: Folder of the model repository.
        wanted: Models and versions.
        report: Called with the progress.

    Returns:
        What was done with each version, required ones first.

    Raises:
        NotFound: The repository does not have a model or version.
        InvalidArgument: A version is damaged, requires one that is not in the repository, or has another content than
            the version with its number in the store; nothing was published.
        Unavailable: The store failed; the next call continues.
    """
    graph = ModelGraph.read(repository)
    order = publication_order(graph, wanted)
    versions = [_describe(graph, model, version, report) for model, version in order]
    before = [store.find(version.model, version.version) for version in versions]
    for version, existing in zip(versions, before, strict=True):
        _refuse_other(store, version, existing)
    sent = upload(store, _sources(repository, versions), report)
    done = []
    for version, existing in zip(versions, before, strict=True):
        if existing is None:
            _refuse_other(store, version, store.create(version))
        done.append(
            Publication(
                version.model,
                version.version,
                "published" if existing is None else "published before",
                len(version.files),
                version.bytes,
                sum(sent.pop(each.sha256, 0) for each in version.all_files().values()),
            )
        )
    return done


def publication_order(graph: ModelGraph, wanted: Sequence[Wanted]) -> list[tuple[str, int]]:
    """Versions with all that they require, directly or through others, each once and after what it requires.

    Raises:
        NotFound: The repository does not have a model or version.
        InvalidArgument: It lacks a version that another one requires.
    """
    order: list[tuple[str, int]] = []
    seen: set[tuple[str, int]] = set()

    def visit(model: str, version: int) -> None:
        if (model, version) in seen:
            return
        seen.add((model, version))
        for name, required in _requirements(graph, model, version):
            if required not in graph.versions(name):
                raise InvalidArgument(
                    f"version {version} of model '{model}' requires version {required} of '{name}', which is not in "
                    f"{graph.repository}: build it first"
                )
            visit(name, required)
        order.append((model, version))

    for model, number in wanted:
        versions = graph.versions(model)
        if not versions:
            raise NotFound(f"{graph.repository} has no version of '{model}': {did_you_mean(model, graph.models)}")
        if number is not None and number not in versions:
            listed = ", ".join(map(str, versions))
            raise NotFound(f"{graph.repository} has no version {number} of '{model}'; its versions are {listed}")
        visit(model, versions[-1] if number is None else number)
    return order


def _requirements(graph: ModelGraph, model: str, version: int) -> list[tuple[str, int]]:
    """Versions that a version cannot serve without: its runtimes, every level that was measured, its steps."""
    partitioned = graph.partitioned(model, version)
    if partitioned is not None:
        return [(each, version) for each in partitioned.runtime_models.values()]
    manifest = graph.manifest(model, version)
    if isinstance(manifest, TabiManifest):
        # A shared encoder serves a task in any version since the one that was measured; the others in that one only.
        pairs = {
            (level.model, _newest(graph, model, level.model) if level.task is not None else level.version)
            for level in manifest.levels
        }
    else:
        pairs = {(step, _newest(graph, model, step)) for step in graph.steps(model) if step != model}
    return sorted(pairs)


def _newest(graph: ModelGraph, model: str, required: str) -> int:
    versions = graph.versions(required)
    if not versions:
        raise InvalidArgument(
            f"model '{model}' requires '{required}', which is not in {graph.repository}: build it first"
        )
    return versions[-1]


def _describe(graph: ModelGraph, model: str, version: int, report: Report) -> StoredVersion:
    entry = graph.entry(model)
    folder = entry.version_dir(version)
    manifest = load_published(folder) if (folder / MANIFEST_FILE).exists() else None
    listed, empty = list_folder(folder)
    count = ByteCount(report, f"hash {model}", sum(status.st_size for status in listed.values()))
    files = []
    try:
        for path in listed:
            files.append(describe_file(folder / path, path))
            count.add(files[-1].bytes)
        if manifest is not None:
            _check(manifest, files, folder)
        config = entry.folder / CONFIG_FILE
        return StoredVersion(
            model=model,
            version=version,
            kind=manifest.kind if manifest is not None else None,
            created=manifest.created if manifest is not None else "",
            binding=_binding(manifest),
            files=tuple(files),
            folders=empty,
            config=describe_file(config, CONFIG_FILE) if config.is_file() else None,
            requires=tuple(Requirement(model=name, version=n) for name, n in _requirements(graph, model, version)),
            tasks=tuple(_tasks(graph, manifest)),
        )
    except ValidationError as error:
        raise InvalidArgument(f"{folder} cannot be published: {error.errors()[0]['msg']}") from None


def _check(manifest: Version, files: Sequence[StoredFile], folder: Path) -> None:
    """Refuse a version whose files differ from its own manifest."""
    found = {each.path: (each.bytes, each.sha256) for each in files}
    if any(found.get(each.path) != (each.bytes, each.sha256) for each in manifest.files):
        manifest.check_files(folder)


def _binding(manifest: Version | None) -> Binding | None:
    if not isinstance(manifest, Published):
        return None
    library = manifest.libraries.get(engine_entry(manifest.engine).distribution)
    return Binding(device=manifest.device, engine=manifest.engine, library=library)


def _tasks(graph: ModelGraph, manifest: Version | None) -> Iterator[StoredTask]:
    """Tasks of shared encoders that are levels of a cascade."""
    levels = manifest.levels if isinstance(manifest, TabiManifest) else ()
    for model, task in sorted({(level.model, level.task) for level in levels if level.task is not None}):
        folder = tasks_folder(graph.entry(model).folder) / task
        if not (folder / TASK_FILE).is_file():
            raise InvalidArgument(f"task '{task}' of model '{model}' is not in {graph.repository}: add it first")
        files = tuple(describe_file(folder / name, name) for name in (TASK_FILE, TENSORS_FILE))
        yield StoredTask(model=model, name=task, files=files)


def _sources(repository: Path, versions: Sequence[StoredVersion]) -> Iterator[tuple[StoredFile, Path]]:
    """Files of versions, and where they are on this machine."""
    for version in versions:
        entry = repository / version.model
        for each in version.files:
            yield each, entry / str(version.version) / each.path
        if version.config is not None:
            yield version.config, entry / CONFIG_FILE
        for task in version.tasks:
            folder = tasks_folder(repository / task.model) / task.name
            for each in task.files:
                yield each, folder / each.path


def _refuse_other(store: VersionStore, version: StoredVersion, existing: StoredVersion | None) -> None:
    difference = version.difference(existing) if existing is not None else None
    if difference is not None:
        raise InvalidArgument(
            f"{store.uri} has another {version.title}: {difference}; fetch it, then build again, which takes the next "
            "number, or publish to another URI"
        )
