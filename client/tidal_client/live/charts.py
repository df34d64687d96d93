"""The charts of each system: one entry adds one. A chart computes the values of its series from a window."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tidal_client.live.figures import Window

Values = dict[str, float]
#: Computes the values of a chart: by name of its series, from a window, for a model.
Compute = Callable[[Window, str], Values]

_SHARES: Final = {"p50": 0.5, "p99": 0.99}
_USUAL: Final = frozenset({"OK", "in_time"})


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart.

    Attributes:
        name: Name that is unique in its system.
        title: Title.
        unit: Unit of the values; empty for a number without one.
        compute: Computes the values.
    """

    name: str
    title: str
    unit: str
    compute: Compute


def rate(family: str, label: str = "", prefix: str = "") -> Compute:
    """Increase per second of a counter, one series for each value of a label."""
    return lambda window, model: _named(window.rate(family, model, label), prefix)


def gauges(families: Mapping[str, str]) -> Compute:
    """Latest values of several gauges, by the name of the series."""

    def compute(window: Window, model: str) -> Values:
        found = {name: window.gauge(family, model) for name, family in families.items()}
        return {name: values[""] for name, values in found.items() if values}

    return compute


def quantiles(family: str, scale: float = 1.0) -> Compute:
    """Median and 99th percentile of a histogram, times a factor."""

    def compute(window: Window, model: str) -> Values:
        found = window.quantiles(family, model, list(_SHARES.values()))
        return {name: value * scale for name, value in zip(_SHARES, found, strict=True) if value is not None}

    return compute


def mean(family: str, label: str = "", prefix: str = "", scale: float = 1.0) -> Compute:
    """Mean of a histogram, one series for each value of a label, times a factor."""

    def compute(window: Window, model: str) -> Values:
        found = window.mean(family, model, label)
        return _named({name: value * scale for name, value in found.items()}, prefix)

    return compute


def distribution(family: str) -> Compute:
    """Mean and 99th percentile of a histogram with few buckets, of which the mean alone is exact."""

    def compute(window: Window, model: str) -> Values:
        (most,) = window.quantiles(family, model, [_SHARES["p99"]])
        found = {"mean": window.mean(family, model).get(""), "p99": most}
        return {name: value for name, value in found.items() if value is not None}

    return compute


def ratios(pairs: Mapping[str, tuple[str, str]], scale: float = 1.0) -> Compute:
    """Increase of one counter for each of another, by the name of the series, times a factor."""

    def compute(window: Window, model: str) -> Values:
        found = {name: window.ratio(above, below, model) for name, (above, below) in pairs.items()}
        return {name: value * scale for name, value in found.items() if value is not None}

    return compute


def _named(values: Mapping[str, float], prefix: str) -> Values:
    # Numbers ascend as numbers: a runtime of 64 tokens comes before one of 128.
    # The usual outcome comes first.
    def rank(name: str) -> tuple[bool, bool, float, str]:
        return name not in _USUAL, not _is_number(name), float(name) if _is_number(name) else 0.0, name

    ordered = sorted(values, key=rank)
    return {f"{prefix}{name}" if name else "all": values[name] for name in ordered}


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).replace("-", "", 1).isdecimal()


def _common(system: str, queue: Mapping[str, str]) -> tuple[Chart, ...]:
    family = f"tidal_{system}_"
    return (
        Chart("throughput", "Throughput", "requests/s", rate(f"{family}requests", "code")),
        Chart("latency", "Latency", "ms", quantiles(f"{family}request_seconds", 1e3)),
        Chart("queue", "Queue", "queries", gauges(queue)),
    )


def _queries(system: str) -> tuple[Chart, ...]:
    """Charts of a system with a queue of queries and batches."""
    family = f"tidal_{system}_"
    queue = {"waiting": f"{family}waiting_queries", "in flight": f"{family}in_flight_queries"}
    return (
        *_common(system, queue),
        Chart("batch", "Batch size", "queries", mean(f"{family}batch_size_queries")),
    )


def _tasks(system: str) -> Chart:
    family = f"tidal_{system}_tasks"
    names = {"in memory": f"{family}_resident", "loading": f"{family}_loading", "in the folder": family}
    return Chart("tasks", "Tasks", "tasks", gauges(names))


#: Charts by system; the empty name is for models of other backends, which have Triton's own metrics only.
CHARTS: Final[Mapping[str, tuple[Chart, ...]]] = {
    "arlo": (
        *_queries("arlo"),
        Chart("runtimes", "Queries by runtime", "queries/s", rate("tidal_arlo_executed_queries", "runtime", "≤ ")),
        Chart("lengths", "Query lengths", "tokens", distribution("tidal_arlo_query_length_tokens")),
    ),
    "tabi": (
        *_common("tabi", {"in flight": "tidal_tabi_in_flight_queries"}),
        Chart("batch", "Batch size of levels", "queries", mean("tidal_tabi_runtime_batch_size_queries")),
        Chart("levels", "Answers by level", "queries/s", rate("tidal_tabi_answered_queries", "level", "level ")),
        Chart("confidence", "Mean confidence", "", mean("tidal_tabi_confidence", "level", "level ")),
    ),
    "pets": (
        *_queries("pets"),
        _tasks("pets"),
        Chart("distinct", "Tasks in a batch", "tasks", mean("tidal_pets_batch_distinct_tasks")),
    ),
    "otas": (
        *_queries("otas"),
        Chart("gamma", "Queries by γ", "queries/s", rate("tidal_otas_executed_queries", "gamma", "γ ")),
        Chart("utility", "Utility", "per s", rate("tidal_otas_utility", "outcome")),
        _tasks("otas"),
    ),
    "flover": (
        *_common("flover", {
            "waiting": "tidal_flover_waiting_generations", "running": "tidal_flover_running_generations",
        }),
        Chart("batch", "Generations in a step", "generations", mean("tidal_flover_fused_generations")),
        Chart("slots", "Slots", "slots", gauges({
            "running": "tidal_flover_running_slots", "taken": "tidal_flover_taken_slots",
            "waiting": "tidal_flover_waiting_slots",
        })),
        Chart("tokens", "Generated tokens", "tokens/s", rate("tidal_flover_generated_tokens")),
        Chart("first", "Time to first token", "ms", quantiles("tidal_flover_time_to_first_token_seconds", 1e3)),
    ),
    "": (
        Chart("throughput", "Throughput", "requests/s", rate("nv_inference_request_success")),
        Chart("latency", "Mean latency", "ms", ratios(
            {"mean": ("nv_inference_request_duration_us", "nv_inference_request_success")}, 1e-3
        )),
        Chart("queue", "Queue", "queries", gauges({"waiting": "nv_inference_pending_request_count"})),
        Chart("batch", "Batch size", "queries", ratios({"all": ("nv_inference_count", "nv_inference_exec_count")})),
    ),
}  # fmt: skip


def system_of(families: set[str]) -> str:
    """Return the system of a model by the names of its families; empty for other backends."""
    for system in CHARTS:
        if system and any(name.startswith(f"tidal_{system}_") for name in families):
            return system
    return ""


def values_of(window: Window, model: str, system: str) -> dict[str, Values]:
    """Return the values of all charts of a model, by name of the chart."""
    return {chart.name: chart.compute(window, model) for chart in CHARTS[system]}
