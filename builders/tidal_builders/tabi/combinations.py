"""Runs of combinations of levels: each level on the queries as pruning at the level before leaves them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tidal.errors import InvalidArgument
from tidal.tabi.manifest import Candidate, ExpectedLoss, Latency, Metric
from tidal.tabi.pruning import kept_words, prune_text
from tidal.tabi.serving_overhead import ServingOverhead
from tidal.text.words import EncodedWords, WordTokenizer
from tidal_builders.tabi.calibration import calibrate
from tidal_builders.tabi.data import (
    CALIBRATION,
    REPORT,
    SELECTION,
    CollectedLevel,
    Importance,
    Indices,
    LabelledData,
    LevelOutputs,
    Rerun,
    Texts,
)
from tidal_builders.tabi.evaluate import LevelChain, latency, predictions, score
from tidal_builders.tabi.pareto import Configuration


@dataclass(frozen=True, slots=True)
class CombinationRun:
    """The outputs of a combination's levels, run one after the other.

    Attributes:
        outputs: Outputs of each level on n queries, pruned from the second level on.
        words: Number of words of each query, [n]; 0 if nothing is pruned.
        removed: Number of words removed before the second level and each further one, [levels - 1, n].
    """

    outputs: tuple[LevelOutputs, ...]
    words: Indices
    removed: Indices

    def take(self, rows: Indices) -> CombinationRun:
        """Return the run on some of its queries.

        Args:
            rows: Positions of the queries in the run.
        """
        return CombinationRun(tuple(each.take(rows) for each in self.outputs), self.words[rows], self.removed[:, rows])


@dataclass(frozen=True, slots=True)
class _PrunedTexts:
    """Pruned texts, with each query's number of words before and after, [n]."""

    texts: list[tuple[str, ...]]
    before: Indices
    after: Indices


class CombinationRunner:
    """Runs combinations of levels; the levels' outputs on whole texts are given.

    Args:
        texts: Texts of all queries.
        levels: Levels with their outputs on these texts.
        rerun: Runs a level, by its index in `levels`, on pruned texts.
    """

    def __init__(
        self, texts: Texts, levels: Sequence[CollectedLevel], rerun: Callable[[int, Texts], LevelOutputs]
    ) -> None:
        self._texts, self._levels, self._rerun = texts, levels, rerun
        # Tokens of whole texts by level, and pruned texts by the levels that pruned them, scale and queries: scales
        # and combinations share them.
        self._encoded: dict[int, list[EncodedWords]] = {}
        self._pruned: dict[tuple[tuple[int, ...], float, bytes], _PrunedTexts] = {}

    def alone(self, level: int) -> LevelOutputs:
        """Return a level's outputs on all whole texts."""
        return self._levels[level].outputs

    def can_prune(self, levels: Sequence[int]) -> bool:
        """Return whether all levels but the last give the importance of words."""
        return all(self._levels[level].outputs.importance is not None for level in levels[:-1])

    def run(self, levels: Sequence[int], scale: float | None, rows: Indices) -> CombinationRun:
        """Run levels one after the other on some queries; each prunes the queries for the next.

        Args:
            levels: Indices of the levels.
            scale: Scale α of Tabi Eq. 5; None prunes nothing.
            rows: Indices of the queries.

        Raises:
            InvalidArgument: A text cannot be tokenised by a level's tokenizer.
        """
        first = self._levels[levels[0]].outputs.take(rows)
        none = np.zeros((len(levels) - 1, len(rows)), np.int64)
        if scale is None:
            rest = [self._levels[level].outputs.take(rows) for level in levels[1:]]
            return CombinationRun((first, *rest), none.sum(axis=0), none)
        outputs, pruned = [first], list[_PrunedTexts]()
        for place, following in enumerate(levels[1:], start=1):
            key = tuple(levels[:place]), scale, rows.tobytes()
            if key not in self._pruned:
                queries = self._queries(levels[place - 1], rows, pruned)
                importance = outputs[-1].importance
                assert importance is not None  # see `can_prune`
                self._pruned[key] = _prune(queries, importance, scale)
            pruned.append(self._pruned[key])
            outputs.append(self._rerun(following, pruned[-1].texts))
        removed = np.cumsum([each.before - each.after for each in pruned], axis=0)
        return CombinationRun(tuple(outputs), pruned[0].before, removed)

    def _queries(self, level: int, rows: Indices, pruned: Sequence[_PrunedTexts]) -> list[EncodedWords]:
        """Return the queries, tokenised for a level: whole, or as the level before it has pruned them."""
        tokenizer = self._levels[level].tokenizer
        if pruned:
            return _encode(tokenizer, pruned[-1].texts)
        if level not in self._encoded:
            self._encoded[level] = _encode(tokenizer, self._texts)
        return [self._encoded[level][row] for row in rows.tolist()]


