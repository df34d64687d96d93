"""The demo's embedder, reranker and token classifier: their specs, and what the last two are trained with."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from demo import entities, reranking, search
from demo.texts import ENTITIES, make_examples, make_marked_examples
from demo.train import minilm_folder
from tidal_builders.specs import load_spec

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", [entities.MODEL, search.MODEL, reranking.RERANKER])
def test_the_spec_of_the_demo_is_accepted(name: str) -> None:
    spec = load_spec(ROOT / f"demo/{name}.yaml")
    assert (spec.kind, spec.name) == ("arlo", name)


def test_entities_of_the_texts_are_their_fillers() -> None:
    examples = make_marked_examples(200, seed=3)
    assert {kind for _, marks in examples for _, _, kind in marks} == set(ENTITIES)
    cities = {text[start:end] for text, marks in examples for start, end, kind in marks if kind == "city"}
    assert cities <= {"Berlin", "Osaka", "Lagos", "Lima", "Toronto", "Oslo", "Cairo", "Austin"}
    assert make_marked_examples(200, seed=3) == examples


def test_labels_of_tokens_are_iob2() -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    for text, marks in make_marked_examples(100, seed=4):
        offsets = tokenizer(text, return_offsets_mapping=True)["offset_mapping"]
        labels = entities.token_labels(offsets, marks)
        assert (labels[0], labels[-1]) == (-100, -100)
        names = ["O" if label < 0 else entities.LABELS[label] for label in labels]
        found = [
            (offsets[group.start()][0], offsets[group.end() - 1][1], names[group.start()][2:])
            for group in re.finditer("BI*", "".join(name[0] for name in names))
        ]
        assert found == marks


def test_the_documents_to_search_are_distinct() -> None:
    found = search.documents(400)
    assert len(found) == len(set(found)) == 400
    assert np.char.str_len(np.array(found)).min() > 0


def test_half_of_the_pairs_are_of_one_intent() -> None:
    intents = dict(make_examples(200, seed=3))
    pairs, truth = reranking.make_pairs(200, seed=3)
    assert sum(truth) == 100
    assert [int(intents[query] == intents[text]) for query, text in pairs] == truth
    assert all(query != text for query, text in pairs)
