"""The TensorRT runtime over fakes of CUDA and TensorRT: copied bytes, captured graphs, shared weights."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engines.fake_gpu import CLASSES, Gpu, sums, tensorrt, write_plan
from tests.engines.support import make_batch
from tidal import device
from tidal.device import Device
from tidal.engines import Artifact
from tidal.engines.plan_profiles import fixed_dimensions, holds, profiles_for, serving
from tidal.errors import InvalidArgument, Unavailable

NAMES = ("input_ids", "attention_mask")
MAX_BATCH = 4


def shapes(length: int | tuple[int, int], max_batch: int = MAX_BATCH) -> dict[str, Any]:
    return dict.fromkeys(NAMES, ((1, max_batch), length))


@pytest.fixture
def gpu() -> Gpu:
    return Gpu()


@pytest.fixture
def runtime(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`tidal.engines.tensorrt.runtime`, imported over the fakes."""
    cuda = importlib.import_module("tidal.engines.cuda")
    monkeypatch.setattr(cuda, "runtime", gpu.runtime())
    monkeypatch.setattr(cuda, "get_cuda_native_handle", lambda stream: stream.number)
    monkeypatch.setattr(device, "gpu", lambda: Device(kind="gpu", name="Fake GPU"))
    monkeypatch.setitem(sys.modules, "tensorrt", tensorrt(gpu))
    before = [name for name in sys.modules if name.startswith("tidal.engines.tensorrt")]
    for name in before:
        monkeypatch.delitem(sys.modules, name)
    yield importlib.import_module("tidal.engines.tensorrt.runtime")
    for name in [name for name in sys.modules if name.startswith("tidal.engines.tensorrt")]:
        del sys.modules[name]


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """A plan for lengths 8 and 16, and for all lengths up to 16."""
    profiles = [p for length in (8, 16, (1, 16)) for p in profiles_for(shapes(length))]
    path = tmp_path / "model.plan"
    path.write_bytes(write_plan(NAMES, profiles))
    return path


def opened(runtime: Any, plan: Path, length: int | tuple[int, int], contexts: int = 1) -> Any:
    return runtime.open_engines(Artifact("tensorrt", plan, "fp16", shapes(length), "gpu"), contexts=contexts, threads=1)


def batch(rows: int, length: int, seed: int = 0) -> dict[str, Any]:
    made = make_batch(rows, length, seed)
    return {name: made[name] for name in NAMES}


def test_answers_are_those_of_the_batch(runtime: Any, plan: Path) -> None:
    for length in (8, 16):
        (engine,) = opened(runtime, plan, length)
        assert [spec.shape for spec in engine.inputs] == [((1, MAX_BATCH), length)] * 2
        assert [(spec.name, spec.dtype, spec.shape) for spec in engine.outputs] == [
            ("logits", np.dtype("float32"), (-1, CLASSES))
        ]
        # Each shape twice, in varying order: the graph of a shape must not read the data of another.
        for seed, rows in enumerate((1, 4, 2, 1, 3, 4, 2, 3)):
            inputs = batch(rows, length, seed)
            got = engine.run(inputs)["logits"]
            np.testing.assert_array_equal(got, sums(inputs))
            assert got.flags.owndata
        with pytest.raises(InvalidArgument, match="; expected"):
            engine.run(batch(1, length - 1))


def test_any_layout_of_memory_is_read(runtime: Any, plan: Path) -> None:
    (engine,) = opened(runtime, plan, 8)
    inputs = batch(3, 8)
    fortran = {name: np.asfortranarray(array) for name, array in inputs.items()}
    np.testing.assert_array_equal(engine.run(fortran)["logits"], sums(inputs))


