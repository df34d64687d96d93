"""Models with int8 and int4 weights on a real server, compared with transformers on the weights that they stand for."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from testing.decoders import EOS, tiny_model
from tests.flover.served.conftest import INTEGERS, Served
from tidal.flover.architectures import form_of
from tidal.flover.manifest import load_flover_manifest
from tidal.flover.models.quantized import quantize
from tidal_client import Client

pytestmark = pytest.mark.server

_GROUP = 32
# Rows have 8 to 16 bits, keys and values 8 or those of bfloat16, so log probabilities are off by some percent. Rounding
# the weights to 4 bits changes them by much more.
_OFF = 0.15


def _rounded(bits: int) -> Any:
    """The source with the weights that the integers stand for, the head's of 8 bits; norms and biases unchanged."""
    model = tiny_model("gpt2")
    for name, module in model.named_modules():
        if type(module).__name__ == "Conv1D":
            module.weight.data = quantize(module.weight.data.T, bits, _GROUP).dequantized().T.contiguous()
        elif name == "lm_head":
            weight = quantize(module.weight.data, 8, _GROUP).dequantized()
            module.weight = torch.nn.Parameter(weight)  # no longer that of the embeddings
    return model


def _logprobs(model: Any, prompt: list[int], tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1)[torch.arange(len(tokens)), torch.tensor(tokens)]


@pytest.mark.parametrize("model", INTEGERS)
def test_generations_have_the_probabilities_of_the_rounded_weights(url: str, served: Served, model: str) -> None:
    bits = 8 if INTEGERS[model] == "int8" else 4
    reference, source, rng = _rounded(bits), tiny_model("gpt2"), random.Random(5)
    errors, changes = [], []
    with Client(url) as client:
        for _ in range(4):
            prompt = [rng.randrange(EOS) for _ in range(rng.randint(1, 50))]
            found = client.generate(model, prompt, max_tokens=20, logprobs=True)
            tokens, logprobs = list(found.tokens), torch.tensor(found.logprobs)
            errors.append((logprobs - _logprobs(reference, prompt, tokens)).abs())
            changes.append((_logprobs(source, prompt, tokens) - _logprobs(reference, prompt, tokens)).abs())
    assert float(torch.cat(errors).max()) < _OFF
    if bits == 4:  # the server does not run the unrounded weights
        assert float(torch.cat(changes).max()) > 2 * _OFF


@pytest.mark.parametrize("model", INTEGERS)
def test_the_manifest_states_precision_kernels_and_quality(served: Served, model: str) -> None:
    manifest = load_flover_manifest(served.repository / model / "1")
    assert manifest.precision == INTEGERS[model]
    assert manifest.group_size == (_GROUP if manifest.precision == "int4" else None)
    assert manifest.kv_cache_dtype == ("int8" if manifest.precision == "int8" else "auto")
    assert manifest.kernels is not None
    assert manifest.text.perplexity_ratio <= manifest.text.bounds.perplexity_ratio == 100
    assert manifest.form == form_of(tiny_model("gpt2").config)
