"""Adapters in folders as AdapterHub's library writes them.

The library needs another release of transformers than Tidal, so the folders are made here, in the form that its
release 1.3.0 saves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
)

from tests.pets.importing.reference import IDS, MASK, answer
from tidal.errors import TidalError
from tidal.pets.terms import FloatArray
from tidal_builders.pets.base import base_layers
from tidal_builders.pets.encoder import read_encoder
from tidal_builders.pets.importing.imported import ImportBase, ImportOptions
from tidal_builders.pets.importing.recognise import import_task

WIDTH, INNER = 32, 4
SAVED = Path(__file__).parent / "adapterhub_saved"
HOULSBY = {
    "adapter_residual_before_ln": False, "cross_adapter": False, "dropout": 0.0, "inv_adapter": None,
    "is_parallel": False, "leave_out": [], "ln_after": False, "ln_before": False, "mh_adapter": True,
    "non_linearity": "swish", "original_ln_after": True, "original_ln_before": False, "output_adapter": True,
    "phm_layer": False, "reduction_factor": 8, "residual_before_ln": True, "scaling": 1.0, "use_gating": False,
}  # fmt: skip
HEAD = {
    "activation_function": "tanh", "bias": True, "dropout_prob": None, "head_type": "classification",
    "label2id": {"a": 0, "c": 2, "b": 1}, "layers": 2, "num_labels": 3, "use_pooler": False,
}  # fmt: skip
PLACES = [f"encoder.layer.{layer}.{part}" for layer in range(2) for part in ("attention.output", "output")]


def adapter_tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(2)
    shapes = {
        "adapter_down.0.weight": (INNER, WIDTH),
        "adapter_down.0.bias": (INNER,),
        "adapter_up.weight": (WIDTH, INNER),
        "adapter_up.bias": (WIDTH,),
    }
    return {
        f"bert.{place}.adapters.mood.{part}": torch.randn(shape) * 0.3
        for place in PLACES
        for part, shape in shapes.items()
    }


def head_tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    return {
        "heads.mood.1.weight": torch.randn(WIDTH, WIDTH) * 0.2,
        "heads.mood.1.bias": torch.randn(WIDTH),
        "heads.mood.4.weight": torch.randn(3, WIDTH),
        "heads.mood.4.bias": torch.randn(3),
    }


def save(
    folder: Path,
    config: object = None,
    head: Mapping[str, Any] | None = None,
    tensors: Mapping[str, torch.Tensor] | None = None,
    heads: Mapping[str, torch.Tensor] | None = None,
) -> Path:
    """Write an adapter and its head; `config` and `head` change the defaults, a `config` that is text replaces them."""
    about = {"model_name": "some/base", "model_type": "bert", "name": "mood", "version": "adapters.1.3.0"}
    chosen = HOULSBY | config if isinstance(config, dict) else config or HOULSBY
    (folder / "adapter_config.json").write_text(json.dumps({"config": chosen, **about}))
    (folder / "head_config.json").write_text(json.dumps({"config": HEAD | dict(head or {}), **about}))
    save_file(dict(tensors if tensors is not None else adapter_tensors()), folder / "adapter.safetensors")
    save_file(dict(heads if heads is not None else head_tensors()), folder / "model_head.safetensors")
    return folder


def expected(base_folder: Path, activation: Any, scale: float = 1.0) -> FloatArray:
    """The library's result: y + scale · up(σ(down(y))) before residual and LayerNorm, and a head on the first
    token's hidden state: linear, tanh, linear."""
    model = AutoModelForSequenceClassification.from_pretrained(base_folder).eval()
    modules, adapters, heads = dict(model.bert.named_modules()), adapter_tensors(), head_tensors()
    for place in PLACES:
        down, down_bias, up, up_bias = (
            adapters[f"bert.{place}.adapters.mood.adapter_{part}"]
            for part in ("down.0.weight", "down.0.bias", "up.weight", "up.bias")
        )

        def add(_module: Any, _inputs: Any, y: torch.Tensor, of: Any = (down, down_bias, up, up_bias)) -> torch.Tensor:
            return y + scale * (activation(y @ of[0].T + of[1]) @ of[2].T + of[3])

        modules[f"{place}.dense"].register_forward_hook(add)
    with torch.inference_mode():
        hidden = model.bert(input_ids=IDS, attention_mask=MASK).last_hidden_state[:, 0]
        hidden = torch.tanh(hidden @ heads["heads.mood.1.weight"].T + heads["heads.mood.1.bias"])
        return np.asarray(hidden @ heads["heads.mood.4.weight"].T + heads["heads.mood.4.bias"])