def test_all_shapes_are_captured_before_the_first_run_and_only_used_bytes_are_copied(
    runtime: Any, plan: Path, gpu: Gpu
) -> None:
    (engine,) = opened(runtime, plan, 8)
    assert (gpu.captures, gpu.launches) == (MAX_BATCH, 0)
    engine.run(batch(2, 8))
    engine.run(batch(1, 8))
    assert (gpu.captures, gpu.launches) == (MAX_BATCH, 2)
    gpu.copied.clear()
    engine.run(batch(2, 8, seed=1))
    assert (gpu.captures, gpu.launches) == (MAX_BATCH, 3)
    assert gpu.copied == [("in", 2 * 8 * 8)] * 2 + [("out", 2 * CLASSES * 4)]


def test_dynamic_lengths_are_not_captured(runtime: Any, plan: Path, gpu: Gpu) -> None:
    (engine,) = opened(runtime, plan, (1, 16))
    for rows, length in ((1, 5), (3, 16), (1, 1), (1, 5)):
        inputs = batch(rows, length, seed=length)
        np.testing.assert_array_equal(engine.run(inputs)["logits"], sums(inputs))
    assert gpu.captures == 0


def test_an_input_that_stays_on_the_device_is_read_there(runtime: Any, tmp_path: Path, gpu: Gpu) -> None:
    fixed = {"input_ids": ((1, MAX_BATCH), (1, 8)), "attention_mask": (1, 8)}
    path = tmp_path / "model.plan"
    path.write_bytes(write_plan(NAMES, profiles_for(fixed)))
    bank = sys.modules["tidal.engines.cuda"].Buffer(64)
    kept = gpu.array(bank.device, (1, 8), "int64")
    kept[:] = np.arange(8)
    artifact = Artifact("tensorrt", path, "fp32", fixed, "gpu")
    before = len(gpu.memory)
    engine = runtime.open_resident(artifact, {"attention_mask": bank.device})
    assert len(gpu.memory) == before + 2 * 2 + 1  # both sides of the ids and of the logits, intermediate results
    assert [spec.name for spec in engine.inputs] == ["input_ids"]
    for seed in range(3):
        ids = batch(1 + seed, 8, seed)["input_ids"]
        gpu.copied.clear()
        got = engine.run({"input_ids": ids})["logits"]
        np.testing.assert_array_equal(got, sums({"input_ids": ids, "attention_mask": kept}))
        assert [side for side, _ in gpu.copied] == ["in", "out"]
        kept += 1
    with pytest.raises(InvalidArgument, match="input 'input_ids', which stays in device memory, has the shape"):
        runtime.open_resident(artifact, {"input_ids": bank.device})


def test_engines_of_a_file_share_its_weights_and_each_has_a_stream(runtime: Any, plan: Path, gpu: Gpu) -> None:
    engines = [*opened(runtime, plan, 8, contexts=2), *opened(runtime, plan, 16)]
    assert sys.modules["tensorrt"].Runtime.opened == 1
    assert len(gpu.streams) == 3
    inputs = batch(2, 8)
    for engine in engines[:2]:
        np.testing.assert_array_equal(engine.run(inputs)["logits"], sums(inputs))


def test_memory_is_allocated_once_and_freed_with_the_engine(runtime: Any, plan: Path, gpu: Gpu) -> None:
    engines = opened(runtime, plan, 8, contexts=2)
    held = len(gpu.memory)
    assert held == 2 * (2 * 3 + 1)  # engines, sides, tensors, intermediate results of all contexts of an engine
    for engine in engines:
        for rows in (1, 2, 4):
            engine.run(batch(rows, 8))
    assert len(gpu.memory) == held
    del engine, engines
    gc.collect()
    assert not gpu.memory


def test_a_failed_allocation_is_reported(runtime: Any, plan: Path, gpu: Gpu) -> None:
    gpu.full = True
    with pytest.raises(Unavailable, match="CUDA: allocate failed: out of memory"):
        opened(runtime, plan, 8)


def test_a_plan_of_another_version_or_gpu_is_refused(runtime: Any, tmp_path: Path) -> None:
    other = tmp_path / "other.plan"
    other.write_bytes(b"\0\1")
    with pytest.raises(
        InvalidArgument,
        match=r"other.plan cannot be opened by TensorRT .* on Fake GPU: magic tag does not match; a plan runs on",
    ):
        opened(runtime, other, 8)


