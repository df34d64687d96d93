"""Entities in the demo's texts: a token classifier whose head is trained on frozen all-MiniLM-L6-v2."""

from __future__ import annotations

from pathlib import Path

from demo.texts import ENTITIES, make_marked_examples
from demo.train import minilm_folder

MODEL = "entities"
#: Texts with cities, persons and songs that are in no training text.
TEXTS = (
    "find me a plane ticket from Madrid to Nairobi on Friday",
    "tell Grandma that I will be late 🚂 and wake me up at nine",
    "transfer 75 dollars to Professor Li next Monday",
)
#: Labels of tokens.
LABELS = ("O", *(f"{mark}-{kind}" for kind in ENTITIES for mark in "BI"))


def token_labels(offsets: list[tuple[int, int]], marks: list[tuple[int, int, str]]) -> list[int]:
    """Return the IOB2 label of each token; -100 for special tokens, which are not trained.

    Args:
        offsets: First character and end of each token; equal for special tokens.
        marks: First character, end and kind of each entity.
    """
    labels = []
    for start, end in offsets:
        mark = next(((first, kind) for first, last, kind in marks if first <= start and end <= last), None)
        label = "O" if mark is None else f"{'B' if start == mark[0] else 'I'}-{mark[1]}"
        labels.append(-100 if start == end else LABELS.index(label))
    return labels


def train_entities(target: Path, *, count: int = 640, epochs: int = 60, seed: int = 0) -> float:
    """Train a head on the frozen features of tokens, and write a BertForTokenClassification folder.

    Args:
        target: Folder to write.
        count: Number of training texts.
        epochs: Passes over their tokens.
        seed: Seed of the texts and the head.

    Returns:
        Share of held-out tokens with the right label, from 0 to 1.
    """
    import torch
    from transformers import AutoTokenizer, BertForTokenClassification

    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    model = BertForTokenClassification.from_pretrained(
        minilm_folder(),
        num_labels=len(LABELS),
        id2label=dict(enumerate(LABELS)),
        label2id={name: index for index, name in enumerate(LABELS)},
    )
    model.eval()

    def features(texts: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        rows, truth = list[torch.Tensor](), list[int]()
        examples = make_marked_examples(texts, seed)
        with torch.inference_mode():
            for start in range(0, texts, 64):
                batch = examples[start : start + 64]
                tokens = tokenizer(
                    [text for text, _ in batch], padding=True, return_tensors="pt", return_offsets_mapping=True
                )
                offsets = tokens.pop("offset_mapping").tolist()
                hidden = model.bert(**tokens).last_hidden_state
                for row, (_, marks) in enumerate(batch):
                    rows.append(hidden[row])
                    truth += token_labels(offsets[row], marks)
        return torch.cat(rows).clone(), torch.tensor(truth)

    train_x, train_y = features(count, seed + 1)
    optimiser = torch.optim.AdamW(model.classifier.parameters(), lr=2e-2)
    for _ in range(epochs):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model.classifier(train_x), train_y).backward()
        optimiser.step()
    test_x, test_y = features(160, seed + 2)
    with torch.inference_mode():
        correct = model.classifier(test_x).argmax(-1) == test_y
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    return float(correct[test_y >= 0].float().mean())
