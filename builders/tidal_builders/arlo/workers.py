"""The number of engines that run a text classifier at the same time, and the CPU threads of each."""

from __future__ import annotations

import os
from dataclasses import dataclass

from tidal.engines import choose_device, engine_entry
from tidal_builders.arlo.spec import ArloSpec

# Encoders of usual size scale badly beyond this number of threads.
_MAX_THREADS = 4


@dataclass(frozen=True, slots=True)
class Workers:
    """Engines that run concurrently.

    Attributes:
        contexts: Number of engines.
        threads: CPU threads of each engine.
    """

    contexts: int
    threads: int


def default_workers(spec: ArloSpec) -> Workers:
    """The spec's workers, or this machine's default: one engine per 4 cores.

    An instance of a partitioned model has one core. On a GPU there is one engine: a batch uses all of the GPU.
    """
    if choose_device(spec.engine, spec.device) == "gpu":
        return Workers(spec.contexts or 1, spec.threads or 1)
    cores = len(os.sched_getaffinity(0))
    threads = spec.threads or (1 if spec.placement == "partitioned" else min(_MAX_THREADS, cores))
    return Workers(spec.contexts or max(1, cores // threads), threads)


def one_per_thread(spec: ArloSpec) -> Workers | None:
    """The alternative use of the same threads, for a server to choose by load: one single-threaded engine per thread.

    Returns:
        The workers; None where the spec fixes them, or where the engine has one thread count per process.
    """
    default = default_workers(spec)
    fixed = bool(spec.threads or spec.contexts)
    if fixed or engine_entry(spec.engine).threads_per_process or default.threads == 1:
        return None
    return Workers(default.contexts * default.threads, 1)
