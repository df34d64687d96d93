"""Token rows: what a query is before it is padded to a batch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tidal.text import SourceText


class TokenRow(NamedTuple):
    """Tokens of one query, special tokens included, without padding.

    Attributes:
        ids: Token ids, int64 [length].
        mask: Attention mask, int64 [length].
        type_ids: Token types, int64 [length].
        text: Text that they are from; None if the client sent ids, or the task has no `offsets`.
    """

    ids: npt.NDArray[np.int64]
    mask: npt.NDArray[np.int64]
    type_ids: npt.NDArray[np.int64]
    text: SourceText | None = None