@pytest.mark.parametrize(
    ("config", "activation", "scale"),
    [
        ({}, torch.nn.functional.silu, 1.0),
        ({"non_linearity": "relu", "scaling": 2.0}, torch.relu, 2.0),
        ({"non_linearity": "gelu"}, torch.nn.functional.gelu, 1.0),
        ("houlsby", torch.nn.functional.silu, 1.0),
    ],
)
def test_answers_equal_those_of_the_library(
    base_folder: Path, base: ImportBase, tmp_path: Path, config: object, activation: Any, scale: float
) -> None:
    found = import_task(save(tmp_path, config), base, ImportOptions())
    assert found.kind == "adapter"
    assert found.terms.head.labels == ("a", "b", "c")
    wanted = expected(base_folder, activation, scale)
    np.testing.assert_allclose(answer(base_folder, found.terms, base.layers), wanted, atol=1e-5)
    assert "carried as a difference of pooler.dense" in found.provenance.notes[1]


@pytest.mark.parametrize(
    ("heads", "config"),
    [
        ({"heads.mood.1.weight": torch.ones(3, WIDTH), "heads.mood.1.bias": torch.ones(3)}, {"use_pooler": True}),
        ({"heads.mood.1.weight": torch.ones(3, WIDTH)}, {"use_pooler": True, "bias": False}),
    ],
)
def test_a_head_on_the_pooler_changes_no_other_layer(
    base: ImportBase, tmp_path: Path, heads: dict[str, torch.Tensor], config: dict[str, Any]
) -> None:
    found = import_task(save(tmp_path, head={"layers": 1, **config}, heads=heads), base, ImportOptions())
    assert "pooler.dense" not in found.terms.linear
    assert found.terms.head.weight.tolist() == np.ones((3, WIDTH)).tolist()


def test_the_head_of_a_plain_transformers_model_is_accepted(base: ImportBase, tmp_path: Path) -> None:
    save(tmp_path, heads={"classifier.weight": torch.ones(3, WIDTH), "classifier.bias": torch.zeros(3)})
    (tmp_path / "head_config.json").write_text(json.dumps({"config": None, "label2id": {"x": 0, "y": 1, "z": 2}}))
    assert import_task(tmp_path, base, ImportOptions()).terms.head.labels == ("x", "y", "z")


def test_distilbert_with_its_own_head(tmp_path: Path) -> None:
    torch.manual_seed(7)
    config = DistilBertConfig(vocab_size=99, dim=WIDTH, n_layers=1, n_heads=2, hidden_dim=48, num_labels=3)
    model = DistilBertForSequenceClassification(config)
    base = ImportBase(*base_layers(read_encoder(model)), "some/base")
    places = {"attention_adapters": "attention.out_lin", "output_adapters": "ffn.lin2"}
    tensors = {
        name.replace("bert.encoder.layer.0.output", f"distilbert.transformer.layer.0.{place}"): value.clone()
        for name, value in adapter_tensors().items()
        if "layer.0.output" in name
        for place in places
    }
    classifier = {"classifier.weight": torch.ones(3, WIDTH), "classifier.bias": torch.zeros(3)}
    own = {f"pre_classifier.{part}": getattr(model.pre_classifier, part).detach() for part in ("weight", "bias")}
    about = json.dumps({"config": None, "label2id": {"x": 0, "y": 1, "z": 2}})

    save(tmp_path, tensors=tensors, heads=classifier | own)
    (tmp_path / "head_config.json").write_text(about)
    assert list(import_task(tmp_path, base, ImportOptions()).terms.linear) == [
        f"transformer.layer.0.{layer}" for layer in places.values()
    ]

    save(tmp_path, tensors=tensors, heads=classifier | own | {"pre_classifier.bias": own["pre_classifier.bias"] + 1})
    (tmp_path / "head_config.json").write_text(about)
    found = import_task(tmp_path, base, ImportOptions()).terms
    np.testing.assert_allclose(found.linear["pre_classifier"].bias, np.ones(WIDTH), atol=1e-6)  # type: ignore[arg-type]
    assert found.head.weight.tolist() == np.ones((3, WIDTH)).tolist()


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (
            {"original_ln_before": True, "residual_before_ln": False},
            "residual_before_ln is False: the adapter",
        ),
        (
            {"original_ln_after": False},
            "original_ln_after is False: no normalisation follows the adapter",
        ),
        ({"is_parallel": True}, "is_parallel is True"),
        ({"use_gating": True}, "use_gating is True"),
        ({"phm_layer": True}, "phm_layer is True"),
        ({"inv_adapter": "nice"}, "inv_adapter is nice"),
        ({"ln_after": True}, "ln_after is True"),
        ({"scaling": "learned"}, "scaling is learned; accepted is a number"),
        ({"non_linearity": "leakyrelu"}, "non_linearity is leakyrelu; accepted: relu, gelu"),
        ({"residual_before_ln": "post_add"}, "residual_before_ln is post_add"),
        ({"architecture": "lora"}, "architecture is lora; accepted are bottleneck adapters"),
        ("prefix_tuning", "does not describe a bottleneck adapter: config is prefix_tuning"),
    ],
)
def test_unsupported_adapters_are_refused(base: ImportBase, tmp_path: Path, config: object, reason: str) -> None:
    with pytest.raises(TidalError) as caught:
        import_task(save(tmp_path, config), base, ImportOptions())
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        ({"head_type": "masked_lm"}, "the head's type is masked_lm; accepted: classification, multilabel"),
        ({"head_type": "tagging"}, "the head has 2 layers on every token; accepted is 1 for a task of token-"),
        ({"layers": 1}, "the head differs from head_config.json"),
        ({"activation_function": "relu"}, "the head has 2 layers, use_pooler False and relu; accepted are"),
        ({"use_pooler": True}, "the head has 2 layers, use_pooler True"),
    ],
)
def test_unsupported_heads_are_refused(base: ImportBase, tmp_path: Path, head: dict[str, Any], reason: str) -> None:
    with pytest.raises(TidalError) as caught:
        import_task(save(tmp_path, head=head), base, ImportOptions())
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("name", "task", "labels", "after_norm"),
    [
        ("regression", "regression", ("score",), False),
        ("multi_label", "multi-label", ("down", "same", "up"), False),
        ("tagging", "token-classification", ("down", "same", "up"), True),
        ("plain_tokens", "token-classification", ("negative", "neutral", "positive"), False),
        ("pfeiffer", "classification", ("down", "same", "up"), True),
    ],
)
def test_heads_saved_by_the_library(name: str, task: str, labels: tuple[str, ...], after_norm: bool) -> None:
    encoder = read_encoder(AutoModel.from_pretrained(SAVED / "base"))
    found = import_task(SAVED / name, ImportBase(*base_layers(encoder), "some/base"), ImportOptions()).terms
    assert (found.head.task, found.head.labels) == (task, labels)
    adapters = [own.bottleneck for own in found.linear.values() if own.bottleneck is not None]
    assert [each.after_norm for each in adapters] == [after_norm] * len(adapters)
    assert len(adapters) == (2 if after_norm else 4)


