"""Inputs of the simulation: published figures of OTAS, and assumptions, all of which are listed in `ASSUMED`."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import RESULTS
from tidal.otas.profile import GammaLatency, Profile
from tidal.simulator.otas import ModelVariant, QueryTrace, QueryType, fluctuating, squeezed
from tidal.simulator.traces import read_rates

GAMMAS = (-20, -15, -10, -5, 0, 2, 4, 8)
TABLE_1 = ((279, 8), (319, 4), (348, 2), (379, 0), (449, -5), (519, -10), (999, -15))
TABLE_2 = (
    QueryType("CIFAR10", 0.6, 0.3),
    QueryType("CIFAR10", 1.0, 0.01),
    QueryType("CIFAR100", 0.6, 1.0),
    QueryType("CIFAR100", 1.0, 0.2),
    QueryType("EuroSAT", 0.6, 0.3),
    QueryType("EuroSAT", 1.0, 0.01),
)
#: γ and queries a second that the text of §II-B, §II-C and §III-C names.
NAMED_THROUGHPUT = ((-25, 1500.0), (-15, 1000.0), (0, 580.0), (32, 220.0))
#: The rates up to which Table I keeps a γ, as what it really sustains; beyond -15 by Figure 4's ratio.
TABLE_1_THROUGHPUT = {8: 279.0, 4: 319.0, 2: 348.0, 0: 379.0, -5: 449.0, -10: 519.0, -15: 999.0, -20: 1224.0}
_SINGLE_S, _CONVERGED = 0.010, 20
ACCURACIES = {
    "CIFAR10": dict(zip(GAMMAS, (0.715, 0.930, 0.940, 0.947, 0.950, 0.967, 0.969, 0.970), strict=True)),
    "CIFAR100": dict(zip(GAMMAS, (0.445, 0.610, 0.624, 0.630, 0.634, 0.770, 0.780, 0.788), strict=True)),
    "EuroSAT": dict(zip(GAMMAS, (0.680, 0.855, 0.865, 0.872, 0.875, 0.952, 0.957, 0.961), strict=True)),
}
#: Model sizes, ascending by accuracy. ViT-Base is γ 0.
VARIANTS = {
    "ViT-Small": ModelVariant(1740.0, 0.19, {"CIFAR10": 0.90, "CIFAR100": 0.55, "EuroSAT": 0.84}),
    "ViT-Base": ModelVariant(580.0, 0.44, {task: by_gamma[0] for task, by_gamma in ACCURACIES.items()}),
    "ViT-Large": ModelVariant(175.0, 1.32, {"CIFAR10": 0.97, "CIFAR100": 0.70, "EuroSAT": 0.90}),
}

#: Highest rates at which Table I adds prompts, and at which it leaves tokens unchanged.
_PROMPTED, _UNCHANGED = 348.0, 379.0
#: Highest rate of each model size, from fast to accurate, where sizes are selected as Table I selects γ.
PUBLISHED_SIZES = (math.inf, _UNCHANGED, _PROMPTED)
#: Names of the sizes in the results of the live part.
LIVE_SIZES = {"ViT-Small": "size_small", "ViT-Base": "size_base", "ViT-Large": "size_large"}
#: Utility on the synthetic trace: OTAS's as published, the others' from what it gains over them (18.2 and 72.5 %).
PUBLISHED_UTILITY = {"OTAS": 1.46e5, "PetS": 1.46e5 / 1.182, "INFaaS": 1.46e5 / 1.725}
#: Utility of all its queries: 350 a second for 30 minutes, of Table II's types in equal parts.
PUBLISHED_OFFERED = 350 * 1800 * sum(each.utility for each in TABLE_2) / len(TABLE_2)

READ_OFF = (
    "throughput 580 a second at γ 0, 220 at 32, 1500 at -25 (§II), 1000 at -15 in batches of 20 and more, 100 alone "
    "(§III-C)",
    "Table I is f(q), Table II the query types; γ list, δ 0.5 s, ε 64, η 0.5 s, μ 0.8, β 5, κ 0.8, 2 s at first (§V)",
    "accuracy falls slightly to γ -15, then to 50 % (CIFAR10) and 28 % (CIFAR100) at -25; two prompts a layer help "
    "most, more of them a little (§II)",
    "the synthetic trace: 200 to 700 queries a second, which vary 'in each second' (§V), about 350 on the mean, for 30 "
    "minutes (§V says 'more than 63k queries', which would be 35 a second, and utilities of 1.46e5, which is more "
    "than 63k queries can earn)",
    "the MAF trace: more than 60 % of the seconds below 300 a second, some above 600; 3,600 s, which are 120 h",
)
ASSUMED = (
    "throughput between the named γ is exponential in γ; every γ takes 10 ms for a lone query, and a straight line "
    "leads from there to a batch of 20",
    "accuracy at γ 0 and 8: a linear head's and deep prompts' on the same frozen ViT-B/16 (ImageNet-21k), as "
    "published for VTAB-1k's CIFAR-100 (63.4, 78.8 %) and EuroSAT (87.5, 96.1 %); CIFAR10 95 and 97 %; at -20 half "
    "way from -15 to -25",
    "ViT-Small is 3 times as fast as ViT-Base, ViT-Large 3.3 times slower; they load at 1 GB a second and 0.1 s "
    "(0.19, 0.44, 1.32 s); the larger a model, the more accurate its head",
    "INFaaS (strong) looks at the load once a second and takes the largest model that sustains it; PetS, ToMe and VPT "
    "run Algorithm 1's batches by deadline",
    "an answer earns its utility times its task's accuracy, rather than all or nothing at random",
)
#: What the setting "as published" rests on where the paper does not say it.
INFERRED = (
    "as published is the synthetic trace with the throughput of Table I, by which the paper's own f(q) chooses: of the "
    "two throughputs it is the one with which PetS is closer to what the published gain over it says",
    "INFaaS (as published) takes the sizes at the rates at which Table I chooses γ: ViT-Large where it adds prompts "
    "(up to 348 a second), ViT-Base at γ 0 (up to 379), else ViT-Small. The paper says that INFaaS selects 'according "
    "to the query load', has 'a stronger model' and 'a longer inference time that leads to a higher eviction ratio'; "
    "it gives no rule, and by what a size sustains, ViT-Large would never be chosen at 200 to 700 a second",
    "its sizes take as long to load as Triton took for those of the live part on two cores, where a process starts "
    "with each; a size that was not loaded there takes as long as the slowest. The paper says 'a long I/O latency to "
    "switch the models', and no time; its GPU may load them faster, so the assumed times are tried as well",
)


def throughput(gamma: int) -> float:
    """Return the throughput of γ in queries per second, exponential between the published γ."""
    gammas, rates = zip(*NAMED_THROUGHPUT, strict=True)
    return float(np.exp(np.interp(gamma, gammas, np.log(rates))))


def batch_seconds(rate: float) -> tuple[float, float, float]:
    """Return the seconds of batches of 1, 20 and 64 for a throughput in queries per second (Figure 7)."""
    return max(_SINGLE_S, 1 / rate), _CONVERGED / rate, 64 / rate


@dataclass(frozen=True)
class PaperProfile(Profile):
    """Profile with the paper's figures, whose f(q) is the published Table I."""

    def gamma_for_rate(self, rate: float) -> int:
        """Return the γ of a rate by Table I; rates between two rows belong to the next row."""
        return next((gamma for most, gamma in TABLE_1 if rate <= most), GAMMAS[0])


