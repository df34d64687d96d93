"""Runtimes published for Triton's own TensorRT backend. Its plans are stand-ins: no server here can load one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from tidal.arlo.manifest import ArloManifest
from tidal.device import Device
from tidal.engine_model.manifest import ExtraOutput, MainOutput, Runtime, load_engine_manifest
from tidal.manifest import MANIFEST_FILE, FileRecord, Source, TokenizerInfo, Verification, sha256_file
from tidal.profiles import LatencyProfile
from tidal.repository.allocation import configured_instances
from tidal.repository.config import instance_count, read_config, with_instances
from tidal.repository.entries import ModelEntry
from tidal_builders.arlo.native import single_query_profile
from tidal_builders.arlo.runtimes import instance_gpus, publish_with_runtimes

LENGTHS = (16, 64)


def make_front(
    folder: Path,
    files: Sequence[str],
    tokenizer: Path | None = None,
    max_batch: int = 4,
    lengths: tuple[int, ...] = LENGTHS,
) -> ArloManifest:
    """A native front's manifest, and stand-ins for its files in `folder`."""
    names = {*files, "tokenizer/tokenizer.json"}
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        content = tokenizer.read_bytes() if tokenizer and "tokenizer" in name else name.encode()
        (folder / name).write_bytes(content)
    manifest = ArloManifest(
        kind="arlo",
        name="tiny",
        created="2030-01-01T00:00:00Z",
        spec="tiny.yaml",
        fingerprint="f",
        source=Source(model="m", architecture="Bert", sha256="s"),
        tokenizer=TokenizerInfo(file="tokenizer/tokenizer.json", max_length=64, pad_token_id=0, type_ids=True),
        labels=("a", "b"),
        placement="partitioned",
        native=True,
        engine="tensorrt",
        precision="fp16",
        device=Device(kind="gpu", name="Some GPU", features=("compute capability 9.0",)),
        libraries={"tensorrt": "10.14"},
        runtimes=tuple(
            Runtime(max_length=length, file=file, dynamic=False, max_batch=max_batch)
            for length, file in zip(lengths, files, strict=True)
        ),
        main_output=MainOutput(width=2),
        extra_outputs=(ExtraOutput(name="attention_received", per_token=True),),
        verification=Verification(samples=1, max_abs_error=0.0, tolerance=1e-3, argmax_agreement=1.0),
        profile=LatencyProfile(
            lengths=lengths,
            batches=(1,),
            median_ms=tuple((float(n),) for n in lengths),
            p95_ms=tuple((float(n),) for n in lengths),
            threads=1,
        ),
        files=tuple(
            FileRecord(path=name, bytes=(folder / name).stat().st_size, sha256=sha256_file(folder / name))
            for name in sorted(names)
        ),
    )
    (folder / MANIFEST_FILE).write_text(manifest.model_dump_json())
    return manifest


@pytest.mark.parametrize(
    ("files", "max_batch", "profiles"),
    [
        (("engines/a/a.plan", "engines/a/a.plan"), 4, [0, 2]),
        (("engines/a/a.plan", "engines/a/a.plan"), 1, [0, 1]),
        (("engines/a/a.plan", "engines/b/b.plan"), 4, [0, 0]),
    ],
)
def test_one_query_runs_on_the_static_profile_of_its_length(
    tmp_path: Path, files: tuple[str, str], max_batch: int, profiles: list[int]
) -> None:
    front = make_front(tmp_path, files, max_batch=max_batch)
    assert [single_query_profile(front, place) for place in range(2)] == profiles


def publish_front(tmp_path: Path, tiny: Path, lengths: tuple[int, ...] = LENGTHS) -> Path:
    """A repository with a partitioned native model whose runtimes share a plan."""
    repository = tmp_path / "repository"
    entry = ModelEntry(repository / "tiny")
    entry.folder.mkdir(parents=True)
    staging = entry.new_staging()
    front = make_front(staging, ["engines/a/a.plan"] * len(lengths), tiny / "tokenizer.json", lengths=lengths)
    publish_with_runtimes(entry, front, staging, lambda _stage, _share: None)
    return repository


