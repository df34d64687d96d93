"""Chooses the sparsity of a fully fine-tuned checkpoint by the task's answers on the engine that serves it."""

from __future__ import annotations

import numpy as np

from tidal.errors import InvalidArgument, TidalError
from tidal_builders.pets.importing.comparison import SourceComparison, accuracy_of, agreement
from tidal_builders.pets.importing.imported import Imported, ImportOptions
from tidal_builders.pets.importing.ladder import SparsityStep, best_step, climb

# Number of labelled queries per step; the stored task answers all of them.
_MAX_ROWS = 1000


def choose_sparsity(found: Imported, comparison: SourceComparison, options: ImportOptions) -> Imported:
    """Make the sparsest task of a checkpoint that keeps its answers.

    With labelled queries accuracies are compared, else agreement on generated texts (`agreement`).

    Args:
        found: Import of a checkpoint with differences, see `Imported.at_sparsity`.
        comparison: The checkpoint and the base's published version.
        options: `min_score` is the bound; with `force` the best task is returned if none reaches it.

    Raises:
        InvalidArgument: No sparsity reaches the bound, or none can be measured.
    """
    at, truth = found.at_sparsity, comparison.truth
    assert at is not None

    def measure(sparsity: float) -> SparsityStep:
        terms = at(sparsity).terms
        positions = np.linspace(0, len(comparison.texts) - 1, min(len(comparison.texts), _MAX_ROWS)).round().astype(int)
        answers = comparison.answers(terms, positions.tolist())
        wanted = [comparison.wanted[position] for position in positions]
        if truth is None:
            score = agreement(comparison.task, wanted, answers)
            return SparsityStep(sparsity, score, f"{score:.1%}")
        accuracy, before = accuracy_of(answers, truth[positions]), accuracy_of(wanted, truth[positions])
        return SparsityStep(sparsity, 1 - max(0.0, before - accuracy), f"{accuracy:.2%}")

    try:
        steps = climb(measure, options.min_score)
    except TidalError as error:
        raise InvalidArgument(f"no sparsity can be chosen: {error}; name one by --sparsity") from None
    what = "agreement" if truth is None else "accuracy"
    figures = ", ".join(map(str, steps))
    if steps[-1].score < options.min_score and not options.force:
        lost = "; ".join(note for note in found.provenance.notes if note.startswith("not carried"))
        raise InvalidArgument(
            f"no sparsity keeps the checkpoint's answers: {what} is {figures}; accepted is {_bound(options)}. "
            f"{lost + '. ' if lost else ''}Nothing was added (--force adds the best)"
        )
    chosen = at(best_step(steps).sparsity)
    note = f"sparsity {best_step(steps).sparsity:g} was chosen by {what}: {figures}; accepted is {_bound(options)}"
    provenance = chosen.provenance.model_copy(update={"notes": (*chosen.provenance.notes, note)})
    return Imported(
        chosen.kind, chosen.terms, provenance, chosen.source, lossless=chosen.lossless, carried=chosen.carried
    )


def _bound(options: ImportOptions) -> str:
    if options.data is None:
        return f"{options.min_score:.1%} and more (--min-agreement)"
    return f"a loss of up to {1 - options.min_score:.2%} (1 - --min-agreement)"
