"""A partitioned model is published with the models of its runtimes."""

from __future__ import annotations

import re
import shutil
import signal
from pathlib import Path

import pytest

from testing.building import BuildProcess
from tests.builders.conftest import Published
from tests.tabi.builders.command import tidal_build
from tidal import device
from tidal.arlo.manifest import load_arlo_manifest
from tidal.arlo.scheduling import even_allocation
from tidal.catalog.graph import ModelGraph
from tidal.engine_model.manifest import load_engine_manifest
from tidal.errors import InvalidArgument
from tidal.manifest import MANIFEST_FILE
from tidal.repository.allocation import configured_instances
from tidal.repository.config import instance_count, read_config, with_instances
from tidal.repository.entries import KEPT_VERSIONS, ModelEntry
from tidal.server.starting import plan_start
from tidal_builders.arlo.build import _config, build_arlo
from tidal_builders.arlo.choices import choose_placement
from tidal_builders.arlo.report import ArloReport
from tidal_builders.arlo.runtimes import publish_with_runtimes
from tidal_builders.arlo.spec import ArloSpec
from tidal_builders.specs import load_spec

pytestmark = pytest.mark.slow

CORES = 3


def _cores(_pid: int) -> range:
    return range(CORES)


def _code(_modules: object) -> str:
    return "code"


# Ingredients of every build here, also of builds in other processes.
INGREDIENTS = {"os.sched_getaffinity": _cores, "tidal_builders.fingerprint.hash_code": _code}


def _fix_ingredients(patch: pytest.MonkeyPatch) -> None:
    for path, value in INGREDIENTS.items():
        patch.setattr(path, value)


