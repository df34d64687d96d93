"""Calls of the plan builder to TensorRT, which is a mock; the type check covers the signatures of the calls."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from tests.engines.fake_gpu import ILogger
from tidal import device
from tidal.device import Device
from tidal.engines import PlanOptions
from tidal.errors import Internal

NAMES = ("input_ids", "attention_mask")


class TensorRt:
    """A mock of the module `tensorrt` and of the objects that it creates."""

    def __init__(self) -> None:
        self.module = MagicMock()
        self.module.ILogger = ILogger
        self.module.Dims = list
        self.module.NetworkDefinitionCreationFlag.STRONGLY_TYPED = 1
        self.builder = self.module.Builder.return_value
        self.config = self.builder.create_builder_config.return_value
        self.network = self.builder.create_network.return_value
        self.tensors = [MagicMock() for _ in NAMES]
        for tensor, name in zip(self.tensors, NAMES, strict=True):
            tensor.name = name
        self.network.num_inputs = len(NAMES)
        self.network.get_input.side_effect = self.tensors
        self.config.add_optimization_profile.return_value = 0
        self.config.create_timing_cache.return_value.serialize.return_value = b"timings"
        self.builder.build_serialized_network.return_value = b"plan"

    @property
    def profiles(self) -> list[Any]:
        """Bounds of `input_ids` (min, opt, max) in each profile."""
        calls = self.builder.create_optimization_profile.return_value.set_shape.call_args_list
        return [call.args[1:] for call in calls if call.args[0] == "input_ids"]


@pytest.fixture
def trt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[TensorRt]:
    made = TensorRt()
    monkeypatch.setitem(sys.modules, "tensorrt", made.module)
    monkeypatch.setattr(device, "gpu", lambda: Device(kind="gpu", name="Fake GPU"))
    monkeypatch.setattr("tidal.engines.cuda.runtime", MagicMock())
    monkeypatch.setenv("TIDAL_CACHE", str(tmp_path / "cache"))
    for name in [name for name in sys.modules if name.startswith("tidal.engines.tensorrt")]:
        monkeypatch.delitem(sys.modules, name)
    yield made
    for name in [name for name in sys.modules if name.startswith("tidal.engines.tensorrt")]:
        del sys.modules[name]


def specialise(folder: Path, *lengths: int | tuple[int, int], max_batch: int = 4, **options: Any) -> tuple[Path, ...]:
    onnx = folder / "model.onnx"
    onnx.touch()
    shapes = [dict.fromkeys(NAMES, ((1, max_batch), length)) for length in lengths]
    build = importlib.import_module("tidal.engines.tensorrt.build")
    made: tuple[Path, ...] = build.specialise_engine(onnx, shapes, PlanOptions(**options))
    return made


def test_a_shared_plan_has_every_lengths_profiles(trt: TensorRt, tmp_path: Path) -> None:
    paths = specialise(tmp_path, 8, 16)
    assert paths[0] == paths[1]
    assert paths[0].read_bytes() == b"plan"
    assert trt.profiles == [
        ([1, 8], [1, 8], [1, 8]),
        ([2, 8], [4, 8], [4, 8]),
        ([1, 16], [1, 16], [1, 16]),
        ([2, 16], [4, 16], [4, 16]),
    ]
    assert [tensor.shape for tensor in trt.tensors] == [[-1, -1]] * 2
    assert trt.config.add_optimization_profile.call_count == 4


def test_separate_plans_fix_their_length_in_the_network(trt: TensorRt, tmp_path: Path) -> None:
    trt.network.get_input.side_effect = trt.tensors * 2
    paths = specialise(tmp_path, 8, 16, plans="separate", max_batch=1)
    assert len(set(paths)) == 2
    assert [tensor.shape for tensor in trt.tensors] == [[1, 16]] * 2
    assert trt.profiles == [([1, 8],) * 3, ([1, 16],) * 3]


def test_a_plan_is_built_once(trt: TensorRt, tmp_path: Path) -> None:
    assert specialise(tmp_path, 8) == specialise(tmp_path, 8)
    assert trt.builder.build_serialized_network.call_count == 1
    trt.network.get_input.side_effect = trt.tensors
    assert specialise(tmp_path, 8, workspace_mb=64) != specialise(tmp_path, 8)


def test_options_and_the_network_are_as_specified(trt: TensorRt, tmp_path: Path) -> None:
    specialise(tmp_path, 8, workspace_mb=64, hardware_compatibility="ampere_plus")
    trt.builder.create_network.assert_called_once_with(1 << 1)
    trt.config.clear_flag.assert_called_once_with(trt.module.BuilderFlag.TF32)
    trt.config.set_memory_pool_limit.assert_called_once_with(trt.module.MemoryPoolType.WORKSPACE, 64 << 20)
    assert trt.config.hardware_compatibility_level is trt.module.HardwareCompatibilityLevel.AMPERE_PLUS


def test_timings_are_kept_for_later_builds(trt: TensorRt, tmp_path: Path) -> None:
    specialise(tmp_path, 8)
    (kept,) = (tmp_path / "cache" / "tensorrt").iterdir()
    assert kept.read_bytes() == b"timings"
    trt.network.get_input.side_effect = trt.tensors
    specialise(tmp_path, 16)
    assert [call.args for call in trt.config.create_timing_cache.call_args_list] == [(b"",), (b"timings",)]


def test_errors_contain_tensorrts_reason(trt: TensorRt, tmp_path: Path) -> None:
    parser = trt.module.OnnxParser.return_value
    parser.parse_from_file.return_value = False
    parser.num_errors, parser.get_error.side_effect = 1, ["no importer for Foo"]
    with pytest.raises(Internal, match=r"cannot read .*model.onnx: no importer for Foo"):
        specialise(tmp_path, 8)
    parser.parse_from_file.return_value = True
    trt.builder.build_serialized_network.return_value = None
    trt.network.get_input.side_effect = trt.tensors * 3
    with pytest.raises(Internal, match=r"cannot build a plan from .*model.onnx: no reason was logged"):
        specialise(tmp_path, 8)
    # TensorRT keeps the first logger of a process: it must be that of all later builds, too.
    first, second = (call.args[0] for call in trt.module.Builder.call_args_list[:2])
    assert first is second
    first.log(ILogger.Severity.ERROR, "no kernel\n for Foo")
    with pytest.raises(Internal, match=r"model.onnx: no kernel for Foo$"):
        specialise(tmp_path, 8)
    with pytest.raises(Internal, match=r"no reason was logged"):
        specialise(tmp_path, 8)
    assert not list(tmp_path.glob("*.plan"))
