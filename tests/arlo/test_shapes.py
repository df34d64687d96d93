"""Lengths to which inputs of dynamic runtimes are padded: few, as each new one costs."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.arlo.conftest import Built
from tidal.arlo.manifest import load_arlo_manifest
from tidal.arlo.model import open_model, padded_inputs
from tidal.arlo.shapes import shape_length, shape_lengths
from tidal.encoder_tasks.token_rows import TokenRow


def test_by_hand() -> None:
    assert [shape_length(n, 512) for n in (1, 4, 5, 25, 33, 63, 64, 65, 127, 129, 300)] == [
        4, 4, 8, 28, 36, 64, 64, 72, 128, 144, 320,
    ]  # fmt: skip
    assert shape_lengths(0, 32) == [4, 8, 12, 16, 20, 24, 28, 32]
    assert shape_lengths(32, 50) == [36, 40, 44, 48, 50]
    assert len(shape_lengths(0, 512)) == 40


@given(length=st.integers(1, 4096), beyond=st.integers(0, 4096))
def test_fits_with_little_padding(length: int, beyond: int) -> None:
    limit = length + beyond
    found = shape_length(length, limit)
    assert length <= found <= limit
    assert found - length < max(4, length / 8)
    assert shape_length(found, limit) == found
    assert found in shape_lengths(0, limit)


def test_only_models_with_more_outputs_than_logits_are_padded(built: Built) -> None:
    manifest = load_arlo_manifest(built.repository / "tiny" / "1")
    longest = manifest.runtimes[-1].model_copy(update={"dynamic": True})
    dynamic = manifest.model_copy(update={"runtimes": (*manifest.runtimes[:-1], longest)})
    ones = np.ones(41, np.int64)
    rows = [TokenRow(ones, ones, ones)]
    last = len(manifest.runtimes) - 1
    assert padded_inputs(dynamic, last, rows)["input_ids"].shape == (1, 44)
    plain = dynamic.model_copy(update={"extra_outputs": ()})
    assert padded_inputs(plain, last, rows)["input_ids"].shape == (1, 41)
    static = dynamic.model_copy(
        update={"runtimes": tuple(each.model_copy(update={"dynamic": False}) for each in manifest.runtimes)}
    )
    assert padded_inputs(static, last, rows)["input_ids"].shape == (1, manifest.runtimes[-1].max_length)


def test_every_padded_length_is_run_at_the_start(built: Built) -> None:
    model = open_model(built.repository / "tiny" / "1")
    below = 0
    for runtime in model.manifest.runtimes:
        dynamic = runtime.model_copy(update={"dynamic": True})
        assert model._known_lengths(below, dynamic) == shape_lengths(below, runtime.max_length)
        assert model._known_lengths(below, runtime.model_copy(update={"dynamic": False})) == [runtime.max_length]
        below = runtime.max_length