class CombinationEvaluator:
    """Calibrated levels in ascending order of their scores, and the evaluation of their combinations.

    Levels are identified by their position in that order.

    Args:
        data: Labelled queries.
        levels: Levels in any order, with their outputs on all queries.
        rerun: Runs one of `levels` on pruned queries.
        metric: Metric of the answers.
        tolerance: Tolerance of a regression, see `calibrate`.
        serving: Time that serving adds to the engines; None leaves it out.

    Attributes:
        order: Index in `levels` of each position.
        calibrated: Calibration of each position.
    """

    def __init__(
        self,
        data: LabelledData,
        levels: Sequence[CollectedLevel],
        rerun: Rerun,
        *,
        metric: Metric,
        tolerance: float | None,
        serving: ServingOverhead | None = None,
    ) -> None:
        self._data, self._metric, self._serving = data, metric, serving
        order = ascending(data, levels, metric)
        self.order = tuple(order)
        self.names = tuple(levels[index].name for index in order)
        self.calibrated = tuple(calibrate(levels[index].outputs.logits, data, tolerance) for index in order)
        self._runner = CombinationRunner(
            data.texts, [levels[index] for index in order], lambda level, texts: rerun(order[level], texts)
        )
        self._chains: dict[tuple[tuple[int, ...], float | None, int], LevelChain] = {}

    def can_prune(self, levels: tuple[int, ...]) -> bool:
        """Return whether all levels of a combination but the last give the importance of words."""
        return self._runner.can_prune(levels)

    def rows(self, *parts: int) -> Indices:
        """Return the indices of the queries of some parts, ascending."""
        return np.flatnonzero(np.isin(self._data.part, parts))

    def run(self, levels: tuple[int, ...], pruning: float | None, rows: Indices) -> CombinationRun:
        """Run a combination on some queries; see `CombinationRunner.run`."""
        return self._runner.run(levels, pruning, rows)

    def chain(self, levels: tuple[int, ...], pruning: float | None, run: CombinationRun, rows: Indices) -> LevelChain:
        """Return a combination as a chain that can be evaluated at any cut-off.

        Args:
            levels: Positions of the levels.
            pruning: Scale α of the run.
            run: Run of the combination on the queries.
            rows: Indices of the queries.
        """
        added_ms = None
        if self._serving is not None:
            added_ms = self._serving.added([self.names[level] for level in levels], pruned=pruning is not None)
        return LevelChain(
            run.outputs,
            [self.calibrated[level].calibration for level in levels],
            self._data.truth[rows],
            words=run.words,
            removed=run.removed,
            metric=self._metric,
            added_ms=added_ms,
        )

    def chain_of(self, levels: tuple[int, ...], pruning: float | None, part: int) -> LevelChain:
        """Return a combination on a part of the data as a chain, made once; see `chain`."""
        key = levels, pruning
        if (*key, part) not in self._chains:
            # The report part is run only for what is kept; the other two are always needed together.
            parts = (REPORT,) if part == REPORT else (CALIBRATION, SELECTION)
            rows = self.rows(*parts)
            run = self.run(levels, pruning, rows)
            for each in parts:
                inside = np.flatnonzero(self._data.part[rows] == each)
                self._chains[(*key, each)] = self.chain(levels, pruning, run.take(inside), rows[inside])
        return self._chains[(*key, part)]

    def engine_latency(self, level: int) -> Latency:
        """Return the latency of a level's engine on the report part, without what serving adds."""
        times = np.sort(self._runner.alone(level).latency_ms[self.rows(REPORT)])
        return latency(times, np.ones(len(times)))

    def single(self, level: int) -> Configuration:
        """Return the configuration that consists of one level."""
        weights = ((1.0,),)
        search, selection = (self.chain_of((level,), None, part) for part in (CALIBRATION, SELECTION))
        expected = selection.expected(selection.reach(None, None), weights)
        score = search.score(search.reach(None, None), weights)
        return Configuration((level,), None, None, None, None, weights, expected, score)

    def reported(
        self, configurations: Sequence[Configuration], losses: Mapping[Configuration, ExpectedLoss]
    ) -> list[Candidate]:
        """Evaluate configurations on the report part.

        Args:
            configurations: Configurations with the same levels and the same pruning.
            losses: Losses of those that were compared with the most accurate level.
        """
        levels, pruning = configurations[0].levels, configurations[0].pruning
        chain = self.chain_of(levels, pruning, REPORT)
        return [
            Candidate(
                name=self._name(each),
                levels=levels,
                cutoff=each.cutoff,
                slope=each.slope,
                pruning=each.pruning,
                weights=each.weights,
                weighting=each.weighting,
                selection=each.selection,
                loss=losses.get(each),
                reported=chain.expected(chain.reach(each.cutoff, each.slope), each.weights),
            )
            for each in configurations
        ]

    def _name(self, configuration: Configuration) -> str:
        """Return a name such as `small+large c=0.9 k=10 alpha=0.7 tuned`."""
        parts = ["+".join(self.names[level] for level in configuration.levels)]
        if configuration.cutoff is not None:
            parts += [f"c={configuration.cutoff:g}", f"k={configuration.slope:g}"]
        if configuration.pruning is not None:
            parts.append(f"alpha={configuration.pruning:g}")
        return " ".join([*parts, *([configuration.weighting] if configuration.weighting else [])])


