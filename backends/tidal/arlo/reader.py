"""Conversion of a request's tensors to token rows, with validation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tidal.arlo.model import TokenRow
from tidal.errors import InvalidArgument
from tidal.text import TextTokenizer

Array = npt.NDArray[Any]


def read_rows(inputs: Mapping[str, Array], tokenizer: TextTokenizer) -> list[TokenRow]:
    """Return the token rows of a request with either `text_input` (and `text_pair`) or `input_ids`.

    Args:
        inputs: `text_input` and `text_pair` BYTES [rows, 1]; `input_ids`, `attention_mask`, `token_type_ids`
            INT64 [rows, length].
        tokenizer: Tokenizer of the model; its limits apply to ids too.

    Raises:
        InvalidArgument: An input is invalid; the message names it, its value and the accepted values.
    """
    if "text_input" in inputs and "input_ids" in inputs:
        raise InvalidArgument("both text_input and input_ids were sent; send one of them")
    if "text_input" in inputs:
        for name in ("attention_mask", "token_type_ids"):
            if name in inputs:
                raise InvalidArgument(f"{name} was sent with text_input; it requires input_ids")
        return _from_text(inputs["text_input"], inputs.get("text_pair"), tokenizer)
    if "text_pair" in inputs:
        raise InvalidArgument("text_pair was sent without text_input; send both")
    if "input_ids" in inputs:
        return _from_ids(inputs["input_ids"], inputs.get("attention_mask"), inputs.get("token_type_ids"), tokenizer)
    raise InvalidArgument("the request has neither text_input nor input_ids; send one of them")


def _from_text(texts: Array, pairs: Array | None, tokenizer: TextTokenizer) -> list[TokenRow]:
    for name, array in (("text_input", texts), ("text_pair", pairs)):
        if array is not None and (array.ndim != 2 or array.shape[1] != 1):
            raise InvalidArgument(f"{name} has shape {list(array.shape)}; expected [rows, 1]")
    if pairs is not None and len(pairs) != len(texts):
        raise InvalidArgument(f"text_pair has {len(pairs)} rows; expected {len(texts)}, as text_input")
    encoded = tokenizer.encode_all(list(texts[:, 0]), None if pairs is None else list(pairs[:, 0]))
    return [TokenRow(item.ids, np.ones(len(item.ids), np.int64), item.type_ids) for item in encoded]


def _from_ids(ids: Array, mask: Array | None, type_ids: Array | None, tokenizer: TextTokenizer) -> list[TokenRow]:
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
