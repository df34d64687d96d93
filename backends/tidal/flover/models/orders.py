"""Permutations from the output order of a model family to the common one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tidal.flover.form import DecoderForm

Order = npt.NDArray[np.int64]


def gptj_order(form: DecoderForm) -> Order:
    """Return the permutation of GPT-J's queries and keys to the common layout, [width].

    GPT-J rotates neighbouring components: the first of each pair goes to a head's first half, the second to the other.
    """
    assert form.rotary is not None
    dims = form.rotary.dims
    order = np.concatenate([np.arange(0, dims, 2), np.arange(1, dims, 2), np.arange(dims, form.head_dim)])
    return np.arange(form.width).reshape(form.heads, form.head_dim)[:, order].reshape(-1)


def gpt_neox_order(form: DecoderForm) -> Order:
    """Return the permutation of GPT-NeoX's queries, keys and values to the common layout, [3 * width].

    GPT-NeoX stores the query, key and value of a head together.
    """
    return np.arange(3 * form.width).reshape(form.heads, 3, form.head_dim).swapaxes(0, 1).reshape(-1)
