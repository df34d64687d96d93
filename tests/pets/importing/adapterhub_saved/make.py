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
LABELLED = {"num_labels": 3, "id2label": LABELS}
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


def values(outputs: Any) -> Any:
    """Logits of one text, of all its tokens, or of starts and ends; or hidden states."""
    if hasattr(outputs, "start_logits"):
        return torch.stack([outputs.start_logits[0], outputs.end_logits[0]], -1).tolist()
    return (outputs.logits if hasattr(outputs, "logits") else outputs.last_hidden_state)[0].tolist()


def save(model: Any, name: str, *, pairs: bool = False, head: bool = True) -> Any:
    """Save an adapter with its head; the answers to the texts, one at a time, of `pairs` each before the next one."""
    model.save_adapter(str(HERE / name), name, with_head=head, use_safetensors=True)
    for file in (HERE / name).glob("*.json"):
        file.write_text(file.read_text().replace(str(HERE / "base"), "some/base"))
    with torch.inference_mode():
        queries = zip(TEXTS, (*TEXTS[1:], TEXTS[0]), strict=True) if pairs else ((text,) for text in TEXTS)
        return [values(model(**TOKENIZER(*query, return_tensors="pt"))) for query in queries]


def flexible(name: str, config: Any, add_head: str | None, *, pairs: bool = False, **head: Any) -> Any:
    """An adapter with one of the library's own heads, or without a head."""
    torch.manual_seed(5)
    model = adapters.AutoAdapterModel.from_pretrained(HERE / "base")
    model.add_adapter(name, config=config)
    if add_head is not None:
        getattr(model, add_head)(name, **head)
    model.set_active_adapters(name)
    randomise(model, "heads.")
    return save(model, name, pairs=pairs, head=add_head is not None)


def plain(name: str, architecture: Any) -> Any:
    """An adapter in one of transformers' own models, with that model's head."""
    torch.manual_seed(6)
    model = architecture.from_pretrained(HERE / "base", id2label=LABELS, num_labels=len(LABELS))
    adapters.init(model)
    model.add_adapter(name, config=adapters.DoubleSeqBnConfig(reduction_factor=8))
    model.set_active_adapters(name)
    randomise(model, "classifier")
    return save(model, name)


def houlsby(non_linearity: str) -> Any:
    return adapters.DoubleSeqBnConfig(reduction_factor=8, non_linearity=non_linearity)


def pfeiffer(**options: Any) -> Any:
    return adapters.SeqBnConfig(reduction_factor=8, **options)


if __name__ == "__main__":
    head = "add_classification_head"
    logits = {
        "houlsby": flexible("houlsby", houlsby("swish"), head, layers=2, **LABELLED),
        "pooled": flexible("pooled", houlsby("relu"), head, layers=1, use_pooler=True, **LABELLED),
        "pfeiffer": flexible("pfeiffer", pfeiffer(), head, layers=2, **LABELLED),
        "both": flexible("both", pfeiffer(mh_adapter=True, non_linearity="gelu"), head, layers=2, **LABELLED),
        "regression": flexible("regression", houlsby("swish"), head, layers=2, num_labels=1),
        "multi_label": flexible("multi_label", houlsby("swish"), head, multilabel=True, **LABELLED),
        "tagging": flexible("tagging", pfeiffer(), "add_tagging_head", **LABELLED),
        "spans": flexible("spans", pfeiffer(), "add_qa_head", pairs=True),
        "headless": flexible("headless", pfeiffer(), None),
        "plain": plain("plain", BertForSequenceClassification),
        "plain_tokens": plain("plain_tokens", BertForTokenClassification),
    }
    content = {"library": f"adapters {adapters.__version__}", "texts": TEXTS, "logits": logits}
    (HERE / "answers.json").write_text(json.dumps(content) + "\n")
