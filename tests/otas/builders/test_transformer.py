"""Prompts and merging compared with a slow reference, and the independence of a batch's rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from testing.vits import tiny_config, tiny_vit
from tests.otas.builders import reference
from tidal.errors import InvalidArgument
from tidal_builders.otas.gammas import (
    MIN_PATCHES,
    check_gammas,
    default_gammas,
    image_bytes,
    merges_by_layer,
    tokens_by_layer,
)
from tidal_builders.otas.merging import merge_tokens
from tidal_builders.otas.transformer import TransformerModel, load_transformer

IMAGES = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def drawn_prompts(gamma: int, model: TransformerModel, images: int = 3) -> torch.Tensor | None:
    shape = (images, model.config.layers, gamma, model.config.width)
    return torch.randn(shape, generator=torch.Generator().manual_seed(2)) if gamma > 0 else None


@pytest.mark.parametrize("pool", ["token", "avg"])
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("gamma", [-6, -3, -1, 0, 1, 3])
def test_features_equal_those_of_the_reference(gamma: int, accumulate: bool, pool: str) -> None:
    vit = tiny_vit(layers=3, pool=pool)
    model = load_transformer(vit, accumulate=accumulate)
    prompts = drawn_prompts(gamma, model)
    with torch.inference_mode():
        found = model(gamma, IMAGES, prompts).numpy()
    for row, image in enumerate(IMAGES):
        mine = None if prompts is None else prompts[row].double().numpy()
        expected, _ = reference.features(vit, gamma, image.double().numpy(), mine, accumulate=accumulate)
        np.testing.assert_allclose(found[row], expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("gamma", [-3, 0, 3])
def test_bf16_features_are_close(gamma: int) -> None:
    model = load_transformer(tiny_vit(layers=3))
    prompts = drawn_prompts(gamma, model)
    with torch.inference_mode():
        expected = model(gamma, IMAGES, prompts)
        with torch.autocast("cpu", torch.bfloat16):
            found = model(gamma, IMAGES, prompts).float()
    closeness = torch.nn.functional.cosine_similarity(found, expected, dim=-1)
    assert closeness.min() > 0.999


def test_each_way_of_prompting_and_merging_gives_other_features() -> None:
    vit = tiny_vit()
    model, other = load_transformer(vit), load_transformer(vit, accumulate=True)
    with torch.inference_mode():
        answers = [
            model(2, IMAGES, drawn_prompts(2, model)), other(2, IMAGES, drawn_prompts(2, model)),
            model(0, IMAGES), model(-2, IMAGES), model(-4, IMAGES),
        ]  # fmt: skip
    for number, one in enumerate(answers):
        for another in answers[number + 1 :]:
            assert (one - another).abs().max() > 1e-3


@pytest.mark.parametrize("gamma", [-5, 0, 2])
def test_features_of_an_image_are_independent_of_other_rows(gamma: int) -> None:
    model = load_transformer(tiny_vit())
    prompts = drawn_prompts(gamma, model)
    with torch.inference_mode():
        together = model(gamma, IMAGES, prompts)
        for row in range(3):
            alone = model(gamma, IMAGES[row : row + 1], None if prompts is None else prompts[row : row + 1])
            torch.testing.assert_close(together[row : row + 1], alone, rtol=0, atol=1e-5)


def test_gamma_is_an_argument_without_state() -> None:
    model = load_transformer(tiny_vit())
    with torch.inference_mode():
        first = model(0, IMAGES)
        for gamma in (-4, 2, -1):
            model(gamma, IMAGES, drawn_prompts(gamma, model))
        torch.testing.assert_close(model(0, IMAGES), first, rtol=0, atol=0)


@settings(deadline=None, max_examples=60)
@given(
    patches=st.integers(2, 21), prefix=st.integers(0, 3), share=st.floats(0, 1), seed=st.integers(0, 99),
    images=st.integers(1, 3),
)  # fmt: skip
def test_merging_keeps_every_patch_and_its_weight(
    patches: int, prefix: int, share: float, seed: int, images: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randn(images, prefix + patches, 5, generator=draw, dtype=torch.float64)
    sizes = torch.randint(1, 9, (images, prefix + patches, 1), generator=draw).double()
    keys = torch.randn(images, prefix + patches, 3, generator=draw, dtype=torch.float64)
    count = round(share * (patches // 2))
    merged, merged_sizes = merge_tokens(tokens, sizes, keys, count, prefix)
    assert merged.shape == (images, prefix + patches - count, 5)
    torch.testing.assert_close(merged[:, :prefix], tokens[:, :prefix])
    torch.testing.assert_close(merged_sizes[:, :prefix], sizes[:, :prefix])
    torch.testing.assert_close(merged_sizes.sum(1), sizes.sum(1))
    torch.testing.assert_close((merged * merged_sizes).sum(1), (tokens * sizes).sum(1))


def test_the_most_similar_pair_is_averaged_by_weight() -> None:
    keys = torch.tensor([[[1.0, 0], [0, 1], [0, 1.01], [-1, 0.5]]])
    tokens = torch.tensor([[[1.0], [2], [5], [7]]])
    merged, sizes = merge_tokens(tokens, torch.tensor([[[1.0], [3], [1], [1]]]), keys, 1, 0)
    assert merged[0, :, 0].tolist() == [1.0, (2 * 3 + 5) / 4, 7.0]
    assert sizes[0, :, 0].tolist() == [1, 4, 1]


def test_merging_is_limited_to_half_and_to_a_minimum_of_tokens() -> None:
    config = tiny_config(layers=5)
    assert merges_by_layer(config, -20) == (8, 4, 0, 0, 0)
    assert merges_by_layer(config, -3) == (3, 3, 3, 3, 0)
    assert tokens_by_layer(config, -3, accumulate=False) == (17, 14, 11, 8, 5, 5)
    assert min(tokens_by_layer(config, -99, accumulate=True)) == 1 + MIN_PATCHES
    assert tokens_by_layer(config, 2, accumulate=False) == (19,) * 6
    assert tokens_by_layer(config, 2, accumulate=True) == (19, 21, 23, 25, 27, 27)


def test_the_default_gammas_of_the_paper_are_scaled_to_the_model() -> None:
    base = tiny_config(size=224, patch=(16, 16), layers=12)
    assert default_gammas(base) == (-20, -15, -10, -5, 0, 2, 4, 8)
    assert default_gammas(tiny_config(size=32, layers=6)) == (-13, -10, -7, -3, 0, 1, 3, 5)
    assert default_gammas(tiny_config(layers=2)) == (-10, -7, -5, -2, 0, 1, 2, 4)
    assert check_gammas(base, (8, 0, -5, 8)) == (-5, 0, 8)
    with pytest.raises(InvalidArgument, match="0, the unchanged model, is missing"):
        check_gammas(base, (-5, 2))
    with pytest.raises(InvalidArgument, match="-20 would not merge more than the next one"):
        check_gammas(tiny_config(), (-20, -8, 0))


def test_memory_grows_with_the_tokens() -> None:
    config = tiny_config()
    sizes = [image_bytes(config, gamma, accumulate=False) for gamma in (-8, 0, 4, 16)]
    assert sizes == sorted(sizes)
    assert image_bytes(config, 4, accumulate=True) > sizes[2]
