"""Instances that the devices of a host can hold."""

from __future__ import annotations

import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest

from tidal.catalog.graph import PartitionedModel
from tidal.controller.devices import HostDevices
from tidal.controller.fronts import ServedFront
from tidal.controller.reports import ModelProfile
from tidal.device import DeviceKind
from tidal.server.allocate import LiveFront
from tidal.server.control import ServerControl


def front(kind: DeviceKind, share: Fraction | int) -> ServedFront:
    live = LiveFront(ServerControl("127.0.0.1:1", None), "", Path(), PartitionedModel("m", 1, (16,)))
    return ServedFront(live, (1,), ModelProfile((16,), (0.01,), 0.4), kind, Fraction(share))


HOST = HostDevices(cores=8, gpus=2)


@pytest.mark.parametrize(
    ("kind", "share", "instances"),
    [("cpu", 1, 8), ("cpu", 3, 2), ("cpu", 16, 1), ("gpu", 1, 2), ("gpu", Fraction(1, 4), 8)],
)
def test_a_model_has_all_devices_of_its_kind(kind: DeviceKind, share: Fraction | int, instances: int) -> None:
    assert HOST.instances(front(kind, share), []) == instances


def test_other_models_keep_what_they_occupy() -> None:
    others = [(front("cpu", 2), 2), (front("cpu", 1), 1), (front("gpu", 1), 1)]
    assert HOST.instances(front("cpu", 1), others) == 3
    assert HOST.instances(front("cpu", 2), others) == 1
    assert HOST.instances(front("gpu", Fraction(1, 3)), others) == 3


def test_a_model_has_at_least_one_instance() -> None:
    assert HOST.instances(front("gpu", 1), [(front("gpu", 1), 5)]) == 1


def test_without_a_known_device_the_number_is_unknown() -> None:
    assert HostDevices(cores=2, gpus=0).instances(front("gpu", 1), []) is None


def test_devices_are_those_of_the_process() -> None:
    """Not those of the controller, which may run with other ones."""
    core = min(os.sched_getaffinity(0))
    command = [sys.executable, "-c", f"import os; os.sched_setaffinity(0, [{core}]); print(flush=True); input()"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "3,GPU-a"}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert HostDevices.of_process(process.pid) == HostDevices(cores=1, gpus=2)
        process.communicate(b"\n")
    with pytest.raises(OSError):  # noqa: PT011
        HostDevices.of_process(process.pid)
