"""A query's route through a cascade, level by level: the same code runs in the server and offline."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tidal.errors import Internal
from tidal.serving.softmax import softmax
from tidal.tabi.equations import Floats, combine, confidence, draw, reroute_probability
from tidal.tabi.manifest import Candidate, TabiManifest


@dataclass(frozen=True, slots=True)
class CascadeAnswer:
    """A cascade's answer to one query.

    Attributes:
        outputs: Probabilities of the ensemble, float64 [classes]; for a regression its value, [1].
        label: Index of the most likely class; None for a regression.
        level: Number of the last level that answered, from 1.
        confidence: Calibrated confidence of that level, in [0, 1].
        degraded: Whether a further level was needed that could not answer.
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
    """One query's route: run `level`, `feed` its output, repeat while that returns True; then take `answer`.

    A level that cannot run, because it failed or because of the deadline, ends the route: `stop`, then `answer`.

    Args:
        manifest: Manifest of the cascade.
        candidate: Configuration that the query uses.
        key: Seed of its draws, see `equations.request_key`.
        row: Row of the query in its request.
        version: Version of the cascade.
        last_level: Index of the last of the manifest's levels that may run (`max_level` - 1); the candidate's first
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
        self._active = True
        self._degraded = False

    @property
    def level(self) -> int:
        """Index, in the manifest, of the level to run now; once the route has ended, of the last that ran."""
        return self._levels[len(self._outputs) if self._active else len(self._outputs) - 1]

    @property
    def last(self) -> bool:
        """Whether no level may run after `level`."""
        return self.level == self._levels[-1]

    @property
    def confidence(self) -> float:
        """Calibrated confidence of the level that ran last, in [0, 1]; 0 before any has run."""
        return self._confidence

    def feed(self, logits: npt.ArrayLike) -> bool:
        """Record the output of `level`.

        Args:
            logits: Logits of the query, [classes]; for a regression its value, [1].

        Returns:
            Whether the query is re-routed to the next level.

        Raises:
            Internal: The output does not match the cascade or is not finite; the route is unchanged.
        """
        if not self._active:
            raise Internal("the query's route has ended and accepts no further output")
        level = self._manifest.levels[self.level]
        values = self._checked(level.name, logits)
        self._confidence = float(confidence(level.calibration, values))
        self._active = self._reroutes()
        self._outputs.append(values if self._manifest.task == "regression" else softmax(values))
        return self._active

    def stop(self) -> None:
        """End the route before a level that was needed: the answer is that of the levels which ran, and is degraded.

        Raises:
            Internal: No level has run.
        """
        if not self._outputs:
            raise Internal("no level of the cascade has answered")
        self._degraded = self._degraded or self._active
        self._active = False

    def answer(self) -> CascadeAnswer:
        """Return the ensemble of the levels that ran.

        Raises:
            Internal: The query still has to run a further level.
        """
        if self._active:
            raise Internal(f"level '{self._manifest.levels[self.level].name}' has not answered yet")
        outputs = combine(self._candidate.weights[len(self._outputs) - 1], self._outputs)
        label = None if self._manifest.task == "regression" else int(outputs.argmax())
        return CascadeAnswer(outputs, label, self.level + 1, self._confidence, self._degraded)

    def _reroutes(self) -> bool:
        """Decide by a draw whether the query is re-routed (Tabi Eq. 4)."""
        if len(self._outputs) + 1 == len(self._levels):
            return False
        cutoff, slope = self._candidate.cutoff, self._candidate.slope
        assert cutoff is not None  # every candidate of several levels has both
        assert slope is not None
        chance = reroute_probability(self._confidence, cutoff, slope)
        return bool(draw(self._version, self._key, self._row, self.level) < chance)

    def _checked(self, name: str, logits: npt.ArrayLike) -> Floats:
        values = np.asarray(logits, np.float64)
        wanted = len(self._manifest.labels) if self._manifest.task == "classification" else 1
        if values.shape != (wanted,):
            raise Internal(f"level '{name}' produced outputs of shape {list(values.shape)}; expected [{wanted}]")
        if not np.isfinite(values).all():
            raise Internal(f"level '{name}' produced outputs that are not finite")
        return values
