"""Claims of the run, each from medians over its rounds."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from benchmarks.flover.equality import Equality
from benchmarks.flover.kept_run import FloverRun
from benchmarks.flover.outcome import FloverOutcome, median_ratio
from benchmarks.flover.plan import REQUESTS, FloverSize, random_lengths, swept, texts, together
from benchmarks.flover.systems import INSTANCES, LABELS, PEERS, TIDAL, UNSHUFFLED
from benchmarks.report import Claim

_PEERS_AT = (8, 32)
_GROWTH = {8: (1.6, "+3%"), 32: (4.5, "+8%")}


@dataclass(frozen=True, slots=True)
class Peer:
    """The fastest peer for a number of simultaneous requests, and Tidal's speedup over it."""

    model: str
    ratio: float


def speedup(run: FloverRun, case: str, over: str = INSTANCES) -> float | None:
    """Return the total time of another system divided by Tidal's; None if one was not measured."""
    ours, theirs = run.rounds(case, TIDAL), run.rounds(case, over)
    count = min(len(ours), len(theirs))
    if not count:
        return None
    return median_ratio(*([each.total_s for each in rounds[:count]] for rounds in (theirs, ours)))


def best_peer(run: FloverRun, count: int) -> Peer | None:
    """Return the peer with the lowest median total time; None if no peer runs."""
    case = together(count)
    found = {model: run.rounds(case, model) for model in PEERS if run.rounds(case, model)}
    if not found:
        return None
    best = min(found, key=lambda model: statistics.median(each.total_s for each in found[model]))
    ratio = speedup(run, case, best)
    return None if ratio is None else Peer(best, ratio)


def growth(run: FloverRun, count: int) -> float | None:
    """Return the mean latency of simultaneous requests divided by that of a single one, from the same round."""
    several, alone = run.rounds(together(count), TIDAL), run.rounds(together(1), TIDAL)
    rounds = min(len(several), len(alone))
    if not rounds:
        return None
    return median_ratio(*([each.latency_s for each in of_case[:rounds]] for of_case in (several, alone)))


def make_claims(run: FloverRun, size: FloverSize, exact: Equality, slots_lost: int | None) -> list[Claim]:
    """Return a claim for everything that could be measured."""
    found = []
    gap_s = size.gaps_s[0]
    if (ratio := speedup(run, swept(gap_s))) is not None:
        note = f"{texts(*size.sweep)}; total time; {_rounds(run.rounds(swept(gap_s), INSTANCES))}"
        name = f"speedup_vs_instances[{REQUESTS},{gap_s * 1e3:g}ms]"
        found.append(Claim(name, ">= 5", ratio, "11.2", note))
    for count in _PEERS_AT:
        if (peer := best_peer(run, count)) is not None:
            note = f"{LABELS[peer.model]}; {size.tokens} tokens each; total time"
            found.append(Claim(f"vs_best_peer[{count}]", ">= 1.0", peer.ratio, note=note))
    for count, (goal, paper) in _GROWTH.items():
        if (ratio := growth(run, count)) is not None:
            note = "mean latency relative to a single request; the paper's figure is on a GPU"
            found.append(Claim(f"latency_growth[{count}]", f"<= {goal}", ratio, paper, note))
    lengths = random_lengths(size.least, size.mosts[-1])
    if (ratio := speedup(run, lengths, UNSHUFFLED)) is not None:
        found.append(Claim("shuffle_gain", ">= 1.1", ratio, "1.2", f"{lengths}, λ {gap_s * 1e3:g} ms; total time"))
    note = f"{exact.equal} of {exact.prompts} prompts, {exact.ties} ties; float32, random arrivals"
    found.append(Claim("token_equality", "== 1.0", exact.share, note=note))
    if slots_lost is not None:
        note = f"{size.cancels} clients cancelled"
        found.append(Claim(f"slots_lost_after_{size.cancels}_cancels", "== 0", slots_lost, note=note))
    return found


def _rounds(outcomes: list[FloverOutcome]) -> str:
    return f"{len(outcomes)} rounds" if len(outcomes) > 1 else "1 round"