def test_shapes_and_inputs_that_a_plan_was_not_built_for_are_refused(runtime: Any, plan: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"model.plan was not built for the shapes .*12.*; it has the profiles"):
        opened(runtime, plan, 12)
    artifact = Artifact("tensorrt", plan, "fp16", {"ids": ((1, 4), 8)}, "gpu")
    with pytest.raises(InvalidArgument, match=r"has the inputs \['attention_mask', 'input_ids'\]"):
        runtime.open_engines(artifact, contexts=1, threads=1)


def test_a_single_query_has_a_static_profile() -> None:
    lone, more = profiles_for(shapes(8))
    assert lone["input_ids"] == ((1, 1), (8, 8))
    assert more["input_ids"] == ((2, MAX_BATCH), (8, 8))
    assert [p["input_ids"] for p in profiles_for(shapes(8, max_batch=1))] == [((1, 1), (8, 8))]
    assert [p["input_ids"] for p in profiles_for({"input_ids": (1, 8)})] == [((1, 1), (8, 8))]


def test_an_input_without_a_batch_keeps_its_first_dimension() -> None:
    made = profiles_for({"input_ids": ((1, 4), 8), "bank": (100, 16)})
    assert [p["bank"] for p in made] == [((100, 100), (16, 16))] * 2
    assert [p["input_ids"][0] for p in made] == [(1, 1), (2, 4)]
    assert fixed_dimensions(made) == {"input_ids": (-1, 8), "bank": (100, 16)}


def test_a_dynamic_length_has_profiles_for_each_band() -> None:
    made = [p["input_ids"] for p in profiles_for(shapes((1, 100)))]
    bands = [(1, 32), (33, 64), (65, 100)]
    assert made == [(batch, band) for band in bands for batch in ((1, 1), (2, MAX_BATCH))]
    assert [p["input_ids"][1] for p in profiles_for(shapes((40, 64), max_batch=1))] == [(40, 64)]
    for length in range(1, 101):
        for rows in range(1, MAX_BATCH + 1):
            batch = dict.fromkeys(NAMES, (rows, length))
            assert sum(holds(profile, batch) for profile in profiles_for(shapes((1, 100)))) == 1
    # Prompts of several sizes beside tokens of several lengths have no band in common.
    mixed = {"input_ids": ((1, 4), (1, 100)), "prompts": ((1, 4), (2, 3))}
    assert [p["input_ids"][1] for p in profiles_for(mixed)] == [(1, 100)] * 2


def test_long_inputs_of_a_dynamic_plan_use_the_profile_of_their_band(runtime: Any, tmp_path: Path, gpu: Gpu) -> None:
    path = tmp_path / "long.plan"
    path.write_bytes(write_plan(NAMES, profiles_for(shapes((1, 100)))))
    (engine,) = opened(runtime, path, (1, 100))
    for rows, length in ((1, 100), (3, 7), (2, 64), (1, 33)):
        inputs = batch(rows, length, seed=length)
        np.testing.assert_array_equal(engine.run(inputs)["logits"], sums(inputs))
    assert gpu.captures == 0


def test_shapes_are_served_by_profiles_built_for_them() -> None:
    profiles = [p for length in (8, 16, (1, 16)) for p in profiles_for(shapes(length))]
    assert serving(profiles, shapes(16)) == (2, 3)
    assert serving(profiles, shapes((1, 16))) == (4, 5)
    assert serving(profiles, shapes(12)) == ()
    assert serving(profiles, shapes(16, max_batch=8)) == ()
    assert serving(profiles[:1], shapes(8)) == ()


def test_dimensions_that_all_profiles_agree_on_are_fixed() -> None:
    assert fixed_dimensions(profiles_for(shapes(8)))["input_ids"] == (-1, 8)
    assert fixed_dimensions(profiles_for(shapes(8, max_batch=1)))["input_ids"] == (1, 8)
    several = [p for length in (8, 16) for p in profiles_for(shapes(length))]
    assert fixed_dimensions(several)["input_ids"] == (-1, -1)
