"""The ONNX file of every head, from which TensorRT plans are built, against the unmodified source model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import openvino as ov
import pytest

from testing.models import make_tiny_classifier
from testing.sentence_models import make_embedding_model, make_tiny_encoder
from testing.token_models import make_tiny_head
from tidal.engines.exporting import export_program, write_onnx
from tidal_builders.arlo.source import Exported, load_source
from tidal_builders.encoder_tasks.entries import BUILD_TASKS
from tidal_builders.encoder_tasks.logits import Logits
from tidal_builders.encoder_tasks.prepared import PrepareOptions

pytestmark = pytest.mark.slow

MAX_BATCH, MAX_LENGTH = 8, 64
SENTENCES = [
    "good",
    "please book a flight to the city",
    "the weather is not bad today but the food was awful",
    "[MASK] is the song of the city",
]
classifier = partial(make_tiny_classifier, layers=1, hidden=32, max_position=MAX_LENGTH)
#: Tasks by the graph of their head; that of multi-label, regression and rerank is the classification's.
SOURCES: dict[str, Callable[[Path], Path]] = {
    "classification": classifier,
    "embedding": lambda folder: make_embedding_model(folder, pooling="weightedmean", dense=24),
    "sparse-embedding": lambda folder: make_tiny_encoder(folder, "BertForMaskedLM"),
    "token-classification": lambda folder: make_tiny_head(folder, "TokenClassification", labels=("O", "B-A", "I-A")),
    "question-answering": lambda folder: make_tiny_head(folder, "QuestionAnswering"),
    "fill-mask": lambda folder: make_tiny_head(folder, "MaskedLM"),
}


def test_the_other_tasks_have_the_graph_of_a_classification(tmp_path: Path) -> None:
    folder = make_tiny_classifier(tmp_path, layers=1, hidden=32, max_position=MAX_LENGTH, labels=("score",))
    for task in BUILD_TASKS.keys() - SOURCES.keys():
        assert isinstance(load_source(folder, task, PrepareOptions()).prepared.tail, Logits), task


@pytest.mark.parametrize("task", SOURCES)
def test_a_padded_batch_of_the_file_equals_the_source_models_rows(tmp_path: Path, task: str) -> None:
    source = load_source(SOURCES[task](tmp_path / "source"), task, PrepareOptions())
    pairs = SENTENCES[::-1] if BUILD_TASKS[task].pairs else None
    batch = dict(source.tokenizer(SENTENCES, pairs, padding=True, return_tensors="np"))
    batch = {name: batch[name].astype(np.int64) for name in ("input_ids", "attention_mask", "token_type_ids")}
    shapes = dict.fromkeys(batch, ((1, MAX_BATCH), (1, MAX_LENGTH)))
    # Other sizes than those of the batch.
    example = {name: np.ascontiguousarray(values[:2, :7]) for name, values in batch.items()}
    program = export_program(Exported(source, attention=False), precision="fp32", shapes=shapes, example=example)
    write_onnx(program, tmp_path / "model.onnx")
    onnx.checker.check_model(onnx.load(tmp_path / "model.onnx"), full_check=True)
    compiled = ov.compile_model(tmp_path / "model.onnx", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    output = source.main_output
    found = compiled(batch)[output.name]
    assert found.shape == (len(SENTENCES), *([batch["input_ids"].shape[1]] if output.per_token else []), output.width)
    largest = 0.0
    for number, length in enumerate(batch["attention_mask"].sum(1)):
        row = {name: values[number, :length] for name, values in batch.items()}
        wanted = source.outputs(row, attention=False)[output.name]
        largest = max(largest, float(np.abs(wanted).max()))
        got = found[number, :length] if output.per_token else found[number]
        np.testing.assert_allclose(got, wanted, atol=1e-4 * max(1.0, largest))
    assert largest > 1e-3
