"""Tables of a run of `tidal load`."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tidal_client.load.summary import LatencyFigures, LoadSummary, RequestFigures


def print_report(summary: LoadSummary) -> None:
    """Print throughput and latency in total and by variant, the errors, and the generator's own load."""
    table = Table("requests")
    for name in ("sent", "answered", "per second", "in SLO", "goodput", "mean ms", "p50", "p98", "p99", "max"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_row(*_cells("all", summary.total, summary.total.latency_ms))
    table.add_row(*_cells("all, from send", None, summary.total.latency_from_send_ms))
    for name, row in summary.variants.items():
        table.add_row(*_cells(escape(name), row, row.latency_ms))
    console = Console()
    console.print(f"offered load: {summary.offered_rate:.4g} requests per second; duration: {summary.duration_s:.1f} s")
    console.print(table)
    if summary.total.generation is not None:
        console.print(_generations(summary))
    if summary.total.resent:
        console.print(f"retries: {summary.total.resent}", highlight=False)
    if summary.total.errors:
        errors = Table("error", "requests", "first message")
        for code, count in sorted(summary.total.errors.items(), key=lambda item: -item[1]):
            first = summary.messages[code].partition("\n")[0]
            errors.add_row(f"[red]{code}[/red]", str(count), escape(first))
        console.print(errors)
    generator = summary.generator
    console.print(
        f"generator: send delay p50 {generator.send_lag_ms.p50:.2f} ms, p99 {generator.send_lag_ms.p99:.2f} ms, "
        f"{generator.late_share:.1%} above {generator.late_bound_ms:g} ms; "
        f"CPU {generator.cpu_share:.0%} of a core, {generator.cpu_per_request_ms:.2f} ms per request",
        highlight=False,
        soft_wrap=True,
    )


def _generations(summary: LoadSummary) -> Table:
    """Return tokens per second and token latencies, in total and by variant."""
    table = Table("generations")
    for name in ("tokens", "tokens per second", "mean ms", "p50", "p98", "p99", "max"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, row in {"all": summary.total, **{escape(name): row for name, row in summary.variants.items()}}.items():
        figures = row.generation
        if figures is not None:
            counts = [str(figures.tokens), f"{figures.tokens_per_second:.1f}"]
            table.add_row(f"{name}, time to first token", *counts, *_figures(figures.first_token_ms))
            table.add_row(f"{name}, per further token", "", "", *_figures(figures.inter_token_ms))
    return table


def _figures(latency: LatencyFigures | None) -> list[str]:
    if latency is None:
        return ["-"] * 5
    return [f"{ms:.2f}" for ms in (latency.mean, latency.p50, latency.p98, latency.p99, latency.max)]


def _cells(name: str, row: RequestFigures | None, latency: LatencyFigures | None) -> list[str]:
    counts = [""] * 5
    if row is not None:
        counts = [
            str(row.requests),
            str(row.answered),
            f"{row.throughput:.1f}",
            "-" if row.within_slo is None else f"{row.within_slo / row.requests:.1%}",
            "-" if row.goodput is None else f"{row.goodput:.1f}",
        ]
    return [name, *counts, *_figures(latency)]