def ascending(data: LabelledData, levels: Sequence[CollectedLevel], metric: Metric) -> list[int]:
    """Return the indices of levels by score outside the report part; among equals the faster one first.

    Args:
        data: Labelled queries.
        levels: Levels with their outputs on all queries.
        metric: Metric of the answers.
    """
    known = data.part != REPORT

    def rank(index: int) -> tuple[float, float]:
        outputs = levels[index].outputs
        answers = predictions(metric, outputs.logits[known])
        return score(metric, answers, data.truth[known]), float(outputs.latency_ms[known].mean())

    return sorted(range(len(levels)), key=rank)


def _prune(queries: Sequence[EncodedWords], importance: Importance, scale: float) -> _PrunedTexts:
    """Prune queries for the next level, exactly as in serving."""
    texts, before, after = [], [], []
    for encoded, received in zip(queries, importance, strict=True):
        kept = kept_words(encoded, received, scale)
        texts.append(prune_text(encoded.texts, encoded.spans, kept))
        before.append(len(kept))
        after.append(int(kept.sum()))
    return _PrunedTexts(texts, np.array(before, np.int64), np.array(after, np.int64))


def _encode(tokenizer: WordTokenizer, texts: Texts) -> list[EncodedWords]:
    first, *second = ([text.encode() for text in part] for part in zip(*texts, strict=True))
    encoded = []
    for each in tokenizer.encode(first, second[0] if second else None):
        if isinstance(each, InvalidArgument):
            raise each
        encoded.append(each)
    return encoded
