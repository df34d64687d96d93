"""Families that keep outputs of linear layers in an order of their own, and how they come into the common one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tidal.flover.models.form import DecoderForm

Order = npt.NDArray[np.int64]


def gptj_order(form: DecoderForm) -> Order:
    """Which of GPT-J's queries, and of its keys, each of those in the common layout is, [width].

    It turns neighbours together: the first of each pair goes into a head's first half, the second into the second.
    """
    assert form.rotary is not None
    dims = form.rotary.dims
    order = np.concatenate([np.arange(0, dims, 2), np.arange(1, dims, 2), np.arange(dims, form.head_dim)])
    return np.arange(form.width).reshape(form.heads, form.head_dim)[:, order].reshape(-1)


def gpt_neox_order(form: DecoderForm) -> Order:
    """Which of GPT-NeoX's queries, keys and values each of those in the common layout is, [3 * width].

    It keeps a head's query, key and value together.
    """
    return np.arange(3 * form.width).reshape(form.heads, 3, form.head_dim).swapaxes(0, 1).reshape(-1)
