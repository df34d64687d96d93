"""Hand-made manifests of cascades."""

from __future__ import annotations

from collections.abc import Sequence

from tidal.manifest import TokenizerInfo
from tidal.tabi.manifest import Calibration, Candidate, Expected, ExpectedLoss, Latency, Level, TabiManifest, Target


def latency(mean: float) -> Latency:
    return Latency(mean=mean, p25=mean, p50=mean, p75=mean, p99=mean)


def expected(score: float, mean: float, returned: Sequence[float] = (1.0,)) -> Expected:
    return Expected(score=score, latency=latency(mean), returned=tuple(returned), pruned=0.0)


def candidate(
    name: str,
    levels: Sequence[int] = (0,),
    *,
    score: float = 0.9,
    mean: float = 1.0,
    returned: Sequence[float] | None = None,
    reported: Expected | None = None,
    cutoff: float = 0.8,
    slope: float = 10.0,
    weights: Sequence[Sequence[float]] | None = None,
    loss: ExpectedLoss | None = None,
) -> Candidate:
    """Return a candidate; by default all levels have the same weight and answer the same share of the queries."""
    several = len(levels) > 1
    even = [[1 / count] * count for count in range(1, len(levels) + 1)]
    share = expected(score, mean, returned or [1 / len(levels)] * len(levels))
    return Candidate(
        name=name,
        levels=tuple(levels),
        cutoff=cutoff if several else None,
        slope=slope if several else None,
        pruning=None,
        weights=tuple(tuple(entry) for entry in weights or even),
        weighting="tuned" if several else None,
        selection=share,
        loss=loss,
        reported=reported or share,
    )


def manifest(
    candidates: Sequence[Candidate], calibrations: Sequence[Calibration], labels: Sequence[str] = ("no", "yes")
) -> TabiManifest:
    """Return a cascade with one level per calibration; without labels it is a regression."""
    tokenizer = TokenizerInfo(file="tokenizer/tokenizer.json", max_length=128, pad_token_id=0, type_ids=True)
    levels = tuple(
        Level(
            name=f"level{index}",
            model=f"cascade_level{index}",
            version=1,
            fingerprint=str(index),
            tokenizer=tokenizer,
            max_length=128,
            attention=False,
            calibration=calibration,
            score=0.9,
            latency=latency(index + 1),
        )
        for index, calibration in enumerate(calibrations)
    )
    return TabiManifest(
        kind="tabi",
        name="cascade",
        created="2026-01-01T00:00:00+00:00",
        spec="cascade.yaml",
        fingerprint="0",
        libraries={},
        files=(),
        task="classification" if labels else "regression",
        pairs=False,
        metric="accuracy" if labels else "pearson",
        labels=tuple(labels),
        data="0",
        rows={"calibration": 1, "selection": 1, "report": 1},
        levels=levels,
        candidates=tuple(candidates),
        target=Target(accuracy=0.5),
        chosen=0,
    )
