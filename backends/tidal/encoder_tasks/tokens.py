"""A label for each token, and the entities that they form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import Field

from tidal.encoder_tasks.entities import Aggregation, Entities, LabelScheme, continued_words, find_entities
from tidal.encoder_tasks.head import FoundOutputs, RowResult, Settings, refuse_pairs, stacked
from tidal.encoder_tasks.token_rows import TokenRow
from tidal.encoder_tasks.windows import Windows, merge_tokens
from tidal.errors import Internal, InvalidArgument
from tidal.requests import Array, PendingRequest

_ARRAYS = ("entity_labels", "entity_scores", "entity_starts", "entity_ends")
_DEFAULT: Aggregation = "simple"


class TokenSettings(Settings):
    """What a manifest stores about a token classifier."""

    word_pieces: bool = Field(
        False, description="whether the vocabulary writes pieces that continue a word with a prefix, as WordPiece does"
    )
    unknown_id: int | None = Field(None, ge=0, description="id of the token for unknown words; absent if there is none")


class TokenHead:
    """Scores of the labels of every token, and entities.

    Args:
        settings: Settings of the manifest.
        labels: Names of the labels.

    Raises:
        InvalidArgument: A label has no name.
    """

    reads_requests = True

    def __init__(self, settings: TokenSettings, labels: tuple[str, ...]) -> None:
        self._settings = settings
        self._scheme = LabelScheme.of(labels)

    def read(self, request: PendingRequest) -> Mapping[str, Array]:
        """Refuse pairs, and token ids if entities are requested, which are places in a text."""
        refuse_pairs(request, "entities are those of one text")
        if "text_input" not in request.inputs and any(map(request.wants, ("entities", *_ARRAYS))):
            raise InvalidArgument(
                "text_input was not sent, and entities are positions in it; send text_input, or request the output "
                "'logits' alone"
            )
        return request.inputs

    def batch(self, outputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """The outputs of the engines: queries are answered one by one, without padding."""
        return outputs

    def merge(self, windows: Windows, parts: Sequence[RowResult]) -> Mapping[str, Array]:
        """Logits of all tokens, each from the window that owns it."""
        merged = merge_tokens(windows, [part.values("logits", per_token=True) for part in parts])
        return {"logits": merged[None]}

    def answers(
        self, request: PendingRequest, rows: Sequence[RowResult], tokens: Sequence[TokenRow]
    ) -> dict[str, Array]:
        """Entities, and scores [rows, longest, labels], 0 after the tokens of a row."""
        outputs: dict[str, Array] = {}
        if request.wants("logits"):
            outputs["logits"] = stacked([_logits(row) for row in rows])
        arrays = [name for name in _ARRAYS if request.wants(name)]
        if not arrays and not request.wants("entities"):
            return outputs
        aggregation = request.options.aggregation or _DEFAULT
        found = [self._entities(row, own, aggregation) for row, own in zip(rows, tokens, strict=True)]
        if request.wants("entities"):
            lists = [entities.json(text).encode() for entities, text in found]
            outputs["entities"] = np.array(lists, object)[:, None]
        outputs |= {name: _column(name, [entities for entities, _ in found]) for name in arrays}
        return FoundOutputs(outputs, sum(len(entities.labels) for entities, _ in found))

    def _entities(self, row: RowResult, tokens: TokenRow, aggregation: Aggregation) -> tuple[Entities, str]:
        """Return the entities of a row, and the text that they are places in."""
        source = tokens.text
        assert source is not None
        own = source.parts == 0
        logits = _logits(row)[own]
        if not np.isfinite(logits).all():
            raise Internal("the model produced NaN or infinite logits for this request")
        text, offsets, settings = source.texts[0], source.offsets[own], self._settings
        sizes = source.sizes[own] if settings.word_pieces else None
        continued = continued_words(tokens.ids[own], offsets, text, sizes, settings.unknown_id)
        entities = find_entities(logits, offsets, continued, self._scheme, aggregation)
        return entities.shifted(source.skipped[0]), " " * source.skipped[0] + text


def _logits(row: RowResult) -> Array:
    """Return the logits of a row's tokens, [length, labels]; of a row that ran in windows, those that were merged."""
    return np.asarray(row.batch["logits"][row.row][: row.length])


def _column(name: str, rows: Sequence[Entities]) -> Array:
    """Return one output of entities, [rows, most entities of a row], filled up; at least one wide."""
    width = max(1, *(len(entities.labels) for entities in rows))
    fill, kind = {
        "entity_labels": (b"", np.dtype(object)),
        "entity_scores": (0, np.dtype(np.float32)),
        "entity_starts": (-1, np.dtype(np.int32)),
        "entity_ends": (-1, np.dtype(np.int32)),
    }[name]
    column = np.full((len(rows), width), fill, kind)
    for row, entities in enumerate(rows):
        values = getattr(entities, name.removeprefix("entity_"))
        if name == "entity_labels":
            values = [label.encode() for label in values]
        column[row, : len(values)] = values
    return column
