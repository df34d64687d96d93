"""The controller's log: one line per event, as text or JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

from tidal.controller.decisions import Decision
from tidal.server.allocate import format_counts

Write = Callable[[str], None]


class EventLog:
    """Writes one line per event; the steps of a change appear in JSON only.

    Args:
        write: Receives each line, without a newline.
        as_json: Whether to write JSON objects instead of a time and a sentence.
    """

    def __init__(self, write: Write, *, as_json: bool = False) -> None:
        self._write = write
        self._as_json = as_json

    def record(self, event: str, sentence: str, model: str | None = None, **facts: Any) -> None:
        """Write an event.

        Args:
            event: Kind of the event, for programs.
            sentence: Text of the event, for people.
            model: Name of the model that the event concerns; None: all models.
            facts: Further members of the JSON object.
        """
        now = datetime.now().astimezone()
        if self._as_json:
            about = {} if model is None else {"model": model}
            line = {"time": now.isoformat(timespec="milliseconds"), "event": event, **about, "message": sentence}
            self._write(json.dumps(line | facts))
        elif event != "step":
            who = "" if model is None else f"{model}: "
            self._write(f"{now:%Y-%m-%d %H:%M:%S} {who}{sentence}")

    def decided(self, model: str, decision: Decision, *, dry_run: bool = False) -> None:
        """Write a decision, its reason and the observations behind it.

        Args:
            model: Name of the model.
            decision: The decision.
            dry_run: Whether it is not carried out.
        """
        plan, observed, before, after = decision.plan, decision.observed, decision.before, decision.after
        changes = f"{format_counts(before)} -> {format_counts(after)}" if before != after else format_counts(before)
        parts = [f"{'would ' if dry_run and plan.moves else ''}{decision.action} {changes}: {plan.reason}"]
        parts.append(observation(decision))
        if plan.mean_before_s is not None and plan.mean_best_s is not None:
            best = format_counts(decision.profile.by_length(plan.best))
            parts.append(
                f"predicted mean latency {_ms(plan.mean_before_s)} now, {_ms(plan.mean_best_s)} at best with {best}"
            )
        if plan.shortfall is not None:
            parts.append(plan.shortfall)
        lengths = decision.profile.lengths
        self.record(
            "decision",
            "; ".join(parts),
            model,
            action=decision.action,
            reason=plan.reason,
            dry_run=dry_run,
            before=before,
            after=after,
            observed={
                "seconds": round(observed.seconds, 3),
                "queries": dict(zip(lengths, observed.queries, strict=True)),
                "demand": dict(zip(lengths, plan.demand, strict=False)),
                "requests": observed.requests,
                "above_half_slo": observed.slow,
                "above_95_percent_of_slo": observed.critical,
                "mean_latency_s": observed.mean_latency_s,
            },
            predicted_mean_before_s=plan.mean_before_s,
            predicted_mean_best_s=plan.mean_best_s,
            shortfall=plan.shortfall,
        )


def observation(decision: Decision) -> str:
    """Return the observations behind a decision as a clause."""
    profile, observed = decision.profile, decision.observed
    queries = " ".join(f"{n}:{count:.0f}" for n, count in zip(profile.lengths, observed.queries, strict=True))
    text = f"observed {sum(observed.queries):.0f} queries in {observed.seconds:.0f} s ({queries})"
    if observed.mean_latency_s is not None:
        slow, critical = 100 * observed.slow / observed.requests, 100 * observed.critical / observed.requests
        text += (
            f", answered in {_ms(observed.mean_latency_s)} on average, {slow:.1f} % above half the SLO of "
            f"{_ms(profile.slo_s)}, {critical:.1f} % above 95 % of it"
        )
    return text


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
