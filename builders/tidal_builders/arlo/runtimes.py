"""The Triton models of a partitioned model's runtimes, which are derived from a version of their front.

Everything in `<model>_len<N>/` is generated: version folders from the front's version of the same number, config.pbtxt
from its newest version. The runtimes' versions are published first, then the front's, then each config.pbtxt names the
new version. Until then a server keeps using the previous version, even if the builder crashes.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidal.arlo.manifest import ArloManifest
from tidal.arlo.scheduling import even_allocation
from tidal.engine_model.manifest import EngineInput, EngineManifest, load_engine_manifest
from tidal.errors import InvalidArgument
from tidal.gpus import visible_gpus
from tidal.manifest import MANIFEST_FILE
from tidal.repository.entries import ModelEntry, write_atomically
from tidal.repository.names import runtime_model
from tidal_builders.arlo.config import runtime_config_pbtxt
from tidal_builders.arlo.native import PLAN_FILE, native_config_pbtxt, single_query_profile


def publish_with_runtimes(
    front: ModelEntry,
    manifest: ArloManifest,
    staging: Path,
    progress: Callable[[str, float], None],
    needed: Collection[int] = (),
) -> int:
    """Publish a model's staged version, after the versions of its runtimes' models if it is partitioned.

    Args:
        front: The model.
        manifest: Manifest of the staged version.
        staging: Folder of the staged version.
        progress: Called with the name of the running step and the completed share of it.
        needed: Older versions of the model that must stay.

    Returns:
        The version's number: one more than any of the model's or its runtimes' models, including versions whose
        builder crashed before the model's own was published.

    Raises:
        InvalidArgument: A folder with the name of a runtime contains another model.
    """
    used = [*front.versions(), *(version for entry in _owned(front) for version in entry.versions())]
    version = max(used, default=0) + 1
    if manifest.placement == "partitioned":
        _place(front, manifest, staging, version)
        progress("publish the front", 0.0)
    front.publish(staging, version, needed)
    if manifest.placement == "partitioned":
        progress("publish the runtimes' configs", 0.0)
    _serve_version(front, manifest, version)
    return version


def restore_runtime_models(front: ModelEntry, manifest: ArloManifest, version: int) -> None:
    """Restore what the runtimes' models lack to serve with the front's newest version, from that version.

    Args:
        front: The front.
        manifest: Manifest of its newest version.
        version: Number of its newest version.
    """
    _place(front, manifest, front.version_dir(version), version)
    _serve_version(front, manifest, version)


def missing_runtimes(front: ModelEntry, manifest: ArloManifest, version: int) -> list[str]:
    """What the runtimes' models lack to serve with the front's newest version, one clause each.

    Args:
        front: The front.
        manifest: Manifest of its newest version.
        version: Number of its newest version.
    """
    if manifest.placement != "partitioned":
        return []
    clauses = []
    for model in _runtime_models(front, manifest, front.version_dir(version)):
        config = model.entry.folder / "config.pbtxt"
        if (problem := _problem(model, version)) is not None:
            clauses.append(problem)
        elif not config.exists() or config.read_text(encoding="utf-8") != _config(manifest, model, version):
            clauses.append(f"{config} is not that of version {version}")
    return clauses


def instance_gpus(counts: Sequence[int], index: int, gpus: int) -> list[int]:
    """The GPU of each instance of one runtime; the instances of all runtimes are assigned to GPUs in rotation.

    A runtime without instances has the GPU of the first one that it gets.

    Args:
        counts: Number of instances by runtime.
        index: Index of the runtime.
        gpus: Number of GPUs; if none is visible, the first is named.
    """
    first = sum(counts[:index])
    return [number % max(1, gpus) for number in range(first, first + max(1, counts[index]))]


def _place(front: ModelEntry, manifest: ArloManifest, folder: Path, version: int) -> None:
    """Publish this version of each runtime's model that lacks it.

    `folder` is the front's version, staged or published. Engine files are hard-linked from it where possible.
    """
    for model in _runtime_models(front, manifest, folder):
        entry = model.entry
        _refuse_foreign(front, entry)
        if _problem(model, version) is None:
            continue
        entry.clear_staging()
        if version in entry.versions():
            entry.remove(version)
        staging = entry.new_staging()
        for path, source in model.sources.items():
            _link(source, staging / path)
        (staging / MANIFEST_FILE).write_text(model.manifest.model_dump_json(indent=1))
        config = entry.folder / "config.pbtxt"
        if not config.exists():
            write_atomically(config, _config(manifest, model, version))
        entry.place(staging, version)


def _serve_version(front: ModelEntry, manifest: ArloManifest, version: int) -> None:
    """Make the runtimes' models serve a published version of the front, and remove versions that it does not have."""
    if manifest.placement == "partitioned":
        for model in _runtime_models(front, manifest, front.version_dir(version)):
            path, text = model.entry.folder / "config.pbtxt", _config(manifest, model, version)
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                write_atomically(path, text)
    kept = set(front.versions())
    for entry in _owned(front):
        for old in set(entry.versions()) - kept:
            entry.remove(old)
        if not entry.versions():
            shutil.rmtree(entry.folder)


