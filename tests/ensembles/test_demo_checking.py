"""The demo's pairs of text and label: what is trained on, and what is asked about."""

from __future__ import annotations

from demo.checking import DOES_NOT, FITS, Checked, make_pairs, stopped_by_confidence, unseen_texts
from demo.metrics import WANTED, chosen
from demo.texts import LABELS, make_examples


def test_half_of_the_pairs_fit() -> None:
    pairs, truth = make_pairs(640, seed=1)
    right = dict(make_examples(640, seed=1))
    assert truth.count(FITS) == truth.count(DOES_NOT) == 320
    for (text, label), fits in zip(pairs, truth, strict=True):
        assert label in LABELS
        assert (fits == FITS) == (text in right and LABELS[right[text]] == label)
    assert sum(text not in right for text, _ in pairs) == 160


def test_texts_that_are_asked_about_were_not_trained_on() -> None:
    known, others = unseen_texts(3)
    pairs, _ = make_pairs(640, seed=1)
    seen = {text for text, _ in pairs} | {text for text, _ in make_examples(480, seed=5)}
    assert [label for _, label in known] == 3 * list(LABELS)
    assert len(set(known)) == len(set(others)) == 24
    assert not seen & {*others, *(text for text, _ in known)}


def test_a_bound_on_confidence_lets_as_many_pass() -> None:
    def answered(*confidences: float) -> list[Checked]:
        return [Checked("weather", 1, each, FITS, 0.9) for each in confidences]

    known, others = answered(0.9, 0.5, 0.8, 0.7), answered(0.95, 0.75, 0.6, 0.1)
    assert [stopped_by_confidence(known, others, passed) for passed in (0, 1, 3, 4)] == [4, 3, 2, 1]


def test_metrics_are_lines_of_the_page() -> None:
    page = "\n".join(
        [
            "# HELP tidal_arlo_executed_queries_total Queries run.",
            'tidal_arlo_executed_queries_total{model="intents",runtime="32",version="1"} 12',
            'tidal_arlo_executed_queries_total{model="intents",runtime="64",version="1"} 0',
            'tidal_arlo_executed_queries_total{model="intents_padded",runtime="512",version="1"} 9',
            'nv_inference_request_success{model="text_to_checked_label",version="1"} 48',
        ]
    )
    assert chosen(page) == [page.splitlines()[1], page.splitlines()[4]]
    assert set(WANTED.values()) >= {"intents", "text_to_checked_label"}
