"""The comparison of precisions: sizes of random weights, and claims from times."""

from __future__ import annotations

import pytest

from benchmarks.flover import precisions
from testing.decoders import tiny_config
from tidal.flover.architectures import form_of
from tidal.flover.manifest import FloverPrecision
from tidal.flover.runner import FloverRunner


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_random_weights_run_and_have_the_size_of_their_precision(family: str) -> None:
    form = form_of(tiny_config(family, hidden_size=64, n_embd=64, intermediate_size=192))
    sizes = {}
    for precision in precisions.PRECISIONS:
        weights = precisions.random_weights(form, precision)
        sizes[precision] = precisions.weight_bytes(weights)
        FloverRunner(form, weights, slots=1, max_length=32).warm_up()
    inner = (2 + form.gated) * form.inner
    of_layer = form.width * (2 * form.heads * form.head_dim + 2 * form.kv_width + inner)
    head = form.vocabulary * form.width
    assert sizes["bf16"] == 2 * (form.layers * of_layer + head)
    assert sizes["bf16"] / 2 < sizes["int8"] < sizes["bf16"] / 1.7
    # 4 bits and 32 for each 64 weights; the head has 8 bits, and 32 for each output.
    assert sizes["int4"] == form.layers * of_layer * 9 // 16 + head + 4 * form.vocabulary


def test_claims_compare_steps_with_bf16() -> None:
    seconds: dict[tuple[FloverPrecision, int], float] = {
        (name, streams): 1e-3 for name in precisions.PRECISIONS for streams in precisions.STREAMS
    }
    seconds["int4", 1] = 0.5e-3
    seconds["int8", 32] = 2e-3
    claims = {each.name: each for each in precisions.make_claims(seconds, {"bf16": 0.9, "int8": 0.6, "int4": 0.5})}
    assert claims["int4_vs_bf16[1]"].measured == 2.0
    assert not claims["int8_vs_bf16[32]"].holds
    assert [name for name, each in claims.items() if not each.holds] == ["bandwidth_share[int8,1]", "int8_vs_bf16[32]"]


def test_a_bandwidth_is_measured() -> None:
    assert precisions.read_bandwidth(1 << 20) > 0
