"""The description that is exported with a base, and encoders that cannot serve tasks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model

from testing.truth import Exported
from tests.pets.engine.conftest import ENCODERS
from tidal.errors import Unsupported
from tidal.pets.engine.description import read_description
from tidal_builders.pets.base import base_layers, export_encoder
from tidal_builders.pets.encoder import read_encoder


@pytest.mark.parametrize("encoder", [name for name in ENCODERS if name != "distilbert_classifier"])
def test_all_linear_layers_and_normalisations_are_open_to_tasks(
    exported: Callable[[str], Exported], encoder: str
) -> None:
    base = exported(encoder)
    modules = dict(base.model.named_modules())
    assert base.layers.linear.keys() == {path for path, each in modules.items() if isinstance(each, torch.nn.Linear)}
    assert base.layers.norm.keys() == {path for path, each in modules.items() if isinstance(each, torch.nn.LayerNorm)}
    for path, layer in base.layers.linear.items():
        np.testing.assert_array_equal(layer.weight, modules[path].weight.detach().numpy())
        np.testing.assert_array_equal(layer.bias, modules[path].bias.detach().numpy())


def test_the_digest_depends_on_every_weight(exported: Callable[[str], Exported]) -> None:
    base = exported("bert")
    assert read_description(base.folder).digest == base.layers.digest
    for name in ("embeddings.position_embeddings.weight", "encoder.layer.1.output.LayerNorm.bias"):
        other = copy.deepcopy(base.model)
        with torch.no_grad():
            other.get_parameter(name).view(-1)[3] += 1e-3
        assert base_layers(read_encoder(other))[0].digest != base.layers.digest


def test_the_description_names_every_layer_with_its_shape(exported: Callable[[str], Exported]) -> None:
    base = exported("distilbert_classifier")
    description = read_description(base.folder)
    assert {place.path: (place.outputs, place.inputs) for place in description.linear} == {
        path: layer.shape for path, layer in base.layers.linear.items()
    }
    assert "pre_classifier" in base.layers.linear
    assert (description.model_type, description.types, description.longest) == ("distilbert", 0, 512)


def test_unsupported_encoders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="encoder type 'gpt2' cannot serve tasks: accepted: bert, distilbert"):
        export_encoder(GPT2Model(GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=1)), tmp_path)
    tiny = {"vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    with pytest.raises(Unsupported, match="activation 'tanh' is not supported"):
        export_encoder(BertModel(BertConfig(hidden_act="tanh", intermediate_size=8, **tiny)), tmp_path)
