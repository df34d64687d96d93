"""One query's way through a cascade, step by step: the same for the server and for those who compute it offline."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tidal.errors import Internal
from tidal.serving.softmax import softmax
from tidal.tabi.confidence import Floats, confidence
from tidal.tabi.dispatcher import draw, reroute_probability
from tidal.tabi.ensemble import combine
from tidal.tabi.manifest import Candidate, TabiManifest


@dataclass(frozen=True, slots=True)
class Answer:
    """What a cascade answers to one query.

    Args:
        outputs: float64 [classes], the ensemble's probabilities; of a regression [1], its value.
        label: index of the likeliest class; None of a regression.
        level: number of the level that answered last, from 1.
        confidence: that level's own, calibrated, in [0, 1].
        degraded: whether a further level was wanted that could not answer.
    """

    outputs: Floats
    label: int | None
    level: int
    confidence: float
    degraded: bool

    @property
    def value(self) -> float:
        """A regression's value."""
        return float(self.outputs[0])


class Route:
    """One query's way: run `level`, `feed` what it says, as long as that returns True; then `answer`.

    A level that cannot run, by its failure or by the deadline, ends the way: `stop`, then `answer`.

    Args:
        manifest: of the cascade.
        candidate: the configuration that the query takes.
        key: what its draws are seeded by, see `dispatcher.request_key`.
        row: of the query in its request.
        version: of the cascade.
        last_level: index of the last of the manifest's levels that may run (`max_level` - 1); the candidate's first
            level always may.
    """

    def __init__(
        self, manifest: TabiManifest, candidate: Candidate, key: bytes, row: int, version: int, *, last_level: int
    ) -> None:
        self._manifest = manifest
        self._candidate = candidate
        self._key, self._row, self._version = key, row, version
        self._levels = [
            index for position, index in enumerate(candidate.levels) if position == 0 or index <= last_level
        ]
        self._outputs: list[Floats] = []
        self._confidence = 0.0
        self._going = True
        self._degraded = False

    @property
    def level(self) -> int:
        """Index of the level to run now, among the manifest's levels; once nothing is to run, of the last that ran."""
        return self._levels[len(self._outputs) if self._going else len(self._outputs) - 1]

    @property
    def last(self) -> bool:
        """Whether no level may run after `level`."""
        return self.level == self._levels[-1]

    @property
    def confidence(self) -> float:
        """Of the level that ran last, calibrated, in [0, 1]; 0 before any."""
        return self._confidence

    def feed(self, logits: npt.ArrayLike) -> bool:
        """Take what `level` says.

        Args:
            logits: [classes]; of a regression its value [1].

        Returns:
            Whether the query goes on to the next level.

        Raises:
            Internal: the level's outputs do not fit the cascade or are not numbers; the way is where it was.
        """
        if not self._going:
            raise Internal("a query's way has ended, it takes no further outputs")
        level = self._manifest.levels[self.level]
        values = self._checked(level.name, logits)
        self._confidence = float(confidence(level.calibration, values))
        self._going = self._goes_on()
        self._outputs.append(values if self._manifest.task == "regression" else softmax(values))
        return self._going

    def stop(self) -> None:
        """End the way before a level that was wanted: the answer is that of the levels which ran, and says so.

        Raises:
            Internal: none ran.
        """
        if not self._outputs:
            raise Internal("no level of the cascade has answered")
        self._degraded = self._degraded or self._going
        self._going = False

    def answer(self) -> Answer:
        """The ensemble of the levels that ran.

        Raises:
            Internal: the query has to go on to a further level.
        """
        if self._going:
            raise Internal(f"the level {self._manifest.levels[self.level].name} has yet to answer")
        outputs = combine(self._candidate.weights[len(self._outputs) - 1], self._outputs)
        label = None if self._manifest.task == "regression" else int(outputs.argmax())
        return Answer(outputs, label, self.level + 1, self._confidence, self._degraded)

    def _goes_on(self) -> bool:
        if len(self._outputs) + 1 == len(self._levels):
            return False
        cutoff, slope = self._candidate.cutoff, self._candidate.slope
        assert cutoff is not None  # of every candidate of several levels
        assert slope is not None
        chance = reroute_probability(self._confidence, cutoff, slope)
        return bool(draw(self._version, self._key, self._row, self.level) < chance)

    def _checked(self, name: str, logits: npt.ArrayLike) -> Floats:
        values = np.asarray(logits, np.float64)
        wanted = len(self._manifest.labels) if self._manifest.task == "classification" else 1
        if values.shape != (wanted,):
            raise Internal(f"the level {name} gave outputs of shape {list(values.shape)}, expected is [{wanted}]")
        if not np.isfinite(values).all():
            raise Internal(f"the level {name} gave outputs that are not finite numbers")
        return values