@pytest.fixture
def repository(tmp_path: Path, tiny: Path) -> Path:
    return publish_front(tmp_path, tiny)


def parsed(path: Path) -> Any:
    config = model_config_pb2.ModelConfig()
    text_format.Parse(path.read_text(), config)
    return config


@pytest.mark.parametrize(("length", "profile"), [(16, "0"), (64, "2")])
def test_the_config_is_one_that_triton_parses(repository: Path, length: int, profile: str) -> None:
    config = parsed(repository / f"tiny_len{length}" / "config.pbtxt")
    assert (config.name, config.platform, config.backend) == (f"tiny_len{length}", "tensorrt_plan", "")
    assert config.max_batch_size == 1
    names = ["input_ids", "attention_mask", "token_type_ids"]
    assert [(each.name, each.data_type, list(each.dims)) for each in config.input] == [
        (name, model_config_pb2.TYPE_INT64, [length]) for name in names
    ]
    assert [(each.name, each.data_type, list(each.dims)) for each in config.output] == [
        ("logits", model_config_pb2.TYPE_FP32, [2]),
        ("attention_received", model_config_pb2.TYPE_FP32, [length]),
    ]
    (group,) = config.instance_group
    assert (group.kind, list(group.gpus), list(group.profile)) == (group.KIND_GPU, [0], [profile])
    assert group.count >= 1
    assert config.optimization.cuda.graphs
    (graph,) = config.optimization.cuda.graph_spec
    assert graph.batch_size == 1
    assert {name: list(shape.dim) for name, shape in graph.input.items()} == {name: [length] for name in names}
    assert list(config.version_policy.specific.versions) == [1]
    assert not config.HasField("dynamic_batching")


@pytest.mark.parametrize(
    ("visible", "short", "long"),
    [((), [0], [0]), (("0",), [0], [0]), (("2", "GPU-b"), [0], [1]), (("0", "1", "2", "3", "4"), [0, 1], [2, 3, 4])],
)
def test_instances_are_distributed_over_the_visible_gpus(
    tmp_path: Path,
    tiny: Path,
    monkeypatch: pytest.MonkeyPatch,
    visible: tuple[str, ...],
    short: list[int],
    long: list[int],
) -> None:
    monkeypatch.setattr("tidal_builders.arlo.runtimes.visible_gpus", lambda: visible)
    repository = publish_front(tmp_path, tiny)
    for length, gpus in zip(LENGTHS, (short, long), strict=True):
        folder = repository / f"tiny_len{length}"
        groups = parsed(folder / "config.pbtxt").instance_group
        assert [(list(group.gpus), group.count, len(group.profile)) for group in groups] == [([n], 1, 1) for n in gpus]
        config = read_config(folder)
        assert instance_count(config) == (0 if length == LENGTHS[0] and len(visible) == 1 else len(gpus))
        assert instance_count(with_instances(config, 7)) == 7


def test_more_instances_than_gpus_share_them() -> None:
    assert [instance_gpus([1, 1, 1], place, 2) for place in range(3)] == [[0], [1], [0]]


def test_eight_runtimes_on_two_gpus_have_two_instances(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidal_builders.arlo.runtimes.visible_gpus", lambda: ("0", "1"))
    repository = publish_front(tmp_path, tiny, tuple(range(8, 65, 8)))
    instances = configured_instances(repository / "tiny", range(8, 65, 8))
    assert instances == {**dict.fromkeys(range(8, 49, 8), 0), 56: 1, 64: 1}
    groups = [parsed(repository / f"tiny_len{length}" / "config.pbtxt").instance_group for length in (56, 64)]
    assert [list(group.gpus) for (group,) in groups] == [[0], [1]]


def test_the_plan_has_the_path_that_tritons_backend_reads(repository: Path) -> None:
    for length in LENGTHS:
        version = repository / f"tiny_len{length}" / "1"
        assert (version / "model.plan").samefile(repository / "tiny/1/engines/a/a.plan")
        assert load_engine_manifest(version).runtime.file == "model.plan"
