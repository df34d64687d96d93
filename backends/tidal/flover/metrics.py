"""Metrics of the `flover` backend."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

from tidal.flover.generation import Generation
from tidal.flover.policies.speculation import CheckedDrafts, DraftSource
from tidal.flover.responses import FinishReason
from tidal.metrics import Metrics
from tidal.tasks.metrics import IntakeMetrics

_BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)

#: How a generation ended: by itself, by its client, by its deadline, or by a failed pass.
Outcome = FinishReason | Literal["cancelled", "late", "failed"]


class FloverMetrics(IntakeMetrics):
    """The metric families `tidal_flover_*` of generations and passes.

    Args:
        metrics: Registry of the model's metrics.
    """

    def __init__(self, metrics: Metrics) -> None:
        super().__init__(metrics)
        self._all = metrics
        self.waiting = metrics.gauge("waiting_generations", "Generations waiting for slots")
        self.waiting_slots = metrics.gauge("waiting_slots", "Slots needed by waiting generations")
        self.running = metrics.gauge("running_generations", "Generations in the decode step")
        self.running_slots = metrics.gauge("running_slots", "Slots in the decode step: one, or one for each beam")
        self.allocated = metrics.gauge("taken_slots", "Slots of running generations and of prompts being prefilled")
        self.committed = metrics.gauge("kv_cache_bytes", "Memory committed to keys and values, in bytes")
        self.budget = metrics.gauge("kv_cache_budget_bytes", "Most memory of keys and values, in bytes")
        self.repaired = metrics.counter("repaired_slots_total", "Slots cleared of NaN or infinite values")
        self._refused = metrics.counter("refused_requests_total", "Requests refused for their content or their task")
        self._queue = metrics.histogram("queue_seconds", "Time from arrival to the allocation of slots")
        self._first = metrics.histogram("time_to_first_token_seconds", "Time from arrival to the first token")
        self._token = metrics.histogram(
            "time_per_output_token_seconds", "Mean time between a generation's tokens", buckets=_TOKEN_BUCKETS
        )
        self._between = metrics.histogram(
            "between_steps_seconds", "Time between two successive decode steps", buckets=_TOKEN_BUCKETS
        )
        self._batch = metrics.histogram("fused_generations", "Generations in a decode step", buckets=_BATCH_BUCKETS)
        self._decode = metrics.histogram("step_seconds", "Duration of a decode step", buckets=_TOKEN_BUCKETS)
        self._window = metrics.counter("step_slots_total", "Slots computed in decode steps, holes included")
        self._prefill = metrics.counter("prefill_seconds_total", "Time spent on prefilling prompts")
        self._prompts = metrics.counter(
            "prompt_tokens_total", "Prompt tokens prefilled, and tokens of texts after preemptions"
        )
        self.preemptions = metrics.counter(
            "preemptions_total", "Generations that were requeued because keys and values exceeded their budget"
        )
        self._recomputed = metrics.counter(
            "recomputed_tokens_total", "Tokens of prompts and texts prefilled again after a preemption"
        )
        self._hits = metrics.counter("prefix_hits_total", "Prompts that began with tokens held by a slot")
        self._reused = metrics.counter("prefix_tokens_total", "Prompt tokens taken from a slot instead of prefilled")
        self._tokens = metrics.counter("generated_tokens_total", "Tokens generated")
        sources: tuple[DraftSource, ...] = get_args(DraftSource)
        self._checked = {
            source: metrics.counter("draft_tokens_total", "Drafted tokens that decode steps checked", source=source)
            for source in sources
        }
        self._gained = {
            source: metrics.counter(
                "accepted_draft_tokens_total", "Accepted draft tokens: tokens beyond one per sequence and step",
                source=source,
            )
            for source in sources
        }  # fmt: skip
        self.drafting = metrics.counter("drafting_seconds_total", "Time spent on drafting tokens")
        self._shuffles = metrics.counter("shuffles_total", "Decode steps preceded by moves of slots")
        self._moves = metrics.counter("moved_slots_total", "Slots moved")
        self._moved = metrics.counter("moved_bytes_total", "Bytes copied by moves of slots")
        self._copies = metrics.counter("copied_slots_total", "Slots of beams that received tokens of other beams")
        self._copied = metrics.counter("copied_bytes_total", "Bytes copied between slots of beams")

    def refused(self, reason: str, queries: int) -> None:
        """Count a refused request, whatever the reason and its number of prompts."""
        self._refused.inc()

    def admitted(self, generation: Generation, now: float) -> None:
        """Record that a generation got its slots."""
        self._queue.observe(now - generation.arrival)

    def prefilled(self, tokens: int, recomputed: int, seconds: float) -> None:
        """Record tokens that were prefilled, those of them after preemptions, and the time spent on all."""
        self._prompts.inc(tokens)
        self._recomputed.inc(recomputed)
        self._prefill.inc(seconds)

    def prefix_reused(self, tokens: int) -> None:
        """Record a prompt of which tokens were not computed again."""
        self._hits.inc()
        self._reused.inc(tokens)

    def first_token(self, generation: Generation) -> None:
        """Record the first token after prefill; after a preemption it is not the text's first."""
        self._tokens.inc()
        if not generation.recomputed:
            self._first.observe(generation.first_token_at - generation.arrival)

    def decoded(self, generations: int, window: int, seconds: float, since_last: float | None) -> None:
        """Record a decode step.

        Args:
            generations: Number of generations that got a token.
            window: Number of slots computed.
            seconds: Duration of the step.
            since_last: Seconds since the end of the step before; None if other iterations came in between.
        """
        self._tokens.inc(generations)
        self._batch.observe(generations)
        self._window.inc(window)
        self._decode.observe(seconds)
        if since_last is not None:
            self._between.observe(since_last)

    def drafted(self, drafts: Iterable[CheckedDrafts]) -> None:
        """Record the drafted tokens of a decode step, and the tokens generated besides one per generation."""
        for source, checked, gained in drafts:
            self._tokens.inc(gained)
            self._checked[source].inc(checked)
            self._gained[source].inc(gained)

    def shuffled(self, moves: int, moved_bytes: int) -> None:
        """Record moves of slots before a decode step."""
        self._shuffles.inc()
        self._moves.inc(moves)
        self._moved.inc(moved_bytes)

    def copied(self, slots: int, copied_bytes: int) -> None:
        """Record copies between slots of beams."""
        self._copies.inc(slots)
        self._copied.inc(copied_bytes)

    def ended(self, generation: Generation, outcome: Outcome) -> None:
        """Record the end of a generation."""
        self._all.counter("generations_total", "Generations by how they ended", outcome=outcome).inc()
        if generation.generated > 1:
            duration = generation.last_token_at - generation.first_token_at
            self._token.observe(duration / (generation.generated - 1))
