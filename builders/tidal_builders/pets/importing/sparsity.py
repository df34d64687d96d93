"""Chooses how sparse a fully fine-tuned checkpoint is stored, by how the task answers on the engine that serves it."""

from __future__ import annotations

import numpy as np

from tidal.errors import InvalidArgument, TidalError
from tidal_builders.pets.importing.found import Imported, ImportOptions
from tidal_builders.pets.importing.held import Comparison, agreement, right
from tidal_builders.pets.importing.ladder import Step, best, climb

# Labelled queries that are asked at every step; all of them are asked of the task that is stored.
_MOST_ROWS = 1000


def choose_sparsity(found: Imported, comparison: Comparison, options: ImportOptions) -> Imported:
    """The sparsest task of a checkpoint that keeps its answers.

    With labelled queries these are accuracies, else agreement on made texts (`agreement`).

    Args:
        found: a checkpoint of which differences are kept, see `Imported.at_sparsity`.
        comparison: of the checkpoint with the base's published version.
        options: `least` is the bound; with `force` the best is taken where none reaches it.

    Raises:
        InvalidArgument: none reaches the bound, or none can be measured.
    """
    at, truth = found.at_sparsity, comparison.truth
    assert at is not None

    def measure(sparsity: float) -> Step:
        terms = at(sparsity).terms
        places = np.linspace(0, len(comparison.texts) - 1, min(len(comparison.texts), _MOST_ROWS)).round().astype(int)
        answers, wanted = comparison.answers(terms, places.tolist()), comparison.wanted[places]
        if truth is None:
            score = agreement(wanted, answers)
            return Step(sparsity, score, f"{score:.1%}")
        accuracy, before = right(answers, truth[places]), right(wanted, truth[places])
        return Step(sparsity, 1 - max(0.0, before - accuracy), f"{accuracy:.2%}")

    try:
        steps = climb(measure, options.least)
    except TidalError as error:
        raise InvalidArgument(f"no sparsity can be chosen: {error}; name one by --sparsity") from None
    what = "agreement" if truth is None else "accuracy"
    figures = ", ".join(map(str, steps))
    if steps[-1].score < options.least and not options.force:
        lost = "; ".join(note for note in found.provenance.notes if note.startswith("not carried"))
        raise InvalidArgument(
            f"no sparsity keeps the checkpoint's answers: {what} is {figures}; accepted is {_bound(options)}. "
            f"{lost + '. ' if lost else ''}Nothing was added (--force adds the best)"
        )
    chosen = at(best(steps).sparsity)
    note = f"sparsity {best(steps).sparsity:g} was chosen by {what}: {figures}; accepted is {_bound(options)}"
    provenance = chosen.provenance.model_copy(update={"notes": (*chosen.provenance.notes, note)})
    return Imported(
        chosen.kind, chosen.terms, provenance, chosen.source, lossless=chosen.lossless, carried=chosen.carried
    )


def _bound(options: ImportOptions) -> str:
    if options.data is None:
        return f"{options.least:.1%} and more (--min-agreement)"
    return f"a loss of up to {1 - options.least:.2%} (1 - --min-agreement)"
