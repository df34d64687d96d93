"""Search among the demo's texts by their embeddings."""

from __future__ import annotations

import numpy as np

from demo.texts import make_examples
from tidal_client import Client

MODEL = "embedder"
#: Queries in words that the texts do not have.
QUERIES = ("is it going to be freezing in Norway", "I would love to hear a melody", "the lamp is too bright")


def documents(count: int) -> list[str]:
    """Return distinct texts to search."""
    return list(dict.fromkeys(text for text, _ in make_examples(2 * count, seed=23)))[:count]


def nearest(client: Client, query: str, texts: list[str], count: int) -> list[tuple[str, float]]:
    """Return the texts that are most similar to a query, with their cosine similarities.

    Args:
        client: Client of the server.
        query: Query.
        texts: Texts to search.
        count: Number of texts to return.
    """
    vectors = client.embed(MODEL, [query, *texts]).array  # normalised: their product is the cosine
    similarities = vectors[1:] @ vectors[0]
    return [(texts[row], float(similarities[row])) for row in np.argsort(-similarities)[:count].tolist()]
