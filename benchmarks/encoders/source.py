"""The sources of the measured models: all-MiniLM-L6-v2, and a cross-encoder of its size with a random head."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Literal

from demo.train import minilm_folder

Task = Literal["embed", "rerank"]
TASKS: tuple[Task, ...] = ("embed", "rerank")
#: Longest input in tokens, as all-MiniLM-L6-v2's `sentence_bert_config.json` has it; no text is longer.
LONGEST = 256
#: File in a source's folder for peers on ONNX Runtime.
ONNX = "model.onnx"
# Scores of a head drawn with this deviation spread over the range of the sigmoid.
_HEAD_DEVIATION = 0.5
_OPSET = 17
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")


def write_source(task: Task, target: Path) -> None:
    """Write a model in Hugging Face's format, and as ONNX file with the outputs that peers expect.

    Args:
        task: Task of the model.
        target: Folder to write.
    """
    import torch
    from transformers import AutoModel, BertForSequenceClassification

    shutil.rmtree(target, ignore_errors=True)
    if task == "embed":
        shutil.copytree(minilm_folder(), target, ignore=shutil.ignore_patterns("*.onnx", "README.md"))
        model = AutoModel.from_pretrained(target, attn_implementation="eager")
        output = "last_hidden_state"
    else:
        torch.manual_seed(0)
        model = BertForSequenceClassification.from_pretrained(minilm_folder(), num_labels=1)
        torch.nn.init.normal_(model.classifier.weight, std=_HEAD_DEVIATION)
        model.save_pretrained(target)
        for file in _TOKENIZER:
            shutil.copy(minilm_folder() / file, target)
        model = BertForSequenceClassification.from_pretrained(target, attn_implementation="eager")
        output = "logits"
    _set_longest(target / "tokenizer_config.json")
    _write_onnx(model, output, target / ONNX)


def _set_longest(file: Path) -> None:
    """Make every peer truncate at the same length; FastEmbed prefers `max_length`, others `model_max_length`."""
    config = json.loads(file.read_text(encoding="utf-8"))
    config.pop("max_length", None)
    file.write_text(json.dumps(config | {"model_max_length": LONGEST}, indent=2), encoding="utf-8")


def _write_onnx(model: Any, output: str, file: Path) -> None:
    """Write an ONNX file; that of a cross-encoder has no segment ids, because infinity does not pass them."""
    import torch

    class OneOutput(torch.nn.Module):
        """The model with positional inputs and one output."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor | None = None) -> torch.Tensor:
            found = self.model(input_ids=ids, attention_mask=mask, token_type_ids=types)
            tensor: torch.Tensor = getattr(found, output)
            return tensor

    inputs = ["input_ids", "attention_mask", "token_type_ids"][: 2 if output == "logits" else 3]
    axes = {name: {0: "rows", 1: "tokens"} for name in inputs} | {output: {0: "rows"}}
    if output == "last_hidden_state":
        axes[output][1] = "tokens"
    torch.onnx.export(
        OneOutput().eval().requires_grad_(False),
        tuple(torch.ones(2, 16, dtype=torch.int64) for _ in inputs),
        str(file),
        input_names=inputs,
        output_names=[output],
        dynamic_axes=axes,
        opset_version=_OPSET,
        dynamo=False,
    )
