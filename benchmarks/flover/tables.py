"""Tables of the measurements, with the paper's figures."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict

from benchmarks.flover.claims import best_peer, growth, speedup
from benchmarks.flover.equality import Equality
from benchmarks.flover.kept_run import FloverRun
from benchmarks.flover.outcome import FloverOutcome
from benchmarks.flover.plan import REQUESTS, FloverSize, swept, texts, together
from benchmarks.flover.systems import INSTANCES, LABELS, TIDAL
from benchmarks.report import Report

_COLUMNS = [
    "system", "rounds", "total s", "mean latency s", "first token s", "ms/token", "tokens/s", "peak MiB",
    "cores busy", "fused", "Tidal faster",
]  # fmt: skip
#: Figure 5 of the paper by λ in ms: total iterations, overlap, speedup; "" if not legible.
_FIGURE_5 = {
    20: ("", "91.3%", "11.2"),
    50: ("616", "81.8%", "11.1"),
    100: ("", "", "10.2"),
    200: ("", "", "9.1"),
    500: ("2239", "23.2%", "4.5"),
    2000: ("5483", "9.3%", "2.1"),
    5000: ("10694", "4.8%", "1.1"),
}
# Appended to the names of cases with this prefix.
_PAPER = {
    "U": " tokens, λ as the first (Figure 6; paper: Tidal 1.2 times as fast as without shuffle, 23.4 times instances)",
    "constant, 500 ms": " (Figure 7)",
}
#: Table I: generating threads and kernel launches for 32 requests.
_TABLE_I = {INSTANCES: ("32", "32"), TIDAL: ("1", "1")}


def add_search(report: Report, run: FloverRun) -> None:
    """Add the settings tried for the baselines."""
    rows = [
        [what, form, "does not run" if seconds is None else f"{seconds:.2f}", "yes" if taken else ""]
        for what, form, seconds, taken in run.searched
    ]
    report.add_table("search, on requests that are not measured", ["for", "settings", "total s", "chosen"], rows)
    for model in run.peers_s:
        if model not in run.close_peers:
            print(f"{LABELS[model]} took more than twice as long as the fastest peer: measured at the first λ only")
    for model, reason in run.missing.items():
        print(f"{LABELS.get(model, model)} does not run here: {reason}")


def add_cases(report: Report, run: FloverRun) -> None:
    """Add a table per load, with medians over its rounds."""
    for case, of_case in run.outcomes.items():
        rows = [
            [
                LABELS.get(system, system),
                str(len(rounds)),
                *_figures(rounds),
                _ratio(speedup(run, case, system), system),
            ]
            for system, rounds in of_case.items()
            if rounds
        ]
        report.add_table(f"{case}{_PAPER.get(case.split('(')[0], '')}", _COLUMNS, rows)
    used = [each.others for of_case in run.outcomes.values() for rounds in of_case.values() for each in rounds]
    print(f"other work used {statistics.mean(used):.1%} of the cores while loads ran, {max(used):.1%} at most")


def add_growth(report: Report, run: FloverRun, size: FloverSize) -> None:
    """Add latencies by simultaneous requests (Figure 4)."""
    rows = []
    for count in size.at_once:
        rounds = run.rounds(together(count), TIDAL)
        if not rounds:
            continue
        grown, peer = growth(run, count), best_peer(run, count)
        rows.append(
            [
                str(count),
                f"{_median(rounds, lambda each: each.latency_s):.2f}",
                "-" if grown is None else f"{grown:.2f}",
                f"{_median(rounds, lambda each: each.per_second):.0f}",
                "-" if peer is None else f"{peer.ratio:.2f} ({LABELS[peer.model].split(',')[0]})",
            ]
        )
    columns = [
        "requests at once",
        "mean latency s",
        "relative to one (paper: 8 1.03, 32 1.08)",
        "tokens/s",
        "best peer",
    ]
    report.add_table(f"{size.tokens} tokens each: Tidal by requests at once", columns, rows)


def add_sweep(report: Report, run: FloverRun, size: FloverSize) -> None:
    """Add total iterations, overlap and speedup by λ (Figure 5)."""
    rows = []
    for gap_s in size.gaps_s:
        case = swept(gap_s)
        rounds = run.rounds(case, TIDAL)
        if not rounds:
            continue
        iterations, overlap, paper = _FIGURE_5.get(round(gap_s * 1e3), ("", "", ""))
        faster = speedup(run, case)
        rows.append(
            [
                f"{gap_s * 1e3:g}",
                f"{_median(rounds, lambda each: each.total_s):.1f}",
                f"{_median(rounds, lambda each: each.calls):.0f}",
                iterations,
                f"{_median(rounds, lambda each: each.overlap):.1%}",
                overlap,
                "-" if faster is None else f"{faster:.2f}",
                paper,
            ]
        )
    columns = ["λ ms", "Tidal total s", "iterations", "paper", "overlap", "paper", "over instances", "paper"]
    title = f"{REQUESTS} requests of {texts(*size.sweep)} (Figure 5; the paper's have 512)"
    report.add_table(title, columns, rows)


def add_threads(report: Report, run: FloverRun, size: FloverSize) -> None:
    """Add threads, and passes per step (Table I)."""
    case = swept(size.gaps_s[0])
    rows = []
    for system in (INSTANCES, TIDAL):
        for outcome in run.rounds(case, system)[:1]:
            most = int(run.forms[INSTANCES].settings["most"]) if system == INSTANCES else 1
            threads, launches = _TABLE_I[system]
            rows.append(
                [
                    LABELS[system],
                    str(min(REQUESTS, most)),
                    threads,
                    str(outcome.calls),
                    f"{outcome.calls / (size.sweep[1] - 1):.1f}",
                    launches,
                    str(outcome.threads),
                ]
            )
    columns = ["system", "generating threads", "paper", "passes", "for each of a request", "paper", "threads in all"]
    report.add_table(f"{REQUESTS} requests, {case} (Table I)", columns, rows)


def add_equality(report: Report, found: dict[str, Equality]) -> None:
    """Add the equality of served tokens with transformers in float32."""
    rows = [
        [
            precision,
            str(each.prompts),
            str(each.equal),
            str(each.ties),
            f"{each.share:.3f}",
            f"{each.same / each.tokens:.3f}",
        ]
        for precision, each in found.items()
    ]
    columns = ["precision", "prompts", "all tokens equal", "ties", "share", "tokens before a difference"]
    report.add_table("tokens against transformers in float32, prompt by prompt", columns, rows)
    report.measured["equality"] = {precision: asdict(each) for precision, each in found.items()}


def _figures(rounds: Sequence[FloverOutcome]) -> list[str]:
    return [
        f"{_median(rounds, lambda each: each.total_s):.1f}",
        f"{_median(rounds, lambda each: each.latency_s):.2f}",
        f"{_median(rounds, lambda each: each.first_s):.2f}",
        f"{_median(rounds, lambda each: each.token_s) * 1e3:.1f}",
        f"{_median(rounds, lambda each: each.per_second):.0f}",
        f"{_median(rounds, lambda each: each.peak_mib):.0f}",
        f"{_median(rounds, lambda each: each.server):.0%}",
        f"{_median(rounds, lambda each: each.fused):.1f}",
    ]


def _median(rounds: Sequence[FloverOutcome], figure: Callable[[FloverOutcome], float]) -> float:
    return statistics.median(map(figure, rounds))


def _ratio(ratio: float | None, system: str) -> str:
    return "" if ratio is None or system == TIDAL else f"{ratio:.2f}"
