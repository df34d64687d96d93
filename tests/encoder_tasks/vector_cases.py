"""Small models in the form of sentence-transformers, with weights that depend on no library's random numbers.

What sentence-transformers computes with them is recorded in `vectors.json`, for all texts and pairs of texts.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from testing.models import make_tiny_classifier

VECTORS = Path(__file__).with_name("vectors.json")
TEXTS = (
    "please book a flight to berlin",
    "good",
    "the weather was bad , and the hotel was not good at all ; cancel the flight and the hotel please",
    "Song! (song) song... 3.14",
)
PAIRS = tuple(zip(TEXTS, TEXTS[::-1], strict=True))
_FORMS = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")


@dataclass(frozen=True)
class Case:
    """A model.

    Attributes:
        task: Task of encoders.
        head: Class of transformers.
        modules: Class and config of each module of sentence-transformers, the transformer's first.
        config: Further fields of config.json.
    """

    task: str
    head: str
    modules: tuple[tuple[str, dict[str, Any]], ...] = ()
    config: tuple[tuple[str, Any], ...] = ()


def _pooling(*modes: str) -> tuple[str, dict[str, Any]]:
    config: dict[str, Any] = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": False}
    names = {"cls": "cls_token", "max": "max_tokens", "mean": "mean_tokens", "weightedmean": "weightedmean_tokens"}
    return "models.Pooling", config | {f"pooling_mode_{names.get(mode, mode)}": True for mode in modes}


def _splade(strategy: str, activation: str) -> Case:
    module = "sparse_encoder.models.SpladePooling"
    config = {"pooling_strategy": strategy, "activation_function": activation, "word_embedding_dimension": 300}
    first: tuple[str, dict[str, Any]] = ("sparse_encoder.models.MLMTransformer", {})
    return Case("sparse-embedding", "BertForMaskedLM", (first, (module, config)))


_TRANSFORMER: tuple[str, dict[str, Any]] = ("models.Transformer", {})
_NORMALIZE: tuple[str, dict[str, Any]] = ("models.Normalize", {})
CASES: dict[str, Case] = {
    **{form: Case("embedding", "BertModel", (_TRANSFORMER, _pooling(form))) for form in _FORMS},
    "cls and mean, normalised": Case("embedding", "BertModel", (_TRANSFORMER, _pooling("cls", "mean"), _NORMALIZE)),
    "splade": _splade("max", "relu"),
    "splade, sum": _splade("sum", "relu"),
    "splade, two logarithms": _splade("max", "log1p_relu"),
    "cross-encoder": Case(
        "rerank",
        "BertForSequenceClassification",
        config=(("sentence_transformers", {"activation_fn": "torch.nn.modules.activation.Sigmoid"}),),
    ),
}


def make(folder: Path, name: str) -> Path:
    """Write the model of a case; returns `folder`."""
    import torch
    import transformers

    case = CASES[name]
    make_tiny_classifier(folder, layers=1, hidden=32, max_position=64)
    config = transformers.BertConfig(
        vocab_size=300, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48,
        max_position_embeddings=64, num_labels=1, **dict(case.config),
    )  # fmt: skip
    model = getattr(transformers, case.head)(config).eval()
    with torch.no_grad():
        for path, weight in model.named_parameters():
            draw = np.random.default_rng(zlib.crc32(path.encode()))
            weight.copy_(torch.from_numpy(draw.normal(size=tuple(weight.shape)).astype(np.float32) * 0.3))
    model.save_pretrained(folder)
    listed = []
    for index, (kind, values) in enumerate(case.modules):
        own = f"{index}_{kind.rpartition('.')[2]}" if index else ""
        listed.append({"idx": index, "name": str(index), "path": own, "type": f"sentence_transformers.{kind}"})
        if index:
            (folder / own).mkdir(exist_ok=True)
            (folder / own / "config.json").write_text(json.dumps(values))
    if case.task == "sparse-embedding":
        (folder / "config_sentence_transformers.json").write_text(json.dumps({"model_type": "SparseEncoder"}))
    if listed:
        (folder / "modules.json").write_text(json.dumps(listed))
    return folder
