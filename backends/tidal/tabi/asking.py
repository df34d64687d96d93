"""Asking a level until it answers, as long as there is use in it."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from tidal.service import ModelUnavailable
from tidal.serving.backoff import backoff_s
from tidal.tabi.calling import LevelAnswer, LevelModels
from tidal.tabi.jobs import Visit

# A level whose model is away, being republished or restarted, is asked again after pauses, the longer the more often.
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.5
# Since when it may have been away to be waited for: briefly where a smaller level's answer is there.
_PATIENCE_S = 0.5
_PATIENCE_WITHOUT_ANSWER_S = 5.0
# A query that met so many dead processes may be what they died of.
_MOST_DEATHS = 3
_LEAST_MS = 0.001


@dataclass(frozen=True, slots=True)
class Asked:
    """A level's answer, and when it was asked for it and gave it, `time.monotonic()` seconds."""

    answer: LevelAnswer
    began: float
    ended: float


class PatientModels:
    """Asks levels, and once more after a pause where their models are away for a moment.

    Args:
        models: of the levels.
        ending: set when there is no time left for pauses.
    """

    def __init__(self, models: LevelModels, ending: threading.Event) -> None:
        self._models = models
        self._ending = ending
        self._away: dict[int, float] = {}  # since when a level has been away, by its index

    def ask(self, visit: Visit, *, attention: bool, has_answer: bool) -> Asked:
        """Run a visit's queries together on its level, and wait.

        Args:
            visit: whose queries have been read for its level.
            attention: whether to ask for the attention that tokens receive.
            has_answer: whether a smaller level's answer is there.

        Raises:
            ModelUnavailable: the level has been away for too long.
            TidalError: the level's own error.
        """
        patience_s = _PATIENCE_S if has_answer else _PATIENCE_WITHOUT_ANSWER_S
        readings = [query.reading for query in visit.job.going if query.reading is not None]
        retries, deaths = 0, 0
        while True:
            began = time.monotonic()
            latency_ms = max((visit.until - began) * 1e3, _LEAST_MS)
            try:
                answer = self._models.ask(visit.level, readings, attention=attention, latency_ms=latency_ms)
            except ModelUnavailable as error:
                now = time.monotonic()
                pause_s = backoff_s(retries, _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
                deaths += error.died
                away_s = now - self._away.setdefault(visit.level, now)
                in_vain = visit.ended or now + pause_s >= visit.until
                if in_vain or deaths >= _MOST_DEATHS or away_s > patience_s or self._ending.wait(pause_s):
                    raise
                retries += 1
            else:
                self._away.pop(visit.level, None)
                return Asked(answer, began, time.monotonic())
