"""What the `flover` backend counts."""

from __future__ import annotations

from typing import Literal

from tidal.flover.answers import Finish
from tidal.flover.fusion import Copied, Shuffle, Step
from tidal.flover.streams import Stream
from tidal.metrics import Metrics
from tidal.tasks.metrics import IntakeMetrics

_BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)

#: What became of a generation: it ended by itself, its client went, its deadline passed, or a pass failed at it.
Outcome = Finish | Literal["cancelled", "late", "failed"]


class FloverMetrics(IntakeMetrics):
    """The families `tidal_flover_*` of generations and steps."""

    def __init__(self, metrics: Metrics) -> None:
        super().__init__(metrics)
        self._all = metrics
        self.waiting = metrics.gauge("waiting_generations", "Generations that wait for slots")
        self.waiting_slots = metrics.gauge("waiting_slots", "Slots that those will take")
        self.running = metrics.gauge("running_generations", "Generations that take part in steps")
        self.running_slots = metrics.gauge("running_slots", "Slots that take part in steps: one, or one for each beam")
        self.taken = metrics.gauge("taken_slots", "Slots of running generations and of those whose prompt is read")
        self.repaired = metrics.counter("repaired_slots_total", "Slots that held what is no finite number")
        self._refused = metrics.counter("refused_requests_total", "Requests refused for what they hold or their task")
        self._queue = metrics.histogram("queue_seconds", "Time from arrival until a generation got its slots")
        self._first = metrics.histogram("time_to_first_token_seconds", "Time from arrival to the first token")
        self._token = metrics.histogram(
            "time_per_output_token_seconds", "Mean time between a generation's tokens", buckets=_TOKEN_BUCKETS
        )
        self._between = metrics.histogram(
            "between_steps_seconds", "Time from a step to the next that the same generations take part in",
            buckets=_TOKEN_BUCKETS,
        )  # fmt: skip
        self._fused = metrics.histogram("fused_generations", "Generations in a step", buckets=_BATCH_BUCKETS)
        self._steps = metrics.histogram("step_seconds", "Time of a step", buckets=_TOKEN_BUCKETS)
        self._covered = metrics.counter("step_slots_total", "Slots that steps covered, holes included")
        self._prefill = metrics.counter("prefill_seconds_total", "Time that prompts took to be read")
        self._prompts = metrics.counter("prompt_tokens_total", "Tokens of prompts that were read")
        self._tokens = metrics.counter("generated_tokens_total", "Tokens generated")
        self._shuffles = metrics.counter("shuffles_total", "Steps before which slots were moved")
        self._moves = metrics.counter("moved_slots_total", "Slots moved")
        self._moved = metrics.counter("moved_bytes_total", "Bytes copied between slots")
        self._copies = metrics.counter("copied_slots_total", "Slots of beams that tokens of others were copied to")
        self._copied = metrics.counter("copied_bytes_total", "Bytes copied for that")

    def refused(self, reason: str, queries: int) -> None:
        """A request was refused, for whatever reason and however many prompts it has."""
        self._refused.inc()

    def admitted(self, stream: Stream, now: float) -> None:
        """A generation got its slots."""
        self._queue.observe(now - stream.arrival)

    def read(self, tokens: int, seconds: float) -> None:
        """Tokens of a prompt were read."""
        self._prompts.inc(tokens)
        self._prefill.inc(seconds)

    def first(self, stream: Stream) -> None:
        """A generation has its first token."""
        self._tokens.inc()
        self._first.observe(stream.first_at - stream.arrival)

    def stepped(self, step: Step, seconds: float, since_last: float | None) -> None:
        """A step was made, so long after the one before if there was one right before it."""
        generations = len({seat.stream for seat in step.seats})
        self._tokens.inc(generations)
        self._fused.observe(generations)
        self._covered.inc(step.window)
        self._steps.observe(seconds)
        if since_last is not None:
            self._between.observe(since_last)

    def shuffled(self, shuffle: Shuffle) -> None:
        """Slots were moved."""
        self._shuffles.inc()
        self._moves.inc(shuffle.moves)
        self._moved.inc(shuffle.moved_bytes)

    def copied(self, copied: Copied) -> None:
        """Beams went on from others."""
        self._copies.inc(copied.slots)
        self._copied.inc(copied.bytes)

    def ended(self, stream: Stream, outcome: Outcome) -> None:
        """A generation came to its end."""
        self._all.counter("generations_total", "Generations by what became of them", outcome=outcome).inc()
        if stream.generated > 1:
            self._token.observe((stream.last_at - stream.first_at) / (stream.generated - 1))
