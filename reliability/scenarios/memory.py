"""What a server's memory comes to after rounds of load, on a server of its own, and that a leak would be seen."""

from __future__ import annotations

import shutil

import numpy as np
import psutil

from reliability.bench import Bench
from reliability.load import Load
from reliability.models import Model
from reliability.rows import Row
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


def run(bench: Bench) -> list[Row]:
    """Rounds of load on all models; then the same probe on a model that keeps a MiB of every request."""
    rounds, requests = (_QUICK_ROUNDS, _QUICK_REQUESTS) if bench.quick else (_ROUNDS, _REQUESTS)
    bench.stop()  # another one served requests of many sizes: shared memory never shrinks
    publish(bench.repository.folder, "leaky", code=_LEAKY)
    try:
        return _measure(bench, rounds, requests)
    finally:
        if not bench.quick:
            bench.stop()
        shutil.rmtree(bench.repository.folder / "leaky")


def _measure(bench: Bench, rounds: int, requests: int) -> list[Row]:
    served = bench.served
    sizes, sent, failures = [memory_mb(bench)], 0, list[str]()
    for _ in range(rounds):
        with bench.load(pause_s=0.0) as load:
            load.goes_on(requests)
        sizes.append(memory_mb(bench))
        sent += len(load.sent)
        failures += load.failures()
    before = memory_mb(bench)
    leaks = 10 if bench.quick else _LEAKS
    inputs = {"SECONDS": np.zeros(1, np.float32)}
    leaky = Model("leaky", "", lambda client, n: client.infer("leaky", inputs))
    with Load(served.report["grpc"], served.report["http"], [leaky], pause_s=0.0) as load:
        load.goes_on(leaks)
    seen = memory_mb(bench) - before
    kept = sum(each.answered for each in load.sent) * _LEAK_MB
    trend = " ".join(f"{size:.0f}" for size in sizes)
    return [
        Row(f"memory grown over {rounds} rounds of load", sent, 0, len(failures), sizes[-1] - sizes[0], "MiB",
            f"<= {_MOST_MB:g}", next(iter(failures), f"MiB after each: {trend}")),
        Row("the probe sees a leak (control)", len(load.sent), 0, 0, seen / max(kept, 1), "of it", ">= 0.9",
            f"{kept} MiB leaked, {seen:.0f} seen"),
    ]  # fmt: skip


def memory_mb(bench: Bench) -> float:
    """MiB of the server and its stubs; memory that they share is counted once."""
    return sum(psutil.Process(pid).memory_full_info().pss for pid in bench.processes()) / _MIB
