"""The Triton models of a partitioned model's runtimes, made from a version of their front.

Everything in `<model>_len<N>/` is derived: the version folders from the front's version of the same number,
config.pbtxt from its newest. The runtimes' versions are placed first, then the front's, then each config.pbtxt begins
to name the new version: until then a server goes on with the version before, whatever becomes of the builder.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidal.arlo.manifest import ArloManifest
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
    report: Callable[[str, float], None],
    needed: Collection[int] = (),
) -> int:
    """Publish a front's staged version, and before it, where it is partitioned, the versions of its runtimes' models.

    Args:
        front: the front's entry.
        manifest: of the staged version.
        staging: the front's staged version.
        report: told the steps.
        needed: older versions of the front that must stay.

    Returns:
        The version's number: one more than any of the family's, also of those whose builder was killed before the
        front's was placed.

    Raises:
        InvalidArgument: a folder of a runtime's name holds another model.
    """
    used = [*front.versions(), *(version for entry in _owned(front) for version in entry.versions())]
    version = max(used, default=0) + 1
    if manifest.placement == "partitioned":
        _place(front, manifest, staging, version)
        report("publish the front", 0.0)
    front.publish(staging, version, needed)
    if manifest.placement == "partitioned":
        report("publish the runtimes' configs", 0.0)
    _settle(front, manifest, version)
    return version


def restore_runtime_models(front: ModelEntry, manifest: ArloManifest, version: int) -> None:
    """Make what the runtimes' models lack to serve with the front's newest version, from that version."""
    _place(front, manifest, front.version_dir(version), version)
    _settle(front, manifest, version)


def missing_runtimes(front: ModelEntry, manifest: ArloManifest, version: int) -> list[str]:
    """What the runtimes' models lack to serve with the front's newest version, a clause each."""
    if manifest.placement != "partitioned":
        return []
    said = []
    for model in _models(front, manifest, front.version_dir(version)):
        config = model.entry.folder / "config.pbtxt"
        if (lack := _lack(model, version)) is not None:
            said.append(lack)
        elif not config.exists() or config.read_text(encoding="utf-8") != _config(manifest, model, version):
            said.append(f"{config} is not the one of version {version}")
    return said


def default_instances(runtimes: int, workers: int) -> list[int]:
    """Instances of each runtime, as even as `workers` cores or devices allow, at least one each; longer ones first."""
    each, more = divmod(workers, runtimes)
    return [max(1, each + (place >= runtimes - more)) for place in range(runtimes)]


def instance_gpus(counts: Sequence[int], place: int, gpus: int) -> list[int]:
    """The GPU of each instance of one runtime, where all runtimes' instances take the GPUs by turns.

    Args:
        counts: instances by runtime.
        place: the runtime's.
        gpus: how many there are; where none is visible, the first is named.
    """
    first = sum(counts[:place])
    return [number % max(1, gpus) for number in range(first, first + counts[place])]


def _place(front: ModelEntry, manifest: ArloManifest, folder: Path, version: int) -> None:
    """Make each runtime's model have this version; those that have it are left.

    `folder` is the front's version, staged or published; engine files are hard-linked from it where possible.
    """
    for model in _models(front, manifest, folder):
        entry = model.entry
        _refuse_foreign(front, entry)
        if _lack(model, version) is None:
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


def _settle(front: ModelEntry, manifest: ArloManifest, version: int) -> None:
    """Once the front's version is placed: let the runtimes' models serve it, and remove what no version needs."""
    if manifest.placement == "partitioned":
        for model in _models(front, manifest, front.version_dir(version)):
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
class _Model:
    """A runtime's model and what a version of it holds: the manifest, and files by their path with where they lie."""

    entry: ModelEntry
    manifest: EngineManifest
    sources: dict[str, Path]


def _models(front: ModelEntry, manifest: ArloManifest, folder: Path) -> list[_Model]:
    """Each runtime's model, as the front's version in `folder` makes it."""
    from tokenizers import Tokenizer

    vocabulary = Tokenizer.from_file(str(folder / manifest.tokenizer.file)).get_vocab_size()
    found = []
    for runtime in manifest.runtimes:
        entry = ModelEntry(front.folder.parent / runtime_model(front.name, runtime.max_length))
        beside = Path(runtime.file).parent
        records = {record.path: record for record in manifest.files if Path(record.path).parent == beside}
        # By its path in the runtime's version: Triton's own backend reads one file of a fixed name.
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
            extra_outputs=manifest.extra_outputs,
            runtime=runtime.model_copy(update={"file": PLAN_FILE}) if manifest.native else runtime,
            threads=manifest.profile.threads,
            verification=manifest.verification,
        )
        found.append(_Model(entry, made, {own: folder / path for own, path in paths.items()}))
    return found


def _owned(front: ModelEntry) -> list[ModelEntry]:
    """Models of the front's runtimes, of all its versions."""
    name = re.compile(re.escape(runtime_model(front.name, 0)).removesuffix("0") + r"[1-9][0-9]*")
    found = [ModelEntry(p) for p in sorted(front.folder.parent.iterdir()) if p.is_dir() and name.fullmatch(p.name)]
    return [entry for entry in found if _front_of(entry) == front.name]


def _front_of(entry: ModelEntry) -> str | None:
    latest = entry.latest()
    try:
        return load_engine_manifest(latest).front if latest is not None else None
    except InvalidArgument:
        return None


def _refuse_foreign(front: ModelEntry, entry: ModelEntry) -> None:
    if entry.versions() and _front_of(entry) != front.name:
        raise InvalidArgument(
            f"{entry.folder} holds another model, and a runtime of {front.name} is to be published there: rename either"
        )


def _lack(model: _Model, version: int) -> str | None:
    """What a runtime's model lacks of this version; files that are the front's own are not read again."""
    entry, made = model.entry, model.manifest
    if version not in entry.versions():
        return f"{entry.name} lacks version {version}"
    own = entry.version_dir(version)
    try:
        if load_engine_manifest(own) != made:
            return f"{own} is not made from version {version} of {made.front}"
        copied = tuple(each for each in made.files if not _same_file(own / each.path, model.sources[each.path]))
        made.model_copy(update={"files": copied}).check(own, made.device)
    except InvalidArgument as error:
        return str(error)
    return None


def _same_file(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.samefile(other)


def _config(manifest: ArloManifest, model: _Model, version: int) -> str:
    workers = len(visible_gpus()) if manifest.device.kind == "gpu" else manifest.profile.concurrency
    counts = default_instances(len(manifest.runtimes), workers)
    place = [runtime.max_length for runtime in manifest.runtimes].index(model.manifest.max_length)
    if manifest.native:
        profile = single_query_profile(manifest, place)
        return native_config_pbtxt(
            model.manifest,
            version=version,
            gpus=instance_gpus(counts, place, workers),
            profile=profile,
            classes=len(manifest.labels),
        )
    return runtime_config_pbtxt(model.manifest, version=version, instances=counts[place])


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)
