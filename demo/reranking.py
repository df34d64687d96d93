"""The ensemble `retrieve_and_rerank`: a query's nearest texts, each scored with the query by a reranker.

The reranker is all-MiniLM-L6-v2, trained on 800 pairs of texts: those of the same intent are relevant to
each other.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from demo.search import documents
from demo.texts import make_examples
from demo.train import minilm_folder
from tidal_client import Client

MODEL = "retrieve_and_rerank"
PASSAGES, RERANKER = "passages", "reranker"
_BATCH = 32


@dataclass(frozen=True, slots=True)
class Reranked:
    """A text of an answer, with its similarity to the query and the reranker's score, 0 to 1."""

    text: str
    similarity: float
    score: float


def make_pairs(count: int, seed: int) -> tuple[list[tuple[str, str]], list[int]]:
    """Return pairs of a query and a text, and 1 for each that is relevant, else 0; half of them are.

    Args:
        count: Number of pairs.
        seed: Seed of the random choices.
    """
    draw = random.Random(seed)
    examples = make_examples(count, seed)
    pairs, truth = [], []
    for row, (query, intent) in enumerate(examples):
        relevant = row % 2
        others = [text for text, other in examples if (other == intent) == bool(relevant) and text != query]
        pairs.append((query, draw.choice(others)))
        truth.append(relevant)
    return pairs, truth


def train_reranker(target: Path, *, count: int = 800, seed: int = 0) -> float:
    """Train all-MiniLM-L6-v2 on pairs, and write a BertForSequenceClassification folder with one output.

    Args:
        target: Folder to write.
        count: Number of training pairs.
        seed: Seed of the pairs and the head.

    Returns:
        Share of held-out pairs whose score is on the right side of 0.5, from 0 to 1.
    """
    import torch
    from transformers import AutoTokenizer, BertForSequenceClassification

    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    model = BertForSequenceClassification.from_pretrained(minilm_folder(), num_labels=1)

    def logits(pairs: list[tuple[str, str]]) -> torch.Tensor:
        columns = [list(column) for column in zip(*pairs, strict=True)]
        found: torch.Tensor = model(**tokenizer(*columns, padding=True, return_tensors="pt")).logits[:, 0]
        return found

    pairs, truth = make_pairs(count, seed + 1)
    wanted = torch.tensor(truth, dtype=torch.float32)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model.train()
    for start in range(0, count, _BATCH):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            logits(pairs[start : start + _BATCH]), wanted[start : start + _BATCH]
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    model.eval()
    pairs, truth = make_pairs(160, seed + 2)
    with torch.inference_mode():
        right = (logits(pairs) > 0) == torch.tensor(truth, dtype=torch.bool)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    return float(right.float().mean())


def publish_passages(repository: Path, count: int = 400) -> None:
    """Publish texts to search with their vectors, as `tidal embed` writes them, unless it was done before.

    Args:
        repository: Model repository.
        count: Number of texts.
    """
    import torch
    from transformers import AutoModel, AutoTokenizer

    version = repository / PASSAGES / "1"
    if (version / "vectors.npy").exists():
        return
    tokenizer, model = AutoTokenizer.from_pretrained(minilm_folder()), AutoModel.from_pretrained(minilm_folder()).eval()
    texts, vectors = documents(count), list[npt.NDArray[np.float32]]()
    for start in range(0, len(texts), _BATCH):
        inputs = tokenizer(texts[start : start + _BATCH], padding=True, return_tensors="pt")
        mask = inputs["attention_mask"][..., None]
        with torch.inference_mode():
            means = (model(**inputs).last_hidden_state * mask).sum(1) / mask.sum(1)
        vectors.append(torch.nn.functional.normalize(means).numpy())
    version.mkdir(parents=True, exist_ok=True)
    (version / "texts.txt").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    np.save(version / "vectors.npy", np.concatenate(vectors))


def ask(client: Client, query: str, count: int) -> list[Reranked]:
    """Return the texts nearest to a query, the most relevant first.

    Args:
        client: Client of the server.
        query: Query.
        count: Number of texts, which the reranker reads.
    """
    found = client.infer(MODEL, {"text_input": np.array([[query.encode()]], object)}, top_k=count)
    rows = [
        Reranked(text.decode(), float(similarity), float(score))
        for text, similarity, score in zip(
            *(found[name][:, 0] for name in ("text", "similarity", "score")), strict=True
        )
    ]
    return sorted(rows, key=lambda row: row.score, reverse=True)
