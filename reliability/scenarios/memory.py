"""Growth of a fresh server's memory over rounds of load, and a control that a leak would be detected."""

from __future__ import annotations

import shutil

import numpy as np
import psutil

from reliability.load import BackgroundLoad
from reliability.models import ServedModel
from reliability.rows import Guarantee
from reliability.server_under_test import ServerUnderTest
from testing.serving import publish

_ROUNDS = 8
_REQUESTS = 1500
_QUICK_ROUNDS, _QUICK_REQUESTS = 2, 100
_MOST_MB = 100.0
_LEAKS, _LEAK_MB = 150, 1
_MIB = 1 << 20
_LEAKY = f"""
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.kept = []

    def execute(self, requests):
        self.kept += [np.ones(({_LEAK_MB} << 20) // 8) for _ in requests]
        slept = pb_utils.Tensor("SLEPT", np.zeros(1, np.float32))
        return [pb_utils.InferenceResponse([slept]) for _ in requests]
"""


def run(target: ServerUnderTest) -> list[Guarantee]:
    """Measure memory over rounds of load on all models, then on a model that leaks a MiB per request."""
    rounds, requests = (_QUICK_ROUNDS, _QUICK_REQUESTS) if target.quick else (_ROUNDS, _REQUESTS)
    target.stop()  # a used server has served requests of many sizes: shared memory never shrinks
    publish(target.repository.folder, "leaky", code=_LEAKY)
    try:
        return _measure(target, rounds, requests)
    finally:
        if not target.quick:
            target.stop()
        shutil.rmtree(target.repository.folder / "leaky")


def _measure(target: ServerUnderTest, rounds: int, requests: int) -> list[Guarantee]:
    served = target.served
    sizes, sent, failures = [memory_mb(target)], 0, list[str]()
    for _ in range(rounds):
        with target.load(pause_s=0.0) as load:
            load.wait_for(requests)
        sizes.append(memory_mb(target))
        sent += len(load.sent)
        failures += load.failures()
    before = memory_mb(target)
    leaks = 10 if target.quick else _LEAKS
    inputs = {"SECONDS": np.zeros(1, np.float32)}
    leaky = ServedModel("leaky", "", lambda client, n: client.infer("leaky", inputs))
    with BackgroundLoad(served.report["grpc"], served.report["http"], [leaky], pause_s=0.0) as load:
        load.wait_for(leaks)
    seen = memory_mb(target) - before
    kept = sum(each.answered for each in load.sent) * _LEAK_MB
    trend = " ".join(f"{size:.0f}" for size in sizes)
    return [
        Guarantee(
            f"memory grown over {rounds} rounds of load",
            sent,
            0,
            len(failures),
            sizes[-1] - sizes[0],
            "MiB",
            f"<= {_MOST_MB:g}",
            next(iter(failures), f"MiB after each: {trend}"),
        ),
        Guarantee(
            "the probe sees a leak (control)",
            len(load.sent),
            0,
            0,
            seen / max(kept, 1),
            "of it",
            ">= 0.9",
            f"{kept} MiB leaked, {seen:.0f} seen",
        ),
    ]


def memory_mb(target: ServerUnderTest) -> float:
    """Return the memory of the server and its stubs, MiB; shared memory is counted once."""
    return sum(psutil.Process(pid).memory_full_info().pss for pid in target.processes()) / _MIB
