"""The compared systems: what each is started with, and the settings that are searched."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.environments import INFINITY, SERVERS

#: Tidal over HTTP, by the same sender as the others, and over gRPC.
TIDAL, TIDAL_GRPC = "tidal", "tidal, gRPC"
TORCH, ONNX = "infinity, torch", "infinity, ONNX"
LITSERVE, RAY, FASTAPI = "LitServe", "Ray Serve", "FastAPI"
#: In process, without a server: a floor, not a peer.
FASTEMBED = "FastEmbed, in process"
PEERS = (FASTAPI, LITSERVE, RAY, TORCH, ONNX)
#: Concurrencies that settings are searched at: the first is used for one request in flight, the other for more.
SEARCHED: tuple[int, int] = (1, 32)
_CORES = len(os.sched_getaffinity(0))
Settings = Mapping[str, int | float | str]


@dataclass(frozen=True, slots=True)
class Program:
    """How a peer is started.

    Attributes:
        script: File in `serving`.
        environment: Environment that it runs in.
        health: Path that answers as soon as it serves.
    """

    script: str
    environment: str
    health: str = "/health"


PROGRAMS: Mapping[str, Program] = {
    FASTAPI: Program("fastapi_server.py", SERVERS),
    LITSERVE: Program("litserve_server.py", SERVERS),
    RAY: Program("ray_server.py", SERVERS),
    TORCH: Program("infinity_server.py", INFINITY),
    ONNX: Program("infinity_server.py", INFINITY),
    FASTEMBED: Program("fastembed_worker.py", SERVERS),
}


@dataclass(frozen=True)
class Form:
    """A peer with its settings.

    Attributes:
        system: Name of the peer.
        settings: Settings of its program.
    """

    system: str
    settings: Settings = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Settings in words, for tables."""
        given = self.settings
        parts = []
        if "workers" in given:
            parts.append(f"{given['workers']} x {given['threads']} threads")
        if "jobs" in given:
            parts.append(f"{given['streams']} streams, {given['jobs']} requests")
        if "max_batch" in given:
            parts.append(f"batches up to {given['max_batch']}")
        if given.get("wait_s"):
            parts.append(f"wait {float(given['wait_s']) * 1e3:g} ms")
        parts += [word for name, word in (("compile", "compiled"), ("fused", "BetterTransformer")) if given.get(name)]
        return ", ".join(parts)


def forms(system: str, *, quick: bool) -> list[Form]:
    """Return the settings of a system to try; with `quick` the ones that won most often in full searches.

    Args:
        system: Name of the peer.
        quick: Whether to return one only.
    """
    found = [Form(system, settings) for settings in _SPACES[system]()]
    return found[:1] if quick else found


def _fastapi() -> list[Settings]:
    shapes = [(1, _CORES, _CORES), (1, _CORES, 2 * _CORES), (1, 1, 1), (1, 1, 2)]
    found: list[Settings] = [
        {"workers": workers, "threads": _CORES, "streams": streams, "jobs": jobs} for workers, streams, jobs in shapes
    ]
    return [*found, {"workers": _CORES, "threads": 1, "streams": 1, "jobs": 2}]


def _litserve() -> list[Settings]:
    # Without a wait its workers poll: 1.5 of 2 cores while idle.
    return _batching(((8, 0.001), (32, 0.001), (8, 0.0), (1, 0.0), (8, 0.005)))


def _ray() -> list[Settings]:
    return _batching(((8, 0.0), (32, 0.0), (8, 0.005)))


def _batching(batches: tuple[tuple[int, float], ...]) -> list[Settings]:
    """Workers of one thread each, and one worker of all threads; each with every kind of batching."""
    return [
        {"workers": workers, "threads": _CORES // workers, "max_batch": most, "wait_s": wait_s}
        for workers in (_CORES, 1)
        for most, wait_s in batches
    ]


def _torch() -> list[Settings]:
    forms: list[Settings] = [{"max_batch": 8, "compile": 1}, {"max_batch": 32, "compile": 1}]
    forms += [{"max_batch": most} for most in (8, 32)] + [{"max_batch": most, "fused": 1} for most in (8, 32)]
    return [{"engine": "torch", "threads": _CORES, **form} for form in forms]


def _onnx() -> list[Settings]:
    return [{"engine": "optimum", "threads": _CORES, "max_batch": most} for most in (8, 32, 64)]


def _fastembed() -> list[Settings]:
    return [{"threads": _CORES, "max_batch": most} for most in (8, 32, 1)]


_SPACES = {
    FASTAPI: _fastapi,
    LITSERVE: _litserve,
    RAY: _ray,
    TORCH: _torch,
    ONNX: _onnx,
    FASTEMBED: _fastembed,
}
