"""Panels, and the queries that they are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_RANGE = "[$__rate_interval]"
_MODEL = 'model=~"$model"'

Query = tuple[str, str]  # PromQL, and how its series are called


@dataclass(frozen=True, slots=True)
class Panel:
    """A time series panel; `unit` is Grafana's name of it."""

    title: str
    unit: str
    queries: tuple[Query, ...]
    stacked: bool = False


def rate(family: str, by: str, title: str, where: str = "") -> Query:
    """A counter's increase a second, by labels."""
    return f"sum by ({by}) (rate({family}{{{_MODEL}{where}}}{_RANGE}))", title


def level(family: str, by: str, title: str) -> Query:
    """A gauge, by labels."""
    return f"sum by ({by}) ({family}{{{_MODEL}}})", title


def quantiles(family: str, by: str, title: str, shares: Sequence[float] = (0.5, 0.9, 0.99)) -> tuple[Query, ...]:
    """Quantiles of a histogram, by labels."""
    buckets = f"sum by ({by}, le) (rate({family}_bucket{{{_MODEL}}}{_RANGE}))"
    return tuple((f"histogram_quantile({share}, {buckets})", f"{title} p{share * 100:g}") for share in shares)


def mean(family: str, by: str, title: str) -> Query:
    """The mean observation of a histogram, by labels."""
    total, count = (rate(f"{family}_{part}", by, "")[0] for part in ("sum", "count"))
    return f"{total} / {count}", title


def share(part: str, whole: str, by: str, title: str) -> Query:
    """One counter's increase over another's, by labels."""
    return f"{rate(part, by, '')[0]} / {rate(whole, by, '')[0]}", title