def test_the_task_of_a_head_may_be_chosen_among_those_that_fit() -> None:
    encoder = read_encoder(AutoModel.from_pretrained(SAVED / "base"))
    base = ImportBase(*base_layers(encoder), "some/base")
    found = import_task(SAVED / "regression", base, ImportOptions(task="rerank")).terms.head
    assert (found.task, found.labels, found.settings) == ("rerank", (), {"activation": "sigmoid"})
    with pytest.raises(TidalError, match=r"--task embedding does not fit .*, which is for regression: accepted: "):
        import_task(SAVED / "regression", base, ImportOptions(task="embedding"))
    with pytest.raises(TidalError, match="--labels yes: a task of rerank has no labels"):
        import_task(SAVED / "regression", base, ImportOptions(task="rerank", labels=("yes",)))


class TestTensors:
    def refused(self, base: ImportBase, folder: Path, **changed: torch.Tensor) -> str:
        tensors = adapter_tensors() | {name.replace("__", "."): value for name, value in changed.items()}
        with pytest.raises(TidalError) as caught:
            import_task(save(folder, tensors=tensors), base, ImportOptions())
        return str(caught.value)

    def test_with_another_width_are_refused(self, base: ImportBase, tmp_path: Path) -> None:
        name = "bert__encoder__layer__0__output__adapters__mood__adapter_up__bias"
        reason = self.refused(base, tmp_path, **{name: torch.ones(31)})
        assert "the adapter after 'encoder.layer.0.output.dense' has the shapes" in reason

    def test_of_an_unknown_layer_are_refused(self, base: ImportBase, tmp_path: Path) -> None:
        name = "bert__encoder__layer__7__output__adapters__mood__adapter_up__bias"
        assert "is not a bottleneck after a layer of the base; accepted are adapters of this base" in self.refused(
            base, tmp_path, **{name: torch.ones(32)}
        )

    def test_that_are_not_an_adapter_are_refused(self, base: ImportBase, tmp_path: Path) -> None:
        assert "'prompt' is not a bottleneck" in self.refused(base, tmp_path, prompt=torch.ones(3))

    def test_that_are_pickled_are_refused(self, base: ImportBase, tmp_path: Path) -> None:
        save(tmp_path)
        (tmp_path / "adapter.safetensors").unlink()
        torch.save(adapter_tensors(), tmp_path / "pytorch_adapter.bin")
        with pytest.raises(TidalError, match=r"pickled weights \(pytorch_adapter.bin\), which are not read"):
            import_task(tmp_path, base, ImportOptions())

    def test_without_a_head_are_refused(self, base: ImportBase, tmp_path: Path) -> None:
        (save(tmp_path) / "head_config.json").unlink()
        with pytest.raises(TidalError, match=r"has no head; save it with `save_adapter.*or import it as an embedding"):
            import_task(tmp_path, base, ImportOptions())
        with pytest.raises(TidalError, match=r"has no modules.json that says how .*; name it by --pooling: cls, max"):
            import_task(tmp_path, base, ImportOptions(task="embedding"))
        head = import_task(tmp_path, base, ImportOptions(task="embedding", pooling="mean")).terms.head
        assert (head.weight.shape, head.settings["pooling"], head.settings["normalized"]) == (
            (0, WIDTH),
            ["mean"],
            True,
        )
