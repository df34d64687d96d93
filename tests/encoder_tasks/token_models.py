"""The models of the tests of tasks that are about tokens, on a real server."""

from __future__ import annotations

import shutil
from pathlib import Path

from testing.classifiers import build_classifier
from testing.config import parameter
from tests.encoder_tasks.token_sources import MAX_LENGTH, STRIDE, Sources


def build_token_models(repository: Path, sources: Sources) -> None:
    """Build a model for each task that is about tokens, and embedding models that read windows.

    `ner_windows`, `qa`, `vectors` and `unit_vectors` (normalised) read long texts in windows, and `qa_cut` truncates
    them. `qa_unsure` has questions without an answer, and answers of up to 3 tokens. `ner_torch`, `qa_parts` and
    `fill_parts` are on the engine torch. `ner_parts`, `qa_parts` and `fill_parts` have partitioned placement.
    """
    lengths = {"lengths": [16, MAX_LENGTH], "max_batch": 8}
    build_classifier(repository, sources.tokens, name="ner", **lengths)
    shutil.copytree(repository / "ner", repository / "ner_windows")
    config = repository / "ner_windows" / "config.pbtxt"
    windows = parameter("truncate", "stride") + parameter("stride", STRIDE)
    config.write_text(config.read_text().replace('name: "ner"', 'name: "ner_windows"') + windows)
    build_classifier(repository, sources.questions, name="qa", truncate="stride", stride=STRIDE, **lengths)
    shutil.copytree(repository / "qa", repository / "qa_cut")
    config = repository / "qa_cut" / "config.pbtxt"
    lines = config.read_text().replace('name: "qa"', 'name: "qa_cut"').splitlines()
    kept = [line for line in lines if '"stride"' not in line]
    config.write_text("\n".join([*kept, parameter("truncate", "true")]))
    attention = {"outputs": ["logits", "attention_received"]}
    build_classifier(repository, sources.masks, name="fill", task="fill-mask", **attention, **lengths)
    parts = {"placement": "partitioned", "slo_ms": 5000, "max_batch": 2}
    stride = {"truncate": "stride", "stride": STRIDE}
    build_classifier(repository, sources.holes, name="ner_parts", lengths=[16, MAX_LENGTH], **stride, **parts)
    one = {**parts, "lengths": [MAX_LENGTH]}  # each runtime is a process, and takes a second to start
    # Torch takes longer to export a model and to start.
    build_classifier(repository, sources.questions, name="qa_parts", engine="torch", **stride, **one)
    torch_engine = {"engine": "torch", "lengths": [MAX_LENGTH], **stride}
    build_classifier(repository, sources.tokens, name="ner_torch", **torch_engine)
    unsure = {"impossible_answers": True, "max_answer_tokens": 3}
    build_classifier(repository, sources.questions, name="qa_unsure", lengths=[MAX_LENGTH], **stride, **unsure)
    build_classifier(repository, sources.masks, name="fill_parts", task="fill-mask", engine="torch", **attention, **one)
    vectors = {"task": "embedding", "pooling": "mean", "truncate": "stride", **lengths}
    build_classifier(repository, sources.vectors, name="vectors", **vectors)
    build_classifier(repository, sources.vectors, name="unit_vectors", normalize=True, **vectors)
