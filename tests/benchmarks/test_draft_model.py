"""The benchmark of a draft model: a padded decoder computes what the smaller one computes."""

from __future__ import annotations

import numpy as np

from benchmarks.flover.draft_model import padded
from testing.decoders import tiny_model
from tidal.flover.architectures import form_of
from tidal.flover.models.conversion import convert
from tidal.flover.runner import FloverRunner


def test_a_padded_decoder_computes_the_same() -> None:
    model = tiny_model("llama", num_key_value_heads=4, tie_word_embeddings=True)
    form = form_of(model.config)
    weights = convert(dict(model.state_dict()), form, tied=True)
    large, larger = padded(form, weights, width=96, layers=5, inner=200)
    ids = np.arange(30)
    found = FloverRunner(large, larger, slots=1, max_length=64).score(0, ids)
    np.testing.assert_allclose(found, FloverRunner(form, weights, slots=1, max_length=64).score(0, ids), atol=1e-3)
    assert (large.layers, large.heads, found.shape) == (5, 12, (30, form.vocabulary))