@pytest.fixture(autouse=True)
def ingredients(monkeypatch: pytest.MonkeyPatch) -> None:
    _fix_ingredients(monkeypatch)


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> tuple[Path, Path]:
    """A spec and a repository with version 1 of a partitioned model. Read-only: see `copied`."""
    folder = tmp_path_factory.mktemp("partitioned")
    spec = folder / "tiny.yaml"
    spec.write_text(
        f"kind: arlo\nname: tiny\nmodel: {tiny}\nlengths: [16, 32]\nmax_batch: 2\nplacement: partitioned\n"
        "outputs: [logits, attention_received]\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        _fix_ingredients(patch)
        build_arlo(load_spec(spec), folder / "r", spec_file=spec)
    return spec, folder / "r"


@pytest.fixture
def copied(once: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    """A copy of the repository, and its spec."""
    shutil.copytree(once[1], tmp_path / "r")
    return once[0], tmp_path / "r"


def build(spec: Path, repository: Path, **options: bool) -> ArloReport:
    return build_arlo(load_spec(spec), repository, spec_file=spec, **options)


def versions(repository: Path) -> dict[str, list[int]]:
    return {p.name: ModelEntry(p).versions() for p in sorted(repository.iterdir())}


def served(repository: Path, model: str) -> list[int]:
    """Versions that the generated config lets a server serve."""
    text = (repository / model / "config.pbtxt").read_text()
    found = re.search(r"version_policy \{ specific \{ versions: \[ (\d+) \] \} \}", text)
    assert found is not None
    return [int(found[1])]


def check_runtime_models(repository: Path) -> None:
    """The newest front and its runtimes' models are complete and of one build."""
    found = ModelGraph.read(repository).partitioned("tiny")
    assert found is not None
    folder = repository / f"tiny/{found.version}"
    front = load_arlo_manifest(folder)
    front.check(folder, device.cpu())
    for length, name in found.runtime_models.items():
        assert served(repository, name) == [found.version]
        folder = repository / name / str(found.version)
        manifest = load_engine_manifest(folder)
        manifest.check(folder, device.cpu())
        assert (manifest.front, manifest.fingerprint, manifest.max_length) == ("tiny", front.fingerprint, length)


def test_a_partitioned_model_is_published_with_its_runtimes_models(once: tuple[Path, Path]) -> None:
    _, repository = once
    assert versions(repository) == {"tiny": [1], "tiny_len16": [1], "tiny_len32": [1]}
    check_runtime_models(repository)
    front = load_arlo_manifest(repository / "tiny/1")
    assert front.placement == "partitioned"
    assert not any(runtime.dynamic for runtime in front.runtimes)
    # Single-thread engines on all cores at once.
    assert (front.profile.threads, front.profile.concurrency, front.parallel) == (1, CORES, None)
    slo = re.search(
        r'key: "slo_ms" value: \{ string_value: "([0-9.]+)" \}', (repository / "tiny/config.pbtxt").read_text()
    )
    assert slo is not None
    assert float(slo[1]) == pytest.approx(20 * front.profile.latency_ms(32), abs=1e-3)


def test_the_config_of_a_runtimes_model(once: tuple[Path, Path]) -> None:
    _, repository = once
    config = read_config(repository / "tiny_len16")
    assert (config["backend"], config["max_batch_size"]) == ("engine", 2)
    assert [each["name"] for each in config["input"]] == ["input_ids", "attention_mask", "token_type_ids"]
    assert all(each["dims"] == ["16"] for each in config["input"])
    assert [each["name"] for each in config["output"]] == ["logits", "attention_received"]
    assert "dynamic_batching" not in config
    # Three cores for two runtimes: the longer has one more.
    assert [instance_count(read_config(repository / f"tiny_len{length}")) for length in (16, 32)] == [1, 2]


def test_engine_files_are_shared(once: tuple[Path, Path]) -> None:
    _, repository = once
    for name in ("model.xml", "model.bin"):
        front = repository / "tiny/1/engines" / name
        assert all((repository / f"tiny_len{n}/1/engines" / name).samefile(front) for n in (16, 32))


def test_a_missing_or_changed_model_of_a_runtime_is_restored_without_a_build(copied: tuple[Path, Path]) -> None:
    spec, repository = copied
    assert build(spec, repository).outcome == "current"
    shutil.rmtree(repository / "tiny_len16")
    (repository / "tiny_len32/config.pbtxt").write_text("# mine\n")
    check = tidal_build(spec, "--repository", repository, "--check")
    report = build(spec, repository)
    assert report.outcome == "published"
    assert report.version == 1
    assert report.reasons[0] == "tiny_len16 lacks version 1"
    assert "tiny_len32/config.pbtxt is not that of version 1" in report.reasons[1]
    check_runtime_models(repository)
    assert build(spec, repository).outcome == "current"
    assert check.code == 1


def test_a_damaged_model_of_a_runtime_is_restored(copied: tuple[Path, Path]) -> None:
    spec, repository = copied
    file = repository / "tiny_len16/1/engines/model.bin"
    file.unlink()
    file.write_bytes(b"short")
    assert "model.bin differs from what was published" in build(spec, repository).reasons[0]
    check_runtime_models(repository)


def test_a_builder_killed_between_the_runtimes_and_the_front(copied: tuple[Path, Path]) -> None:
    """The configs always name one version, and the next build takes a number above every one in use."""
    spec, repository = copied
    before = {p: p.read_text() for p in sorted(repository.glob("*/config.pbtxt"))}
    (repository / "tiny/1/tokenizer/tokenizer.json").write_text("{}")  # makes the version stale

    def kill(stage: str) -> dict[str, list[int]]:
        assert BuildProcess(spec, repository, kill_at=stage, changes=INGREDIENTS).wait() == -signal.SIGKILL
        assert {p: p.read_text() for p in sorted(repository.glob("*/config.pbtxt"))} == before
        return versions(repository)

    assert kill("publish the front") == {"tiny": [1], "tiny_len16": [1, 2], "tiny_len32": [1, 2]}
    placed = kill("publish the runtimes' configs")
    assert placed["tiny"] == [1, 3]
    assert {placed[name][-1] for name in ("tiny_len16", "tiny_len32")} == {3}
    report = build(spec, repository)
    assert (report.outcome, report.version) == ("published", 3)
    assert set(map(tuple, versions(repository).values())) == {(1, 3)}
    check_runtime_models(repository)


def publish_again(repository: Path, **changes: object) -> None:
    """Publish the newest version again as the next one, with changes to its manifest."""
    front = ModelEntry(repository / "tiny")
    latest = front.latest()
    assert latest is not None
    manifest = load_arlo_manifest(latest).model_copy(update=changes)
    staging = front.new_staging()
    shutil.copytree(latest, staging, dirs_exist_ok=True)
    (staging / MANIFEST_FILE).write_text(manifest.model_dump_json())
    publish_with_runtimes(front, manifest, staging, lambda _stage, _share: None)


def test_old_versions_and_lengths_are_removed_together(copied: tuple[Path, Path]) -> None:
    _, repository = copied
    runtimes = load_arlo_manifest(repository / "tiny/1").runtimes
    publish_again(repository, runtimes=runtimes[1:])
    assert versions(repository) == {"tiny": [1, 2], "tiny_len16": [1], "tiny_len32": [1, 2]}
    assert served(repository, "tiny_len16") == [1]
    for _ in range(KEPT_VERSIONS - 1):
        publish_again(repository)
    kept = list(range(2, KEPT_VERSIONS + 2))
    assert versions(repository) == {"tiny": kept, "tiny_len32": kept}
    check_runtime_models(repository)


def test_models_of_runtimes_are_removed_with_the_last_partitioned_version(copied: tuple[Path, Path]) -> None:
    _, repository = copied
    for _ in range(KEPT_VERSIONS):
        assert set(versions(repository)) == {"tiny", "tiny_len16", "tiny_len32"}
        publish_again(repository, placement="polymorphic")
    assert set(versions(repository)) == {"tiny"}


def test_native_runtimes_hold_a_plan_that_triton_reads_by_itself(copied: tuple[Path, Path]) -> None:
    """Tests paths and configs only: the file is not a real plan."""
    _, repository = copied
    publish_again(repository, native=True)
    front = repository / "tiny/2/engines/model.xml"
    for length, profile in ((16, "0"), (32, "2")):
        folder = repository / f"tiny_len{length}/2"
        assert (folder / "model.plan").samefile(front)
        manifest = load_engine_manifest(folder)
        manifest.check(folder, device.cpu())
        assert [file.path for file in manifest.files] == [manifest.runtime.file] == ["model.plan"]
        config = read_config(folder.parent)
        assert (config["platform"], config["max_batch_size"]) == ("tensorrt_plan", 1)
        assert config["instance_group"][0]["profile"] == [profile]


def test_another_model_of_a_runtimes_name_is_left_alone(copied: tuple[Path, Path], published: Published) -> None:
    _, repository = copied
    shutil.rmtree(repository / "tiny_len16")
    shutil.copytree(published[1] / "tiny", repository / "tiny_len16")
    with pytest.raises(InvalidArgument, match=r"tiny_len16 contains another model, but a runtime of tiny must be"):
        publish_again(repository)
    assert versions(repository) == {"tiny": [1], "tiny_len16": [1], "tiny_len32": [1]}
    assert load_arlo_manifest(repository / "tiny_len16/1").placement == "polymorphic"


def test_the_slo_of_the_spec(once: tuple[Path, Path]) -> None:
    config = _config(
        1, spec_of("partitioned").model_copy(update={"slo_ms": 480}), load_arlo_manifest(once[1] / "tiny/1")
    )
    assert 'key: "slo_ms" value: { string_value: "480" }' in config


@pytest.mark.parametrize(
    ("runtimes", "workers", "counts"),
    [(2, 2, [1, 1]), (2, 3, [1, 2]), (3, 8, [2, 3, 3]), (4, 2, [0, 0, 1, 1]), (1, 5, [5]), (3, 3, [1, 1, 1])],
)
def test_instances_are_as_even_as_the_cores_allow(runtimes: int, workers: int, counts: list[int]) -> None:
    assert list(even_allocation(workers, runtimes)) == counts


def test_with_fewer_cores_than_runtimes_the_short_ones_have_no_instance(copied: tuple[Path, Path]) -> None:
    _, repository = copied
    manifest = load_arlo_manifest(repository / "tiny/1")
    one_core = manifest.model_copy(update={"profile": manifest.profile.model_copy(update={"concurrency": 1})})
    staging = ModelEntry(repository / "tiny").new_staging()
    shutil.copytree(repository / "tiny/1", staging, dirs_exist_ok=True)
    (staging / MANIFEST_FILE).write_text(one_core.model_dump_json())
    publish_with_runtimes(ModelEntry(repository / "tiny"), one_core, staging, lambda _stage, _share: None)
    graph = ModelGraph.read(repository)
    assert configured_instances(repository / "tiny", [16, 32]) == {16: 0, 32: 1}
    assert plan_start(graph, graph.models).models == ("tiny", "tiny_len32")
    given = with_instances(read_config(repository / "tiny_len16"), 2)
    assert (instance_count(given), given.get("parameters")) == (2, {})


def spec_of(placement: str) -> ArloSpec:
    return ArloSpec.model_validate({"kind": "arlo", "name": "m", "model": "m", "placement": placement})


def test_auto_partitions_static_runtimes_on_several_devices_only() -> None:
    assert choose_placement(spec_of("auto"), "static", devices=2) == "partitioned"
    assert choose_placement(spec_of("auto"), "static", devices=1) == "polymorphic"
    assert choose_placement(spec_of("auto"), "dynamic", devices=2) == "polymorphic"
    assert choose_placement(spec_of("partitioned"), "static", devices=1) == "partitioned"
    assert choose_placement(spec_of("polymorphic"), "static", devices=2) == "polymorphic"