@dataclass(frozen=True, slots=True)
class _RuntimeModel:
    """A runtime's model and the content of a version: its manifest, and the source of each file by its path."""

    entry: ModelEntry
    manifest: EngineManifest
    sources: dict[str, Path]


def _runtime_models(front: ModelEntry, manifest: ArloManifest, folder: Path) -> list[_RuntimeModel]:
    """Each runtime's model, as derived from the front's version in `folder`."""
    from tokenizers import Tokenizer

    vocabulary = Tokenizer.from_file(str(folder / manifest.tokenizer.file)).get_vocab_size()
    models = []
    for runtime in manifest.runtimes:
        entry = ModelEntry(front.folder.parent / runtime_model(front.name, runtime.max_length))
        beside = Path(runtime.file).parent
        records = {record.path: record for record in manifest.files if Path(record.path).parent == beside}
        # By path in the runtime's version: Triton's own backend reads one file with a fixed name.
        paths = {PLAN_FILE: runtime.file} if manifest.native else {path: path for path in records}
        made = EngineManifest(
            kind="engine",
            name=entry.name,
            created=manifest.created,
            spec=manifest.spec,
            fingerprint=manifest.fingerprint,
            source=manifest.source,
            engine=manifest.engine,
            precision=manifest.precision,
            device=manifest.device,
            libraries=manifest.libraries,
            files=tuple(records[path].model_copy(update={"path": own}) for own, path in paths.items()),
            front=front.name,
            inputs=tuple(
                EngineInput(name=each, below=vocabulary if each == "input_ids" else 2) for each in manifest.inputs
            ),
            main_output=manifest.main_output,
            extra_outputs=manifest.extra_outputs,
            runtime=runtime.model_copy(update={"file": PLAN_FILE}) if manifest.native else runtime,
            threads=manifest.profile.threads,
            verification=manifest.verification,
        )
        models.append(_RuntimeModel(entry, made, {own: folder / path for own, path in paths.items()}))
    return models


def _owned(front: ModelEntry) -> list[ModelEntry]:
    """Models of the front's runtimes, in all its versions."""
    name = re.compile(re.escape(runtime_model(front.name, 0)).removesuffix("0") + r"[1-9][0-9]*")
    entries = [ModelEntry(p) for p in sorted(front.folder.parent.iterdir()) if p.is_dir() and name.fullmatch(p.name)]
    return [entry for entry in entries if _front_of(entry) == front.name]


def _front_of(entry: ModelEntry) -> str | None:
    latest = entry.latest()
    try:
        return load_engine_manifest(latest).front if latest is not None else None
    except InvalidArgument:
        return None


def _refuse_foreign(front: ModelEntry, entry: ModelEntry) -> None:
    if entry.versions() and _front_of(entry) != front.name:
        raise InvalidArgument(
            f"{entry.folder} contains another model, but a runtime of {front.name} must be published there; rename one"
        )


def _problem(model: _RuntimeModel, version: int) -> str | None:
    """Why a runtime's model does not have this version; files that are links to the front's are not read again."""
    entry, made = model.entry, model.manifest
    if version not in entry.versions():
        return f"{entry.name} lacks version {version}"
    own = entry.version_dir(version)
    try:
        if load_engine_manifest(own) != made:
            return f"{own} was not made from version {version} of {made.front}"
        copied = tuple(each for each in made.files if not _same_file(own / each.path, model.sources[each.path]))
        made.model_copy(update={"files": copied}).check(own, made.device)
    except InvalidArgument as error:
        return str(error)
    return None


def _same_file(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.samefile(other)


def _config(manifest: ArloManifest, model: _RuntimeModel, version: int) -> str:
    gpus = len(visible_gpus())
    # On a GPU, the profile was measured with as many engines as one GPU runs.
    workers = manifest.profile.concurrency * (gpus if manifest.device.kind == "gpu" else 1)
    # One instance of each runtime where the GPUs are not known.
    counts = even_allocation(workers or len(manifest.runtimes), len(manifest.runtimes))
    index = [runtime.max_length for runtime in manifest.runtimes].index(model.manifest.max_length)
    if manifest.native:
        profile = single_query_profile(manifest, index)
        return native_config_pbtxt(
            model.manifest,
            version=version,
            gpus=instance_gpus(counts, index, gpus),
            profile=profile,
            deployed=counts[index] > 0,
        )
    return runtime_config_pbtxt(model.manifest, version=version, instances=counts[index])


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)
