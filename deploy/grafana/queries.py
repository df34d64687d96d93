"""Panels of the dashboard and their queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

RANGE = "[$__rate_interval]"
#: Selectors of each query: the instances and, for metrics with that label, the models selected at the top.
INSTANCE = 'instance=~"$instance"'
SELECTED = f'model=~"$model", {INSTANCE}'

Query = tuple[str, str]  # PromQL, and the legend of its series


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel of the dashboard.

    Attributes:
        title: Title.
        unit: Grafana's name of the unit.
        queries: Queries of its series.
        about: Description: how to read the panel, and what to do about a bad value.
        stacked: Whether series are stacked.
        limits: Thresholds of yellow and red in the unit; empty if no value is bad in itself.
        kind: A chart over time, the latest value, or a table of the latest values.
    """

    title: str
    unit: str
    queries: tuple[Query, ...]
    about: str
    stacked: bool = False
    limits: tuple[float, float] | tuple[()] = ()
    kind: Literal["timeseries", "stat", "table"] = "timeseries"


def rate(family: str, by: str, title: str, where: str = "") -> Query:
    """Rate of a counter per second, by labels."""
    return f"sum by ({by}) (rate({family}{{{SELECTED}{where}}}{RANGE}))", title


def level(family: str, by: str, title: str) -> Query:
    """A gauge, by labels."""
    return f"sum by ({by}) ({family}{{{SELECTED}}})", title


def quantiles(family: str, by: str, title: str, shares: Sequence[float] = (0.5, 0.9, 0.99)) -> tuple[Query, ...]:
    """Quantiles of a histogram, by labels."""
    buckets = f"sum by ({by}, le) (rate({family}_bucket{{{SELECTED}}}{RANGE}))"
    return tuple((f"histogram_quantile({share}, {buckets})", f"{title} p{share * 100:g}") for share in shares)


def mean(family: str, by: str, title: str) -> Query:
    """The mean observation of a histogram, by labels."""
    total, count = (rate(f"{family}_{part}", by, "")[0] for part in ("sum", "count"))
    return f"{total} / {count}", title


def share(part: str, whole: str, by: str, title: str) -> Query:
    """One counter's increase over another's, by labels."""
    return f"{rate(part, by, '')[0]} / {rate(whole, by, '')[0]}", title
