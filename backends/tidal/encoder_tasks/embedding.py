"""A vector for each text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from tidal.encoder_tasks.head import RowHead, RowResult, Settings
from tidal.encoder_tasks.token_rows import TokenRow
from tidal.encoder_tasks.vectors import VECTOR_OUTPUTS, Vectors, normalized, truncated
from tidal.encoder_tasks.windows import Windows, merge_vectors
from tidal.errors import InvalidArgument, did_you_mean
from tidal.requests import Array, PendingRequest
from tidal.serving.classes import gather


class EmbeddingSettings(Settings):
    """What a manifest stores about embeddings."""

    dimension: int = Field(ge=1, description="number of components")
    pooling: tuple[str, ...] = Field(min_length=1, description="how token vectors become one; several are concatenated")
    normalized: bool = Field(description="whether vectors have a length of 1")
    similarity: Literal["cosine", "dot", "euclidean", "manhattan"] = Field(
        description="function that compares two vectors"
    )
    prompts: dict[str, str] = Field(default_factory=dict, description="text in front of a query's text, by name")
    default_prompt: str | None = Field(None, description="name of the prompt of requests that name none")


class EmbeddingHead(RowHead):
    """Vectors, of fewer dimensions if requested.

    Args:
        settings: Settings of the manifest.
        labels: None.
    """

    reads_requests = True

    def __init__(self, settings: EmbeddingSettings, labels: tuple[str, ...]) -> None:
        super().__init__(VECTOR_OUTPUTS)
        self._settings = settings

    def read(self, request: PendingRequest) -> Mapping[str, Array]:
        """Check `prompt` and `dimensions`, and put the prompt in front of the texts."""
        inputs, options = request.inputs, request.options
        if "text_pair" in inputs:
            raise InvalidArgument("text_pair was sent, and an embedding is of one text; send text_input alone")
        if options.dimensions is not None and options.dimensions > self._settings.dimension:
            raise InvalidArgument(
                f"request option 'dimensions' is {options.dimensions}; this model gives up to "
                f"{self._settings.dimension}"
            )
        if options.prompt is not None and "text_input" not in inputs:
            raise InvalidArgument("request option 'prompt' was sent without text_input; token ids take no prompt")
        prompt = self._prompt(options.prompt)
        if not prompt or "text_input" not in inputs:
            return inputs
        return {**inputs, "text_input": _prefixed(inputs["text_input"], prompt.encode())}

    def batch(self, outputs: Mapping[str, Array]) -> Vectors:
        """Vectors of the batch."""
        return Vectors(outputs["embedding"])

    def merge(self, windows: Windows, parts: Sequence[RowResult]) -> Vectors:
        """Mean of the windows' vectors, weighted by the tokens that each owns; a mean of unit vectors is shorter."""
        vectors = np.stack([part.values("embedding", per_token=False) for part in parts])
        mean = merge_vectors(windows, vectors)[None]
        return Vectors(normalized(mean) if self._settings.normalized else mean)

    def answers(
        self, request: PendingRequest, rows: Sequence[RowResult], tokens: Sequence[TokenRow]
    ) -> dict[str, Array]:
        """Slice the batches' vectors, or truncate them; see `TaskHead.answers`."""
        dimensions = request.options.dimensions
        if dimensions is None:
            return super().answers(request, rows, tokens)
        whole = gather([(row.batch, row.row) for row in rows], "embedding")
        vectors = Vectors(truncated(whole, dimensions, normalize=self._settings.normalized))
        return {name: vectors[name] for name in VECTOR_OUTPUTS if request.wants(name)}

    def _prompt(self, name: str | None) -> str:
        known = self._settings.prompts
        name = self._settings.default_prompt if name is None else name
        if name is None:
            return ""
        if name not in known:
            accepted = did_you_mean(name, known) if known else "this model has no prompts; leave the option out"
            raise InvalidArgument(f"unknown prompt '{name[:80]}' in request option 'prompt': {accepted}")
        return known[name]


def _prefixed(texts: Array, prompt: bytes) -> Array:
    """Put a prompt in front of texts; those that will be refused stay as they are, so that errors describe them."""
    prefixed = np.empty(texts.shape, object)
    for index, text in np.ndenumerate(texts):
        prefixed[index] = prompt + text if _readable(text) else text
    return prefixed


def _readable(text: bytes) -> bool:
    try:
        return bool(text.decode().strip())
    except UnicodeDecodeError:
        return False
