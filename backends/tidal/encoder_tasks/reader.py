"""Conversion of a request's tensors to token rows, with validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from tidal.encoder_tasks.token_rows import TokenRow
from tidal.errors import InvalidArgument, TidalError
from tidal.serving.endings import failure
from tidal.text import Encoded, Texts, TextTokenizer

Array = npt.NDArray[Any]


def read_rows(inputs: Mapping[str, Array], tokenizer: TextTokenizer) -> list[TokenRow]:
    """Return the token rows of one request; see `read_requests`.

    Raises:
        InvalidArgument: An input is invalid; the message names it, its value and the accepted values.
    """
    (rows,) = read_requests([inputs], tokenizer)
    if isinstance(rows, TidalError):
        raise rows
    return rows


def read_requests(
    requests: Sequence[Mapping[str, Array]], tokenizer: TextTokenizer
) -> list[list[TokenRow] | TidalError]:
    """Return the token rows of requests with either `text_input` (and `text_pair`) or `input_ids`.

    The texts of all requests are tokenised together, which takes a fraction of the time of one by one.

    Args:
        requests: Inputs of each request: `text_input` and `text_pair` BYTES [rows, 1]; `input_ids`, `attention_mask`,
            `token_type_ids` INT64 [rows, length].
        tokenizer: Tokenizer of the model; its limits apply to ids too.

    Returns:
        For each request its rows, or the error of an invalid input, which names it, its value and the accepted values.
    """
    plain = _plain(requests, tokenizer)
    if plain is not None:
        return plain
    results: list[list[TokenRow] | TidalError] = [[]] * len(requests)
    texts: dict[int, Texts] = {}
    for index, inputs in enumerate(requests):
        try:
            if "text_input" in inputs:
                texts[index] = _texts(inputs)
            else:
                results[index] = _from_ids(inputs, tokenizer)
        except Exception as error:
            results[index] = failure(error, "the request could not be read")
    if texts:
        for index, encoded in zip(texts, _encode(list(texts.values()), tokenizer), strict=True):
            results[index] = encoded if isinstance(encoded, TidalError) else _without_gaps(encoded)
    return results


def _plain(
    requests: Sequence[Mapping[str, Array]], tokenizer: TextTokenizer
) -> list[list[TokenRow] | TidalError] | None:
    """Return the token rows of requests with short valid texts only; None for others, or if reading them fails."""
    try:
        columns = [inputs["text_input"] for inputs in requests if len(inputs) == 1]
        encoded = tokenizer.encode_columns(columns) if len(columns) == len(requests) else None
    except Exception:  # reading them one by one says which is wrong
        return None
    if encoded is None:
        return None
    rows = iter(_without_gaps(encoded))
    return [list(islice(rows, len(column))) for column in columns]


def _encode(requests: Sequence[Texts], tokenizer: TextTokenizer) -> Sequence[list[Encoded] | TidalError]:
    try:
        return tokenizer.encode_requests(requests)
    except Exception as error:  # of the tokenizer's own; one request must not fail the others
        if len(requests) == 1:
            return [failure(error, "the request could not be read")]
        return [result for request in requests for result in _encode([request], tokenizer)]


def _without_gaps(encoded: Sequence[Encoded]) -> list[TokenRow]:
    """Return rows all of whose tokens are attended to; their masks are slices of one array."""
    ones = _ones(max((len(row.ids) for row in encoded), default=0))
    return [TokenRow(ids, ones[: len(ids)], type_ids, text) for ids, type_ids, text in encoded]


@lru_cache(maxsize=64)
def _ones(length: int) -> npt.NDArray[np.int64]:
    ones = np.ones(length, np.int64)
    ones.flags.writeable = False  # shared
    return ones


def _texts(inputs: Mapping[str, Array]) -> Texts:
    texts = _column("text_input", inputs["text_input"])
    if len(inputs) == 1:
        return Texts(texts)
    for name in ("input_ids", "attention_mask", "token_type_ids"):
        if name in inputs:
            if name == "input_ids":
                raise InvalidArgument("both text_input and input_ids were sent; send one of them")
            raise InvalidArgument(f"{name} was sent with text_input; it requires input_ids")
    if "text_pair" not in inputs:
        return Texts(texts)
    pairs = _column("text_pair", inputs["text_pair"])
    if len(pairs) != len(texts):
        raise InvalidArgument(f"text_pair has {len(pairs)} rows; expected {len(texts)}, as text_input")
    return Texts(texts, pairs)


def _column(name: str, array: Array) -> list[bytes]:
    if array.ndim != 2 or array.shape[1] != 1:
        raise InvalidArgument(f"{name} has shape {list(array.shape)}; expected [rows, 1]")
    column: list[bytes] = array[:, 0].tolist()
    return column


def _from_ids(inputs: Mapping[str, Array], tokenizer: TextTokenizer) -> list[TokenRow]:
    if "text_pair" in inputs:
        raise InvalidArgument("text_pair was sent without text_input; send both")
    if "input_ids" not in inputs:
        raise InvalidArgument("the request has neither text_input nor input_ids; send one of them")
    ids, mask, type_ids = inputs["input_ids"], inputs.get("attention_mask"), inputs.get("token_type_ids")
    if ids.ndim != 2 or ids.shape[1] == 0:
        raise InvalidArgument(f"input_ids has shape {list(ids.shape)}; expected [rows, length] with length >= 1")
    for name, array in (("attention_mask", mask), ("token_type_ids", type_ids)):
        if array is not None and array.shape != ids.shape:
            raise InvalidArgument(
                f"{name} has shape {list(array.shape)}; expected that of input_ids, {list(ids.shape)}"
            )
    outside = (ids < 0) | (ids >= tokenizer.vocab_size)
    if outside.any():
        row, column = np.argwhere(outside)[0]
        raise InvalidArgument(
            f"input_ids row {row} has the id {ids[row, column]} at position {column}; "
            f"accepted are 0 to {tokenizer.vocab_size - 1}"
        )
    mask = np.ones_like(ids) if mask is None else mask
    if ((mask != 0) & (mask != 1)).any():
        raise InvalidArgument("attention_mask has values other than 0 and 1")
    type_ids = np.zeros_like(ids) if type_ids is None else type_ids
    if ((type_ids != 0) & (type_ids != 1)).any():
        raise InvalidArgument("token_type_ids has values other than 0 and 1")
    rows = []
    for row in range(len(ids)):
        attended = np.flatnonzero(mask[row])
        if not len(attended):
            raise InvalidArgument(f"attention_mask row {row} is all 0; expected at least one 1")
        length = int(attended[-1]) + 1
        if length > tokenizer.max_length:
            raise InvalidArgument(
                f"input_ids row {row} has {length} tokens; this model reads at most {tokenizer.max_length}"
            )
        rows.append(TokenRow(ids[row, :length], mask[row, :length], type_ids[row, :length]))
    return rows
