"""Embeddings and scores of source models, prepared as builds do, equal recorded ones of sentence-transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demo.train import minilm_folder
from tests.encoder_tasks.vector_cases import CASES, PAIRS, TEXTS, VECTORS, make
from tidal.pets.heads import computed
from tidal.pets.terms import EncoderOutputs
from tidal_builders.arlo.source import load_source
from tidal_builders.encoder_tasks.detect import choose_task
from tidal_builders.encoder_tasks.prepared import PrepareOptions
from tidal_builders.pets.base import base_layers
from tidal_builders.pets.encoder import read_encoder
from tidal_builders.pets.importing.imported import ImportBase, ImportOptions
from tidal_builders.pets.importing.recognise import import_task
from tidal_builders.pets.source import load_encoder

RECORDED: dict[str, Any] = json.loads(VECTORS.read_text())["values"]
LEAST_COSINE = 0.99999


def source_values(folder: Path, task: str, texts: Any) -> list[Any]:
    """Outputs of the source model as engines are made of it, for one text or pair after another."""
    source = load_source(folder, task, PrepareOptions())
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if source.type_ids else [])]
    found = []
    for text in texts:
        encoded = source.tokenizer(*([text] if isinstance(text, str) else text))
        row = {name: np.asarray(encoded[name], np.int64) for name in names}
        found.append(np.ravel(source.outputs(row, attention=False)[source.main_output.name]))
    return found


def assert_same(found: Any, name: str) -> None:
    wanted = np.asarray(RECORDED[name], np.float64)
    for got, expected in zip(found, wanted, strict=True):
        if len(expected) > 1:
            assert got @ expected / np.linalg.norm(got) / np.linalg.norm(expected) >= LEAST_COSINE
        np.testing.assert_allclose(got, expected, atol=2e-5 * max(1.0, float(np.abs(expected).max())))


@pytest.mark.parametrize("name", CASES)
def test_a_source_model(tmp_path: Path, name: str) -> None:
    task, folder = CASES[name].task, make(tmp_path, name)
    assert choose_task(folder, "auto", "arlo") == task
    if task == "rerank":
        logits = source_values(folder, task, PAIRS)
        assert_same([1 / (1 + np.exp(-each)) for each in logits], name)
    else:
        assert_same(source_values(folder, task, TEXTS), name)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.task != "rerank"])
def test_a_head_of_a_shared_encoder(tmp_path: Path, name: str) -> None:
    """The same folder imported as a task of its own encoder, all texts in one padded batch."""
    from transformers import AutoTokenizer

    folder = make(tmp_path, name)
    encoder, _ = load_encoder(folder)
    base = ImportBase(*base_layers(read_encoder(encoder)), str(folder), folder)
    head = import_task(folder, base, ImportOptions()).terms.head
    assert head.task == CASES[name].task
    batch = AutoTokenizer.from_pretrained(folder)(list(TEXTS), padding=True, return_tensors="pt")
    hidden = encoder(**batch).last_hidden_state.detach().numpy()
    loaded = head.loaded(encoder.get_input_embeddings().weight.detach().numpy())
    lengths = batch["attention_mask"].sum(1).numpy()
    outputs = EncoderOutputs(hidden[:, 0], hidden)
    assert_same(computed(loaded, outputs, range(len(TEXTS)), lengths, list(batch["input_ids"].numpy())), name)


def test_all_minilm() -> None:
    assert_same(source_values(minilm_folder(), "embedding", TEXTS[:2]), "all-MiniLM-L6-v2")
