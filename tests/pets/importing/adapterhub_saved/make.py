"""Writes the adapters of this folder, and what AdapterHub's own library answers with them, into `answers.json`.

The library needs another release of transformers than Tidal, so this runs in an environment of its own, with
`adapters==1.3.0` and `transformers==4.57.6`: `python make.py`. The base is a random
`BertModel` of two layers; all adapters are random too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import adapters
import torch
from transformers import BertForSequenceClassification, BertForTokenClassification, PreTrainedTokenizerFast

HERE = Path(__file__).parent
TEXTS = (
    "good film", "the service was not very good", "book a flight to the city, please", "never again", "best song",
)  # fmt: skip
LABELS = {0: "down", 1: "same", 2: "up"}
SERVED = ("houlsby", "pooled", "plain")
READS = ["input_ids", "token_type_ids", "attention_mask"]
TOKENIZER = PreTrainedTokenizerFast(
    tokenizer_file=str(HERE / "base/tokenizer.json"), pad_token="[PAD]", model_input_names=READS
)


def randomise(model: Any, head: str) -> None:
    """Random values for the adapter and its head: both begin as nothing."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".adapters." in name or name.startswith(head):
                weight.copy_(torch.randn_like(weight) * (0.3 if weight.ndim > 1 else 0.2))
    model.eval()


def save(model: Any, name: str) -> list[list[float]]:
    """Save an adapter with its head; the answers to the texts, one at a time."""
    model.save_adapter(str(HERE / name), name, with_head=True, use_safetensors=True)
    for file in (HERE / name).glob("*.json"):
        file.write_text(file.read_text().replace(str(HERE / "base"), "some/base"))
    with torch.inference_mode():
        return [model(**TOKENIZER(text, return_tensors="pt")).logits[0].tolist() for text in TEXTS]


def flexible(name: str, non_linearity: str, add_head: str, **head: Any) -> list[list[float]]:
    """An adapter with one of the library's own heads."""
    torch.manual_seed(5)
    model = adapters.AutoAdapterModel.from_pretrained(HERE / "base")
    model.add_adapter(name, config=adapters.DoubleSeqBnConfig(reduction_factor=8, non_linearity=non_linearity))
    getattr(model, add_head)(name, **head)
    model.set_active_adapters(name)
    randomise(model, "heads.")
    return save(model, name)


def plain(name: str, architecture: Any) -> list[list[float]]:
    """An adapter in one of transformers' own models, with that model's head."""
    torch.manual_seed(6)
    model = architecture.from_pretrained(HERE / "base", id2label=LABELS, num_labels=len(LABELS))
    adapters.init(model)
    model.add_adapter(name, config=adapters.DoubleSeqBnConfig(reduction_factor=8))
    model.set_active_adapters(name)
    randomise(model, "classifier")
    return save(model, name)


if __name__ == "__main__":
    classes: dict[str, Any] = {"num_labels": 3, "id2label": LABELS}
    answers = {
        "houlsby": flexible("houlsby", "swish", "add_classification_head", layers=2, **classes),
        "pooled": flexible("pooled", "relu", "add_classification_head", layers=1, use_pooler=True, **classes),
        "regression": flexible("regression", "swish", "add_classification_head", layers=2, num_labels=1),
        "multi_label": flexible("multi_label", "swish", "add_classification_head", multilabel=True, **classes),
        "tagging": flexible("tagging", "swish", "add_tagging_head", **classes),
        "plain": plain("plain", BertForSequenceClassification),
        "plain_tokens": plain("plain_tokens", BertForTokenClassification),
    }
    content = {"library": f"adapters {adapters.__version__}", "texts": TEXTS}
    content["logits"] = {name: answers[name] for name in SERVED}
    (HERE / "answers.json").write_text(json.dumps(content, indent=1) + "\n")
