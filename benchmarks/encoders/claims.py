"""Claims of the comparison, from the measurements of a run: each is the median of the ratios within the rounds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.encoders.cells import Case
from benchmarks.encoders.run import EncoderCell, EncoderRun
from benchmarks.encoders.source import TASKS
from benchmarks.encoders.systems import ONNX, PEERS, TIDAL, TORCH
from benchmarks.encoders.workload import Traffic
from benchmarks.report import Claim

#: Traffic that claims are made of.
CLAIMED: Mapping[str, Traffic] = {"embed": Traffic("embed", "tweets"), "rerank": Traffic("rerank", "documents")}
#: Numbers of requests in flight, and the goal at each.
GOALS: Mapping[int, str] = {1: ">= 1.0", 8: ">= 1.15", 32: ">= 1.15", 64: ">= 1.15"}
_Rounds = Mapping[str, Sequence[EncoderCell]]


def make_claims(run: EncoderRun) -> list[Claim]:
    """Return the claims of throughput and latency that a run has measurements for."""
    claims = []
    for task in TASKS:
        for in_flight, goal in GOALS.items():
            rounds = run.cells.get(Case(CLAIMED[task], in_flight).name, {})
            if peer := best_peer(rounds, PEERS):
                claims.append(_throughput(f"throughput_vs_best_peer[{task},{in_flight}]", goal, rounds, peer))
    rounds = run.cells.get(Case(CLAIMED["embed"], 32).name, {})
    if peer := best_peer(rounds, (TORCH, ONNX)):
        claims.append(_throughput("throughput_vs_infinity[embed,32]", ">= 1.5", rounds, peer))
    rounds = run.cells.get(Case(CLAIMED["embed"], share=0.7).name, {})
    peers = [system for system in PEERS if rounds.get(system)]
    if peers and rounds.get(TIDAL):
        peer = min(peers, key=lambda system: statistics.median(cell.p99_ms for cell in rounds[system]))
        ratios = ratios_of(rounds, peer, "p99_ms")
        claims.append(Claim("p99_vs_best_peer[70]", "<= 1.0", statistics.median(ratios), note=_note(ratios, peer)))
    return claims


def best_peer(rounds: _Rounds, peers: Sequence[str]) -> str | None:
    """Return the peer with the largest median of requests per second; None if none, or Tidal, was not measured.

    Args:
        rounds: Measurements of a case by system.
        peers: Names of the peers.
    """
    measured = [system for system in peers if rounds.get(system)]
    if not measured or not rounds.get(TIDAL):
        return None
    return max(measured, key=lambda system: statistics.median(cell.per_second for cell in rounds[system]))


def ratios_of(rounds: _Rounds, peer: str, figure: str) -> list[float]:
    """Return the ratio of Tidal's figure to a peer's in each round."""
    pairs = zip(rounds[TIDAL], rounds[peer], strict=False)  # a peer that failed has fewer rounds
    return [getattr(ours, figure) / getattr(theirs, figure) for ours, theirs in pairs]


def _throughput(name: str, goal: str, rounds: _Rounds, peer: str) -> Claim:
    ratios = ratios_of(rounds, peer, "per_second")
    return Claim(name, goal, statistics.median(ratios), note=_note(ratios, peer))


def _note(ratios: Sequence[float], peer: str) -> str:
    return f"{peer}; rounds {min(ratios):.2f} to {max(ratios):.2f}"
