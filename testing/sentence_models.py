"""Tiny random models for the tasks of encoders, with the files that sentence-transformers writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from testing.models import make_tiny_classifier


def make_tiny_encoder(folder: Path, head: str, *, max_position: int = 64, seed: int = 0, **config: Any) -> Path:
    """Write a random BERT of one layer with the tokenizer of `make_tiny_classifier`; returns `folder`.

    Args:
        folder: Folder to write.
        head: Class of transformers, such as `BertForMaskedLM`.
        max_position: Longest input in tokens.
        seed: Seed of the weights.
        config: Fields of the model's config.
    """
    import torch
    import transformers

    make_tiny_classifier(folder, layers=1, max_position=max_position, seed=seed)
    made = transformers.BertConfig.from_pretrained(folder)
    made.architectures = None
    for name, value in config.items():
        setattr(made, name, value)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        getattr(transformers, head)(made).eval().save_pretrained(folder)
    return folder


def add_sentence_files(
    folder: Path,
    modules: Sequence[tuple[str, dict[str, Any]]],
    *,
    options: dict[str, Any] | None = None,
    max_seq_length: int | None = None,
) -> Path:
    """Write modules.json, a folder per module after the transformer, and the options; returns `folder`.

    Args:
        folder: Folder of the model.
        modules: Class and config of each module; the first is the transformer.
        options: Content of config_sentence_transformers.json.
        max_seq_length: Longest input in tokens.
    """
    listed = []
    for index, (kind, config) in enumerate(modules):
        name = f"{index}_{kind}" if index else ""
        listed.append({"idx": index, "name": str(index), "path": name, "type": f"sentence_transformers.models.{kind}"})
        if index:
            (folder / name).mkdir(exist_ok=True)
            (folder / name / "config.json").write_text(json.dumps(config))
    (folder / "modules.json").write_text(json.dumps(listed))
    if options is not None:
        (folder / "config_sentence_transformers.json").write_text(json.dumps(options))
    if max_seq_length is not None:
        (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": max_seq_length}))
    return folder


def make_embedding_model(folder: Path, *, pooling: str = "mean", dense: int | None = None, **files: Any) -> Path:
    """Write an embedding model that normalises its vectors; returns `folder`.

    Args:
        folder: Folder to write.
        pooling: Pooling mode by its key in older files, without `pooling_mode_`, or by its name.
        dense: Outputs of a dense layer with tanh; None for no such layer.
        files: See `add_sentence_files`.
    """
    make_tiny_encoder(folder, "BertModel")
    modules: list[tuple[str, dict[str, Any]]] = [("Transformer", {}), ("Pooling", {"pooling_mode": pooling})]
    if dense is not None:
        config = {"in_features": 64, "out_features": dense, "activation_function": "torch.nn.modules.activation.Tanh"}
        modules.append(("Dense", {**config, "bias": True}))
    add_sentence_files(folder, [*modules, ("Normalize", {})], **files)
    if dense is not None:
        import torch
        from safetensors.torch import save_file

        draw = torch.Generator().manual_seed(1)
        weights = {
            "linear.weight": torch.randn(dense, 64, generator=draw) / 8,
            "linear.bias": torch.randn(dense, generator=draw),
        }
        save_file(weights, folder / "2_Dense/model.safetensors")
    return folder
