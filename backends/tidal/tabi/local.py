"""Calls to levels that run in the cascade's process: many at once, without a thread that waits for them."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from tidal.arlo.embedded import EmbeddedCall, EmbeddedModels
from tidal.encoder_tasks.token_rows import TokenRow
from tidal.tabi.calls import IMPORTANCE, TimedAnswer, class_orders, level_answer
from tidal.tabi.jobs import LevelCall
from tidal.tabi.manifest import TabiManifest
from tidal.text.words import EncodedWords

LocalCall = EmbeddedCall[LevelCall]

_LOGITS = frozenset({"logits"})
_WITH_IMPORTANCE = frozenset({"logits", IMPORTANCE})


class LocalLevels:
    """The levels that run in the cascade's process.

    Args:
        manifest: Manifest of the cascade being served.
        models: Models of these levels.
        report_lost: Receives a level's number, from 1, and how many abandoned calls its model still has; returns at
            once.
    """

    def __init__(
        self, manifest: TabiManifest, models: EmbeddedModels[LevelCall], report_lost: Callable[[int, int], None]
    ) -> None:
        self._levels = manifest.levels
        self._models = models
        self._orders = class_orders(manifest)
        self._report_lost = report_lost
        self._lost: dict[int, set[weakref.ref[LocalCall]]] = {index: set() for index in range(len(manifest.levels))}
        self._ones = np.ones(manifest.max_length, np.int64)

    def __contains__(self, index: int) -> bool:
        """Whether a level runs in this process."""
        return (self._levels[index].model, self._levels[index].version) in self._models

    def make(self, call: LevelCall, *, attention: bool) -> LocalCall:
        """Return a call as its level's model takes it.

        Args:
            call: Call whose active queries are encoded for its level.
            attention: Whether to request the attention that tokens receive.
        """
        request = call.job.request
        return EmbeddedCall(
            call,
            [TokenRow(each.ids, self._ones[: len(each.ids)], each.type_ids) for each in _queries(call)],
            _WITH_IMPORTANCE if attention else _LOGITS,
            # Only the timer ends calls at the timeout of levels: a model would treat it as urgent.
            call.expires if call.with_deadline else None,
            lambda: request.answered or request.cancelled(),
        )

    def submit(self, index: int, calls: Sequence[LocalCall], *, wait: bool) -> None:
        """Queue calls on a level's model.

        Args:
            index: Index of the level.
            calls: Calls to it.
            wait: Whether this thread may wait for them, for a bounded time.
        """
        self._models.submit(self._levels[index].model, self._levels[index].version, calls, wait=wait)

    def answer(self, call: LocalCall) -> TimedAnswer:
        """Return the answer to a call that its model has answered, with the time of its execution.

        Args:
            call: Call without an error.

        Raises:
            Internal: The answer does not match the call.
        """
        assert call.outputs is not None  # it was answered
        level = call.owner.level
        attention = IMPORTANCE in call.wanted
        answer = level_answer(call.outputs, _queries(call.owner), self._orders[level], attention=attention)
        began, ended = call.record.began, call.record.ended
        now = time.monotonic()
        return TimedAnswer(
            answer, now if began is None else began, now if ended is None else ended, call.record.batch_rows
        )

    def abandon(self, call: LocalCall) -> bool:
        """End a call that takes too long; return False if it has ended. On True the caller continues its job."""
        if not self._models.abandon(call):
            return False
        # The model drops the call once it has run it or has skipped it; a hanging engine keeps it.
        level = call.owner.level
        self._lost[level].add(weakref.ref(call, partial(self._dropped, level)))
        self._report(level)
        return True

    def close(self, timeout_s: float) -> None:
        """Close the models within `timeout_s` seconds; fail their remaining calls."""
        self._models.close(timeout_s)

    def _dropped(self, level: int, call: weakref.ref[LocalCall]) -> None:
        self._lost[level].discard(call)
        self._report(level)

    def _report(self, level: int) -> None:
        # Any thread can drop a call at any time, even this one inside a lock: report until nothing changed meanwhile.
        reported = -1
        while reported != len(self._lost[level]):
            reported = len(self._lost[level])
            self._report_lost(level + 1, reported)


def _queries(call: LevelCall) -> list[EncodedWords]:
    return [query.encoded for query in call.job.active if query.encoded is not None]
