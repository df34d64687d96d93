"""What identifies a device, with a stand-in for CUDA's runtime where there is no GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tidal.device import Device, gpu
from tidal.engines import choose_device
from tidal.errors import Unsupported


@pytest.fixture
def with_driver(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Device]:
    def describe(driver: int, capability: tuple[int, int] = (9, 0)) -> Device:
        properties = SimpleNamespace(name=b"NVIDIA H200\0\0", major=capability[0], minor=capability[1])
        runtime: Any = ModuleType("cuda.bindings.runtime")
        runtime.cudaError_t = SimpleNamespace(cudaSuccess=0)
        runtime.cudaDriverGetVersion = lambda: (0, driver)
        runtime.cudaGetDeviceProperties = lambda _number: (0, properties)
        bindings: Any = ModuleType("cuda.bindings")
        bindings.runtime = runtime
        monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
        monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
        monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", runtime)
        return gpu.__wrapped__()

    return describe


def test_a_new_driver_is_the_same_device(with_driver: Callable[..., Device]) -> None:
    found = with_driver(12090)
    assert found == Device(kind="gpu", name="NVIDIA H200", features=("compute capability 9.0",))
    assert with_driver(13010) == found
    assert with_driver(13010, (10, 0)) != found


def test_without_a_driver_there_is_no_device(with_driver: Callable[..., Device]) -> None:
    with pytest.raises(Unsupported, match="no NVIDIA driver is installed"):
        with_driver(0)


@pytest.mark.parametrize(("engine", "chosen"), [("torch", "gpu"), ("openvino", "cpu")])
def test_auto_is_a_gpu_for_engines_that_run_on_one(monkeypatch: pytest.MonkeyPatch, engine: str, chosen: str) -> None:
    monkeypatch.setattr("tidal.engines.registry.has_gpu", lambda: True)
    assert choose_device(engine, "auto") == chosen
