"""A query's route through a cascade, level by level: the same code runs in the server and offline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tidal.errors import Internal
from tidal.serving.softmax import softmax
from tidal.tabi.equations import Floats, combine, confidence, draw, relevance_logits, reroute_probability
from tidal.tabi.manifest import Candidate, TabiManifest


@dataclass(frozen=True, slots=True)
class CascadeAnswer:
    """A cascade's answer to one query.

    Attributes:
        outputs: Probabilities of the ensemble, float64 [classes], of a reranker those of not relevant and relevant;
            for a regression its value, [1].
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
    `feed_all` and `ensembles` do the same for many queries at once.

    Args:
        manifest: Manifest of the cascade.
        candidate: Configuration that the query uses.
        key: Seed of its draws, see `equations.request_key`.
        row: Row of the query in its request.
        version: Version of the cascade.
        last_level: Index of the last of the manifest's levels that may run (`max_level` - 1); the candidate's first
            level always may.
    """

    __slots__ = (
        "_active",
        "_candidate",
        "_confidence",
        "_degraded",
        "_key",
        "_levels",
        "_manifest",
        "_outputs",
        "_row",
        "_version",
    )

    def __init__(
        self, manifest: TabiManifest, candidate: Candidate, key: bytes, row: int, version: int, *, last_level: int
    ) -> None:
        self._manifest = manifest
        self._candidate = candidate
        self._key, self._row, self._version = key, row, version
        self._levels = _levels_up_to(candidate.levels, last_level)
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

    @property
    def degraded(self) -> bool:
        """Whether a further level was needed that could not answer."""
        return self._degraded

    def feed(self, logits: npt.ArrayLike) -> bool:
        """Record the output of `level`.

        Args:
            logits: Logits of the query, [classes]; for a regression its value, [1].

        Returns:
            Whether the query is re-routed to the next level.

        Raises:
            Internal: The output does not match the cascade or is not finite; the route is unchanged.
        """
        (fed,) = feed_all([self], np.asarray(logits, np.float64)[None])
        if isinstance(fed, Internal):
            raise fed
        return fed

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
        outputs = ensembles([self])[0]
        label = None if self._manifest.task == "regression" else int(outputs.argmax())
        return CascadeAnswer(outputs, label, self.level + 1, self._confidence, self._degraded)

    def _reroutes(self, chance: float) -> bool:
        """Decide by a draw whether the query is re-routed (Tabi Eq. 4)."""
        if len(self._outputs) + 1 == len(self._levels):
            return False
        # A draw is in [0, 1): nothing has to be drawn where every number has the same result.
        return chance > 0 and (chance >= 1 or draw(self._version, self._key, self._row, self.level) < chance)


def feed_all(routes: Sequence[Route], logits: npt.ArrayLike) -> list[bool | Internal]:
    """Record the outputs of one level for many queries, as `Route.feed` does for one.

    Args:
        routes: Routes of the queries, which are all at the same level of the same cascade.
        logits: Logits of each query, [rows, classes]; for a regression its value, for a reranker its logit,
            [rows, 1].

    Returns:
        For each query whether it is re-routed to the next level; an error if its output does not match the cascade or
        is not finite, or the route has ended, which leaves the route unchanged.
    """
    manifest, index = routes[0]._manifest, routes[0].level
    level = manifest.levels[index]
    values = np.asarray(logits, np.float64)
    wanted = len(manifest.labels) if manifest.task == "classification" else 1
    if values.shape[1:] != (wanted,):
        fault = f"level '{level.name}' produced outputs of shape {list(values.shape[1:])}; expected [{wanted}]"
        return [Internal(fault) for _ in routes]
    finite = np.isfinite(values).all(axis=-1)
    if not finite.all():
        values = np.where(finite[:, None], values, 0.0)
    if manifest.task == "rerank":
        values = relevance_logits(values)
    sure = confidence(level.calibration, values)
    cutoffs, slopes = zip(*((each._candidate.cutoff, each._candidate.slope) for each in routes), strict=True)
    # Candidates of a single level have neither, and never re-route.
    chances = reroute_probability(sure, _numbers(cutoffs, 0.5), _numbers(slopes, 1.0))
    outputs = values if manifest.task == "regression" else softmax(values)
    results: list[bool | Internal] = []
    for route, valid, own, chance, output in zip(
        routes, finite.tolist(), sure.tolist(), np.asarray(chances).tolist(), outputs, strict=True
    ):
        if not route._active:
            results.append(Internal("the query's route has ended and accepts no further output"))
        elif not valid:
            results.append(Internal(f"level '{level.name}' produced outputs that are not finite"))
        else:
            route._confidence = own
            route._active = route._reroutes(chance)
            route._outputs.append(output)
            results.append(route._active)
    return results


def ensembles(routes: Sequence[Route]) -> Floats:
    """Return the outputs of the ensembles of queries whose routes have ended, as `Route.answer` does for one.

    Args:
        routes: Routes of the queries, all of the same cascade.

    Returns:
        Probabilities, float64 [rows, classes]; for a regression its values, [rows, 1].

    Raises:
        Internal: A query still has to run a further level.
    """
    groups: dict[tuple[float, ...], list[int]] = {}
    for row, route in enumerate(routes):
        if route._active:
            raise Internal(f"level '{route._manifest.levels[route.level].name}' has not answered yet")
        groups.setdefault(route._candidate.weights[len(route._outputs) - 1], []).append(row)
    if len(groups) == 1:
        return _combined(next(iter(groups)), routes)
    total: Floats | None = None
    for weights, rows in groups.items():
        part = _combined(weights, [routes[row] for row in rows])
        if total is None:
            total = np.empty((len(routes), part.shape[1]))
        total[rows] = part
    assert total is not None  # there is a route
    return total


def _combined(weights: tuple[float, ...], routes: Sequence[Route]) -> Floats:
    by_level = zip(*(route._outputs for route in routes), strict=True)
    return combine(weights, [np.stack(outputs) for outputs in by_level])


def _numbers(values: Sequence[float | None], missing: float) -> float | Floats:
    """Return one number if all values are the same, else an array; `missing` replaces None."""
    if len(set(values)) == 1:
        return missing if values[0] is None else values[0]
    return np.array([missing if value is None else value for value in values])


@lru_cache(maxsize=1024)
def _levels_up_to(levels: tuple[int, ...], last: int) -> tuple[int, ...]:
    """Return a candidate's levels up to the last that may run, with the first in any case."""
    return tuple(index for position, index in enumerate(levels) if position == 0 or index <= last)
