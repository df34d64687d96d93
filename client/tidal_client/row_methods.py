"""Methods of `Client` that send texts as rows of requests."""

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


class RowMethods:
    """Methods that send texts as rows; a base class of `Client`."""

    def _run_rows(self, call: RowCall[Row]) -> list[Row]:
        raise NotImplementedError

    def classify(
        self,
        model: str,
        text: str,
        *,
        pair: str | None = None,
        outputs: Sequence[str] | None = None,
        **options: Unpack[CallOptions],
    ) -> Classification:
        """Classify one text.

        Args:
            model: Name of the model.
            text: Text to classify.
            pair: Second text, for models that compare two texts.
            outputs: Names of the outputs to request; None: all.
            options: Id of the request, timeout and request options, see `CallOptions`.
        """
        pairs = None if pair is None else [pair]
        return self.classify_many(model, [text], pairs=pairs, outputs=outputs, **options)[0]

    def classify_many(
        self,
        model: str,
        texts: Sequence[str],
        *,
        pairs: Sequence[str] | None = None,
        outputs: Sequence[str] | None = None,
        **options: Unpack[CallOptions],
    ) -> list[Classification]:
        """Classify texts.

        Args:
            model: Name of the model.
            texts: Texts to classify, in any number; an empty list sends no request.
            pairs: Second texts, one per text.
            outputs: See `classify`.
            options: See `classify`; of each request, and a deadline counts from the arrival of each.

        Returns:
            One result per text, in order. An error for one text fails the whole call.
        """
        return self._run_rows(calls.classify_call(model, texts, pairs, outputs, options))

    def embed(
        self,
        model: str,
        texts: Sequence[str],
        *,
        prompt: str | None = None,
        dtype: EmbeddingType = "float32",
        **options: Unpack[CallOptions],
    ) -> Embeddings:
        """Return the embeddings of texts.

        Args:
            model: Name of the model.
            texts: Texts to embed, in any number: see `Client`. An empty list sends no request.
            prompt: Name of the model's prompt to put before each text; None: the model's default.
            dtype: Element type of the vectors: ``float32``, ``float16``, ``int8`` (127 times the normalised vector) or
                ``binary`` (the signs as bits).
            options: See `classify_many`; `dimensions` is the number of elements of a vector to keep.

        Returns:
            One row per text, in order. An error for one text fails the whole call.
        """
        call = calls.embed_call(model, texts, dtype, prompt, options)
        return calls.embeddings(self._run_rows(call), dtype)

    def sparse_embed(self, model: str, texts: Sequence[str], **options: Unpack[CallOptions]) -> list[SparseEmbedding]:
        """Return the sparse embeddings of texts, for models of the SPLADE form; see `embed` for the arguments."""
        return self._run_rows(calls.sparse_call(model, texts, options))

    def rerank(
        self,
        model: str,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        **options: Unpack[CallOptions],
    ) -> list[Ranked]:
        """Rank documents by their scores for a query.

        Args:
            model: Name of the model.
            query: Query.
            documents: Documents to rank: at least one, in any number, see `Client`.
            top_n: Number of documents to return; None: all.
            options: See `embed`.

        Returns:
            Documents with scores, best first.
        """
        call = calls.rerank_call(model, query, documents, top_n, options)
        return calls.ranked(self._run_rows(call), documents, top_n)

    def score(
        self, model: str, texts: Sequence[str], *, pairs: Sequence[str] | None = None, **options: Unpack[CallOptions]
    ) -> npt.NDArray[np.float32]:
        """Return the scores of texts, or of pairs of texts, for models with one value per text.

        Args:
            model: Name of the model.
            texts: Texts to score.
            pairs: Second texts, one per text; None: no pairs.
            options: See `embed`.

        Returns:
            Score of each text, [texts] float32.
        """
        call = calls.score_call(model, texts, pairs, options)
        return np.array(self._run_rows(call), np.float32)

    def entities(self, model: str, text: str, **options: Unpack[CallOptions]) -> tuple[Entity, ...]:
        """Return the entities of one text, in the order of the text.

        Args:
            model: Name of the model.
            text: Text to search.
            options: See `embed`; `aggregation` selects how tokens are joined.
        """
        call = calls.entities_call(model, [text], options)
        return self._run_rows(call)[0]

    def entities_many(
        self, model: str, texts: Sequence[str], **options: Unpack[CallOptions]
    ) -> list[tuple[Entity, ...]]:
        """Return the entities of each text, in order; see `entities` and `embed`."""
        return self._run_rows(calls.entities_call(model, texts, options))

    def tokens(self, model: str, text: str, **options: Unpack[CallOptions]) -> tuple[Entity, ...]:
        """Return the label of each token of one text that is part of an entity; see `entities` for the arguments."""
        call = calls.entities_call(model, [text], {**options, "aggregation": "none"})
        return self._run_rows(call)[0]

    def answer(self, model: str, question: str, context: str, **options: Unpack[CallOptions]) -> Answer:
        """Return the part of a text that answers a question.

        Args:
            model: Name of the model.
            question: Question.
            context: Text that contains the answer.
            options: See `embed`; `top_k` is the number of `candidates` of the answer.
        """
        call = calls.answer_call(model, [question], [context], options)
        return self._run_rows(call)[0]

    def answer_many(
        self, model: str, questions: Sequence[str], contexts: Sequence[str], **options: Unpack[CallOptions]
    ) -> list[Answer]:
        """Answer each question from its context, in order; see `answer` and `embed`."""
        call = calls.answer_call(model, questions, contexts, options)
        return self._run_rows(call)

    def predict_masks(
        self, model: str, text: str, **options: Unpack[CallOptions]
    ) -> tuple[tuple[MaskPrediction, ...], ...]:
        """Predict the tokens of the masks in a text.

        Args:
            model: Name of the model.
            text: Text with mask tokens of the model's tokenizer, such as ``[MASK]``.
            options: See `embed`; `top_k` is the number of predictions for each mask.

        Returns:
            Predictions for each mask, in the order of the text, likeliest first.
        """
        return self._run_rows(calls.masks_call(model, text, options))[0]