def profile(rates: dict[int, float]) -> PaperProfile:
    """Make the profile of a model from its throughput by γ, in queries per second."""
    ms = tuple(tuple(1e3 * seconds for seconds in batch_seconds(rates[gamma])) for gamma in GAMMAS)
    latency = GammaLatency(
        gammas=GAMMAS, batches=(1, _CONVERGED, 64), median_ms=ms, p95_ms=ms, image_bytes=(0,) * len(GAMMAS)
    )
    return PaperProfile(latency, ACCURACIES)


#: By what is taken as the throughput: what Figures 4 and 7 say, or what Table I says is sustained.
PROFILES = {
    "figure 4": profile({gamma: throughput(gamma) for gamma in GAMMAS}),
    "table I": profile(TABLE_1_THROUGHPUT),
}


def variant_seconds(variant: ModelVariant) -> list[float]:
    """Return the seconds of a variant's batches by number of queries, from 0 to 64."""
    points = batch_seconds(variant.throughput)
    return [0.0, *np.interp(np.arange(1, 65), (1, _CONVERGED, 64), points).tolist()]


def loading_times(live: Mapping[str, Any] | None) -> dict[str, float]:
    """Return the median seconds of the loads of each model size in a live run.

    Args:
        live: Live part of the results of this run; None, or one in which nothing was loaded: the committed results.
    """
    found = {} if live is None else _loads(live)
    if not found:
        found = _loads(json.loads((RESULTS / "otas.json").read_text())["measured"]["live"])
    medians = {model: statistics.median(each) for model, each in found.items()}
    return {size: medians.get(model, max(medians.values())) for size, model in LIVE_SIZES.items()}


def _loads(live: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return the seconds of all loads by model."""
    found: dict[str, list[float]] = {}
    for each in live["rounds"]:
        for systems in each["outcomes"].values():
            for model, seconds in systems["INFaaS"]["loadings"]:
                found.setdefault(model, []).append(seconds)
    return found


@dataclass(frozen=True)
class Traces:
    """Arrival traces.

    Args:
        folder: Folder with `twitter_2021_rate/per_second.csv.gz`; None for the synthetic trace only.
        quick: Whether to use shorter traces.
    """

    folder: Path | None
    quick: bool

    @property
    def description(self) -> str:
        """Description of the traces."""
        made = "synthetic: Poisson, at rates of 200 to 700 a second that change every second"
        real = "real: the Twitter stream of August 2021, two minutes squeezed into a second, 280 a second on the mean"
        return made if self.folder is None else f"{made}; {real}"

    @cached_property
    def all(self) -> dict[str, QueryTrace]:
        """Traces by name."""
        seconds = 60 if self.quick else 1800
        found = {"synthetic": QueryTrace(fluctuating(seconds, 200, 700, 350, held_s=1.0), TABLE_2)}
        if self.folder is not None:
            rates = read_rates(self.folder / "twitter_2021_rate" / "per_second.csv.gz", seconds=3600 * 120)
            found["real"] = QueryTrace(squeezed(rates, 120, 280)[: 120 if self.quick else 3600], TABLE_2, seed=1)
        return found
