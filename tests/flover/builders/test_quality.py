"""Figures of a decoder on text, compared with their definitions on the probabilities of two models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from testing.decoders import tiny_model, tiny_runner, write_decoder
from tidal.flover.architectures import form_of
from tidal.flover.manifest import QualityBounds
from tidal_builders.flover import quality
from tidal_builders.flover.source import load_decoder
from tidal_builders.flover.spec import default_tolerance, least_match

_LOOSE = QualityBounds(perplexity_ratio=100, agreement=0, max_kl=100)


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> tuple[quality.TextReference, ...]:
    folder = tmp_path_factory.mktemp("text")
    source = load_decoder(write_decoder(folder / "source", "llama"))
    quality.write_text_references(source, ["once upon a time there was a cat", "x"], 128, folder / "texts.npz")
    return quality.read_text_references(folder / "texts.npz")


def test_the_source_itself_equals_the_source(references: tuple[quality.TextReference, ...]) -> None:
    found = quality.verify_text(tiny_runner(tiny_model("llama")), references, quality.DEFAULT_BOUNDS["fp32"])
    assert found.agreement == 1.0
    assert found.perplexity_ratio == pytest.approx(1.0, abs=1e-5)
    assert found.max_kl < 1e-6
    assert quality.text_misses(found) == ()
    assert found.tokens == sum(len(each.logits) for each in references) > 100


def test_figures_follow_their_definitions(references: tuple[quality.TextReference, ...]) -> None:
    model = tiny_model("llama")
    with torch.no_grad():
        model.lm_head.weight += 0.05 * torch.randn(
            model.lm_head.weight.shape, generator=torch.Generator().manual_seed(1)
        )
    found = quality.verify_text(tiny_runner(model), references, _LOOSE)
    ours, theirs, same, divergences = [], [], [], []
    for each in references:
        with torch.no_grad():
            served = torch.softmax(model(torch.from_numpy(each.ids)[None]).logits[0].double(), -1).numpy()
        source = torch.softmax(torch.from_numpy(each.logits).double(), -1).numpy()
        for p, q, following in zip(source, served, each.ids[1:], strict=False):
            ours.append(np.log(q[following]))
            theirs.append(np.log(p[following]))
            same.append(int(p.argmax()) == int(q.argmax()))
            divergences.append(float((p * np.log(p / q)).sum()))
    assert found.perplexity == pytest.approx(np.exp(-np.mean(ours)), rel=1e-4)
    assert found.perplexity_ratio == pytest.approx(np.exp(np.mean(theirs) - np.mean(ours)), rel=1e-4)
    assert found.agreement == np.mean(same) < 1
    assert found.max_kl == pytest.approx(max(divergences), rel=1e-3)


def test_logits_of_a_text_do_not_depend_on_the_call() -> None:
    model = tiny_model("gpt2")
    runner, ids = tiny_runner(model), np.arange(40)
    with torch.no_grad():
        wanted = model(torch.from_numpy(ids)[None]).logits[0]
    torch.testing.assert_close(runner.score(1, ids), wanted, rtol=1e-4, atol=1e-4)
    assert form_of(model.config).vocabulary == wanted.shape[1]


@pytest.mark.parametrize(
    ("fields", "clause"),
    [
        ({"perplexity_ratio": 1.3}, "perplexity on text is 1.3 times the source's; accepted is at most 1.15"),
        ({"agreement": 0.5}, "50.0% of the most likely next tokens on text are the source's; required are 60.0%"),
        ({"max_kl": 3.0}, "diverges by 3 nats from the source's; accepted are 2"),
        ({"max_kl": float("nan")}, "diverges by nan nats"),
    ],
)
def test_what_misses_a_bound_is_named(fields: dict[str, float], clause: str) -> None:
    good = {"tokens": 9, "perplexity": 5.0, "perplexity_ratio": 1.0, "agreement": 1.0, "max_kl": 0.0}
    found = quality.TextVerification.model_construct(**good | fields, bounds=quality.DEFAULT_BOUNDS["int4"])
    (reason,) = quality.text_misses(found)
    assert clause in reason


@pytest.mark.parametrize(
    ("precision", "kept", "bounds", "tolerance", "least"),
    [
        ("fp32", "auto", (1.001, 0.99, 1e-3), 1e-3, 1.0),
        ("fp32", "int8", (1.02, 0.9, 0.1), 0.5, 0.9),
        ("bf16", "int8", (1.02, 0.9, 0.1), 0.5, 0.9),
        ("int4", "int8", (1.15, 0.6, 2.0), 3.0, 0.6),
    ],
)
def test_keys_and_values_of_8_bits_have_the_looser_bounds(
    precision: Any, kept: Any, bounds: tuple[float, ...], tolerance: float, least: float
) -> None:
    found = quality.default_bounds(precision, kept)
    assert (found.perplexity_ratio, found.agreement, found.max_kl) == bounds
    assert (default_tolerance(precision, kept), least_match(precision, kept)) == (tolerance, least)
