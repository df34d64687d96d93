"""Emulated devices: how long they wait, which instances the systems get, and what is reported."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from benchmarks.cluster.emulated import __main__ as emulated
from benchmarks.cluster.emulated import device_model, emulated_device
from benchmarks.cluster.emulated.__main__ import Compared
from benchmarks.cluster.emulated.devices import EmulatedModel, profile_json
from benchmarks.cluster.emulated.emulated_device import EmulatedDevice
from benchmarks.cluster.emulated.plot import plot
from benchmarks.cluster.emulated.runs import EmulatedRun, history_of, requests_of, simulated
from benchmarks.cluster.emulated.systems import ARLO, SYSTEMS, ComparedSystem
from benchmarks.cluster.simulated.figures import FIGURE_6, FIGURE_7
from benchmarks.cluster.simulated.inputs import BASE, MAX_LENGTHS, ClusterData
from benchmarks.report import Report
from tidal.repository.entries import write_atomically
from tidal.simulator.arlo import SystemName

DATA = ClusterData(None)


class TestDevice:
    def test_it_waits_for_the_longest_row_and_answers_zeros(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        utils: Any = ModuleType("triton_python_backend_utils")
        utils.get_input_tensor_by_name = lambda request, name: Tensor(name, request[name])
        utils.Tensor, utils.InferenceResponse = Tensor, list
        monkeypatch.setitem(sys.modules, "triton_python_backend_utils", utils)
        shutil.copy(str(device_model.__file__), tmp_path / "model.py")
        monkeypatch.setitem(sys.modules, "emulated_device", emulated_device)
        (tmp_path / "latencies.json").write_text(json.dumps({"seconds": [9.0, 0.0, 0.05, 0.1], "labels": 3}))
        monkeypatch.setattr(device_model, "__file__", str(tmp_path / "model.py"))
        model = device_model.TritonPythonModel()
        model.initialize({})
        began = time.perf_counter()
        masks = [[[1, 1, 0, 0], [1, 1, 1, 0]], [[1, 1, 0, 0]]]
        answers = model.execute([{"attention_mask": np.array(mask)} for mask in masks])
        assert time.perf_counter() - began >= 0.15
        assert [each[0].name for each in answers] == ["logits", "logits"]
        assert [each[0].as_numpy().tolist() for each in answers] == [[[0.0] * 3] * 2, [[0.0] * 3]]

    def test_it_reads_a_profile_that_changes(self, tmp_path: Path) -> None:
        profile = tmp_path / "latencies.json"
        profile.write_text(profile_json([0.0, 9.0], 3))
        device = EmulatedDevice(profile)
        assert device.zeros(2).tolist() == [[0.0] * 3] * 2
        write_atomically(profile, profile_json([0.0, 0.05], 3))
        began = time.perf_counter()
        device.wait(1, began)
        assert 0.05 <= time.perf_counter() - began < 9

    def test_it_takes_the_time_of_its_runtime_or_of_the_query(self) -> None:
        static = EmulatedModel("m", BASE, 10.0, (1,) * 8)
        assert static.latencies_s(7) == [pytest.approx(0.0486)] * 513
        assert static.slo_ms == 1500
        assert BASE.times.dynamic_s is not None
        found = EmulatedModel("m", BASE, 10.0, (1,) * 8, dynamic=True).latencies_s(7)
        assert found == [pytest.approx(10 * each) for each in BASE.times.dynamic_s]


class Tensor:
    def __init__(self, name: str, array: Any) -> None:
        self.name, self._array = name, array

    def as_numpy(self) -> Any:
        return self._array


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)
def test_every_system_has_the_devices_of_the_paper(system: ComparedSystem) -> None:
    instances = system.instances(FIGURE_6[0], history_of(DATA, FIGURE_6[0]))
    assert (len(instances), sum(instances)) == (len(MAX_LENGTHS), 10)
    assert instances[-1] == 10 or system.kind in (SystemName.ARLO, SystemName.EARLIEST, SystemName.INFAAS)
    requests = requests_of(DATA, FIGURE_6[0], 2, seed=1)
    assert abs(len(requests.times) / 2000 - 1) < 0.2
    latencies = simulated(system, FIGURE_6[0], history_of(DATA, FIGURE_6[0]), requests, 0.001)
    assert len(latencies) == len(requests.times)
    assert latencies.min() > 1.0  # ms


def test_rounds_differ_and_are_not_what_the_instances_were_determined_from() -> None:
    first, second = (requests_of(DATA, FIGURE_6[0], 2, seed=seed) for seed in (0, 1))
    assert not np.array_equal(first.times[:50], second.times[:50])


def compared(mean_ms: float, simulated_ms: float) -> Compared:
    return Compared(EmulatedRun(np.full(50, mean_ms), 0, 0.3), np.full(50, simulated_ms))


def test_ratios_are_by_round_and_claims_name_their_figure(tmp_path: Path) -> None:
    assert compared(10.0, 9.5).errors() == (pytest.approx(0.05), pytest.approx(0.05))
    report = Report("emulated", quick=True)
    rounds = [
        {
            system.name: compared(mean * factor, mean)
            for system, mean in zip(SYSTEMS, (3.0, 2.0, 4.0, 6.0, 5.0, 10.0), strict=True)
        }
        for factor in (1.0, 2.0)
    ]
    for setting in FIGURE_6:
        emulated._add(report, setting, rounds)
    emulated._add_rates(report, FIGURE_7[:2], rounds)
    emulated._fidelity(report, [each[ARLO.name].errors() for each in rounds])
    claims = {claim.name: claim for claim in report.claims}
    assert claims["emulated_mean_vs_dt[figure 6a, inflation 1.22]"].measured == pytest.approx(0.75)
    assert claims["emulated_mean_vs_dt[figure 6a, inflation 1.22]"].paper == "0.763"
    assert claims["emulated_mean_vs_infaas[figure 6b]"].measured == pytest.approx(0.6)
    assert claims["emulated_mean_vs_st[figure 6b]"].measured == pytest.approx(0.3)
    assert claims["emulated_p98_vs_dt[figure 6b, inflation 1.54]"].holds
    assert claims["emulated_mean_vs_dt[figure 6a, inflation 1.22, completion]"].measured == pytest.approx(0.5)
    assert claims["fidelity_mean_error"].measured == pytest.approx(0.25)
    report.measured |= {"stretch": 10.0, "entrances": {"1": [{"mean_ms": 5.0}], "4": [{"mean_ms": 4.0}]}}
    plot(report.document(), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
