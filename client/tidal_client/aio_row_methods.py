"""Methods of `AsyncClient` that send texts as rows of requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, Unpack

import numpy as np
import numpy.typing as npt

from tidal_client import encoder_calls as calls
from tidal_client.encoder_results import (
    Answer,
    Embeddings,
    EmbeddingType,
    Entity,
    MaskPrediction,
    Ranked,
    SparseEmbedding,
)
from tidal_client.options import CallOptions
from tidal_client.results import Classification
from tidal_client.rows import RowCall

Row = TypeVar("Row")


class AsyncRowMethods:
    """Asyncio variant of `RowMethods`; a base class of `AsyncClient`."""

    async def _run_rows(self, call: RowCall[Row]) -> list[Row]:
        raise NotImplementedError

    async def classify(
        self,
        model: str,
        text: str,
        *,
        pair: str | None = None,
        outputs: Sequence[str] | None = None,
        **options: Unpack[CallOptions],
    ) -> Classification:
        """Classify one text; see `Client.classify`."""
        pairs = None if pair is None else [pair]
        return (await self.classify_many(model, [text], pairs=pairs, outputs=outputs, **options))[0]

    async def classify_many(
        self,
        model: str,
        texts: Sequence[str],
        *,
        pairs: Sequence[str] | None = None,
        outputs: Sequence[str] | None = None,
        **options: Unpack[CallOptions],
    ) -> list[Classification]:
        """Classify texts; see `Client.classify_many`."""
        return await self._run_rows(calls.classify_call(model, texts, pairs, outputs, options))

    async def embed(
        self,
        model: str,
        texts: Sequence[str],
        *,
        prompt: str | None = None,
        dtype: EmbeddingType = "float32",
        **options: Unpack[CallOptions],
    ) -> Embeddings:
        """Return the embeddings of texts; see `Client.embed`."""
        call = calls.embed_call(model, texts, dtype, prompt, options)
        return calls.embeddings(await self._run_rows(call), dtype)

    async def sparse_embed(
        self, model: str, texts: Sequence[str], **options: Unpack[CallOptions]
    ) -> list[SparseEmbedding]:
        """Return the sparse embeddings of texts, for models of the SPLADE form; see `Client.sparse_embed`."""
        return await self._run_rows(calls.sparse_call(model, texts, options))

    async def rerank(
        self,
        model: str,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        **options: Unpack[CallOptions],
    ) -> list[Ranked]:
        """Rank documents by their scores for a query; see `Client.rerank`."""
        call = calls.rerank_call(model, query, documents, top_n, options)
        return calls.ranked(await self._run_rows(call), documents, top_n)

    async def score(
        self, model: str, texts: Sequence[str], *, pairs: Sequence[str] | None = None, **options: Unpack[CallOptions]
    ) -> npt.NDArray[np.float32]:
        """Return the scores of texts, or of pairs of texts, for models with one value per text; see `Client.score`."""
        call = calls.score_call(model, texts, pairs, options)
        return np.array(await self._run_rows(call), np.float32)

    async def entities(self, model: str, text: str, **options: Unpack[CallOptions]) -> tuple[Entity, ...]:
        """Return the entities of one text, in the order of the text; see `Client.entities`."""
        call = calls.entities_call(model, [text], options)
        return (await self._run_rows(call))[0]

    async def entities_many(
        self, model: str, texts: Sequence[str], **options: Unpack[CallOptions]
    ) -> list[tuple[Entity, ...]]:
        """Return the entities of each text, in order; see `Client.entities_many`."""
        return await self._run_rows(calls.entities_call(model, texts, options))

    async def tokens(self, model: str, text: str, **options: Unpack[CallOptions]) -> tuple[Entity, ...]:
        """Return the label of each token of one text that is part of an entity; see `Client.tokens`."""
        call = calls.entities_call(model, [text], {**options, "aggregation": "none"})
        return (await self._run_rows(call))[0]

    async def answer(self, model: str, question: str, context: str, **options: Unpack[CallOptions]) -> Answer:
        """Return the part of a text that answers a question; see `Client.answer`."""
        call = calls.answer_call(model, [question], [context], options)
        return (await self._run_rows(call))[0]

    async def answer_many(
        self, model: str, questions: Sequence[str], contexts: Sequence[str], **options: Unpack[CallOptions]
    ) -> list[Answer]:
        """Answer each question from its context, in order; see `Client.answer_many`."""
        call = calls.answer_call(model, questions, contexts, options)
        return await self._run_rows(call)

    async def predict_masks(
        self, model: str, text: str, **options: Unpack[CallOptions]
    ) -> tuple[tuple[MaskPrediction, ...], ...]:
        """Predict the tokens of the masks in a text; see `Client.predict_masks`."""
        return (await self._run_rows(calls.masks_call(model, text, options)))[0]
