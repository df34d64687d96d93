"""Repositories in which the runtimes of a partitioned model are emulated devices."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import yaml

from benchmarks.arlo import bin_packing, bin_packing_model
from benchmarks.arlo.systems import with_parameters
from benchmarks.cluster.emulated import device_model, emulated_device
from benchmarks.cluster.simulated.inputs import MAX_LENGTHS, Stream
from benchmarks.kept import cache_folder
from benchmarks.report import progress
from testing.models import make_tiny_classifier
from tidal.arlo.manifest import ArloManifest, load_arlo_manifest
from tidal.manifest import MANIFEST_FILE
from tidal.profiles import LatencyProfile
from tidal.repository.allocation import make_allocation, write_allocation
from tidal.repository.entries import write_atomically
from tidal.repository.names import runtime_model

BUILT = "emulated"
_VERSION = "1"


@dataclass(frozen=True, slots=True)
class EmulatedModel:
    """A partitioned model on emulated devices.

    Attributes:
        name: Name of its front.
        stream: Model and objective of the paper.
        stretch: Factor on all times.
        instances: Instances by runtime.
        dynamic: Whether a device takes the time of the query's length, instead of its runtime's.
        dispatch: Rule of the front.
    """

    name: str
    stream: Stream
    stretch: float
    instances: Sequence[int]
    dynamic: bool = False
    dispatch: str = "completion"

    @property
    def slo_ms(self) -> float:
        """Latency objective in ms."""
        return self.stream.slo_s * 1e3 * self.stretch

    def latencies_s(self, runtime: int) -> list[float]:
        """Return the seconds that a device of a runtime takes, by length in tokens from 0."""
        times = self.stream.times
        if self.dynamic:
            assert times.dynamic_s is not None
            return [self.stretch * seconds for seconds in times.dynamic_s]
        return [self.stretch * times.static_s[runtime]] * (times.longest + 1)


def prepare() -> Path:
    """Build the model whose runtimes are emulated, unless it is up to date; returns its repository.

    Its tokenizer, manifest and front are those of a real build; its weights are random, and its engines are not used.
    """
    folder = cache_folder() / "emulated"
    if not (folder / "source").exists():
        make_tiny_classifier(folder / "source", layers=1, hidden=32, max_position=MAX_LENGTHS[-1])
    fields = {"kind": "arlo", "placement": "partitioned", "precision": "fp32", "form": "static", "threads": 1}
    spec = {"name": BUILT, "model": str(folder / "source"), "lengths": list(MAX_LENGTHS), "max_batch": 1, **fields}
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec))
    progress("building the model (skipped if it is up to date)")
    command = ["build", str(folder / "spec.yaml"), "--repository", str(folder / "repository")]
    subprocess.run([sys.executable, "-m", "tidal_client.main", *command], check=True, stdout=sys.stderr)
    return folder / "repository"


def write_model(source: Path, repository: Path, model: EmulatedModel) -> None:
    """Add a model to a repository.

    Args:
        source: Repository with the built model.
        repository: Repository to write to.
        model: The model.
    """
    version_dir = _newest(source / BUILT)
    front = repository / model.name
    shutil.copytree(version_dir, front / _VERSION)
    manifest = _emulated_manifest(load_arlo_manifest(version_dir), model)
    (front / _VERSION / MANIFEST_FILE).write_text(manifest.model_dump_json())
    config = (source / BUILT / "config.pbtxt").read_text().replace(f'"{BUILT}"', f'"{model.name}"')
    (front / "config.pbtxt").write_text(
        with_parameters(config, {"slo_ms": f"{model.slo_ms:g}", "dispatch": model.dispatch})
    )
    counts = dict(zip(MAX_LENGTHS, model.instances, strict=True))
    write_allocation(front, make_allocation(counts))
    for runtime, length in enumerate(MAX_LENGTHS):
        _write_device(source, repository, model, runtime, length)
    write_latencies(repository, model)


def write_latencies(repository: Path, model: EmulatedModel) -> None:
    """Write how long the devices of a model wait; those that run read it before their next query."""
    labels = len(load_arlo_manifest(repository / model.name / _VERSION).labels)
    for runtime, length in enumerate(MAX_LENGTHS):
        folder = repository / runtime_model(model.name, length) / _VERSION
        write_atomically(folder / "latencies.json", profile_json(model.latencies_s(runtime), labels))


def profile_json(seconds: Sequence[float], labels: int) -> str:
    """Return the content of a device's profile.

    Args:
        seconds: Seconds that it takes, by length in tokens from 0.
        labels: Number of labels.
    """
    return json.dumps({"seconds": list(seconds), "labels": labels})


def write_bin_packing(repository: Path, front: EmulatedModel, name: str, fill: float) -> None:
    """Add an INFaaS-like front over the devices of another front.

    Args:
        repository: Repository with that front.
        front: That front.
        name: Name of the new one.
        fill: Share of an instance's capacity that it uses.
    """
    write_front(repository, front, name, (bin_packing_model, bin_packing), {"fill": f"{fill:g}"})


def write_front(
    repository: Path,
    front: EmulatedModel,
    name: str,
    modules: tuple[ModuleType, ModuleType],
    parameters: Mapping[str, object],
) -> None:
    """Add a front with another policy over the devices of a front.

    Args:
        repository: Repository with that front.
        front: That front.
        name: Name of the new one.
        modules: Its model for Triton's Python backend, and the module that this imports.
        parameters: Its parameters.
    """
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    config = (repository / front.name / "config.pbtxt").read_text()
    config = config.replace(f'"{front.name}"', f'"{name}"').replace('"arlo"', '"python"')
    (folder / "config.pbtxt").write_text(with_parameters(config, {**parameters, "front": front.name}))
    model, imported = (Path(str(each.__file__)) for each in modules)
    shutil.copy(model, folder / "1" / "model.py")
    shutil.copy(imported, folder / "1" / imported.name)


def _write_device(source: Path, repository: Path, model: EmulatedModel, runtime: int, length: int) -> None:
    built, name = runtime_model(BUILT, length), runtime_model(model.name, length)
    folder = repository / name / _VERSION
    folder.mkdir(parents=True)
    config = (source / built / "config.pbtxt").read_text().replace(f'"{built}"', f'"{name}"')
    config = config.replace('backend: "engine"', 'backend: "python"')
    count = max(1, model.instances[runtime])
    config = config.replace("count: 1 kind", f"count: {count} kind")
    (folder.parent / "config.pbtxt").write_text(_of_version(config))
    shutil.copy(Path(str(device_model.__file__)), folder / "model.py")
    shutil.copy(Path(emulated_device.__file__), folder)


def _emulated_manifest(built: ArloManifest, model: EmulatedModel) -> ArloManifest:
    """Return the manifest with the paper's latencies as its profile."""
    rows = tuple((1e3 * model.stretch * seconds,) for seconds in model.stream.times.static_s)
    profile = LatencyProfile(
        lengths=MAX_LENGTHS, batches=(1,), median_ms=rows, p95_ms=rows, threads=built.profile.threads
    )
    return built.model_copy(update={"profile": profile, "name": model.name})


def _newest(model: Path) -> Path:
    return max((each for each in model.iterdir() if each.name.isdigit()), key=lambda each: int(each.name))


def _of_version(config: str) -> str:
    """Return a runtime's config for the only version here."""
    lines = [line for line in config.splitlines() if not line.startswith("version_policy")]
    return "\n".join([*lines, f"version_policy {{ specific {{ versions: [ {_VERSION} ] }} }}"]) + "\n"
