"""What the controller tells: a line for each event, for people or as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

from tidal.controller.decisions import Decision, ModelProfile

Write = Callable[[str], None]


class Journal:
    """Writes events as they happen; the single steps of a change are for programs only.

    Args:
        write: takes a line.
        as_json: one JSON object a line instead of a time and a sentence.
    """

    def __init__(self, write: Write, *, as_json: bool = False) -> None:
        self._write = write
        self._as_json = as_json

    def tell(self, event: str, sentence: str, model: str | None = None, **facts: Any) -> None:
        """An event: its kind, what to tell people of it, and what to tell programs beside that."""
        now = datetime.now().astimezone()
        if self._as_json:
            about = {} if model is None else {"model": model}
            line = {"time": now.isoformat(timespec="milliseconds"), "event": event, **about, "message": sentence}
            self._write(json.dumps(line | facts))
        elif event != "step":
            who = "" if model is None else f"{model}: "
            self._write(f"{now:%Y-%m-%d %H:%M:%S} {who}{sentence}")

    def decided(self, model: str, profile: ModelProfile, decision: Decision, dry_run: bool) -> None:
        """A decision and its reason."""
        before, after = by_length(profile, decision.before), by_length(profile, decision.after)
        changes = f"{shown(before)} -> {shown(after)}" if before != after else shown(before)
        parts = [f"{'would ' if dry_run and before != after else ''}{decision.action} {changes}: {decision.reason}"]
        parts.append(observation(profile, decision))
        if decision.mean_before_s is not None and decision.mean_best_s is not None:
            parts.append(
                f"predicted mean latency {_ms(decision.mean_before_s)} now, {_ms(decision.mean_best_s)} at best"
            )
        if decision.shortfall is not None:
            parts.append(decision.shortfall)
        seen = decision.observed
        self.tell(
            "decision",
            "; ".join(parts),
            model,
            action=decision.action,
            reason=decision.reason,
            dry_run=dry_run,
            before=before,
            after=after,
            observed={
                "seconds": round(seen.seconds, 3),
                "queries": dict(zip(profile.lengths, seen.queries, strict=True)),
                "demand": dict(zip(profile.lengths, decision.demand, strict=False)),
                "requests": seen.requests,
                "above_half_slo": seen.slow,
                "above_95_percent_of_slo": seen.critical,
                "mean_latency_s": seen.mean_latency_s,
            },
            predicted_mean_before_s=decision.mean_before_s,
            predicted_mean_best_s=decision.mean_best_s,
            shortfall=decision.shortfall,
        )


def observation(profile: ModelProfile, decision: Decision) -> str:
    """What a decision rests on, as a part of a sentence."""
    seen = decision.observed
    queries = " ".join(f"{n}:{count:.0f}" for n, count in zip(profile.lengths, seen.queries, strict=True))
    text = f"observed {sum(seen.queries):.0f} queries in {seen.seconds:.0f} s ({queries})"
    if seen.mean_latency_s is not None:
        slow, critical = 100 * seen.slow / seen.requests, 100 * seen.critical / seen.requests
        text += (
            f", answered in {_ms(seen.mean_latency_s)} on average, {slow:.1f} % above half the SLO of "
            f"{_ms(profile.slo_s)}, {critical:.1f} % above 95 % of it"
        )
    return text


def by_length(profile: ModelProfile, instances: tuple[int, ...]) -> dict[int, int]:
    """Instances by `max_length`."""
    return dict(zip(profile.lengths, instances, strict=True))


def shown(instances: dict[int, int]) -> str:
    """Counts as `tidal models allocate` takes them: `64=1 512=2`."""
    return " ".join(f"{length}={count}" for length, count in instances.items())


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
