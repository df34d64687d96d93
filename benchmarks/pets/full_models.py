"""Full models: a copy of the encoder with one task merged into it, which OpenVINO runs like any model.

Converting a `transformers` model takes seconds. All tasks of a base have the same graph, with or without adapters. So
two graphs are converted, and a task's model is one of them with the task's weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from tidal.pets.terms import BaseLayers, FloatArray, LinearTerms, TaskTerms
from tidal_builders.pets.merging import merged_weights

DONE = "done"
_PLAIN, _ADAPTERS = "plain", "adapters"
# Names of weights in a model with a classifier.
_HEAD = "classifier"
_PARTS = ("down", "down_bias", "up", "up_bias")
_CLASSES = 3
_TABLES = "embeddings."


class FullModels:
    """The converted graphs of a base.

    Args:
        folder: Folder that `write_templates` wrote.
        base: Layers that tasks change.
    """

    def __init__(self, folder: Path, base: BaseLayers) -> None:
        self._folder = folder
        self._base = base
        self._core = ov.Core()

    @cached_property
    def _plain(self) -> _Template:
        return _Template(self._core, self._folder / _PLAIN)

    @cached_property
    def _adapters(self) -> _Template:
        return _Template(self._core, self._folder / _ADAPTERS)

    def compile(self, terms: TaskTerms, threads: int, *, own_tables: bool = False) -> ov.CompiledModel:
        """Compile a task's full model, in fp32.

        Args:
            terms: Terms of the task.
            threads: Number of threads of the model.
            own_tables: Whether the model gets its own copy of the embeddings, like a separately fine-tuned model;
                otherwise it shares them with the other models of this process, which servers do not do.
        """
        template = self._adapters if has_adapters(terms) else self._plain
        config = {
            "INFERENCE_PRECISION_HINT": "f32",
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
            "INFERENCE_NUM_THREADS": threads,
            # Two compiled models in one process would be pinned to the same cores.
            "ENABLE_CPU_PINNING": False,
        }
        return self._core.compile_model(template.model(full_weights(terms, self._base), own_tables), "CPU", config)


def run(model: ov.CompiledModel, inputs: Mapping[str, Any]) -> FloatArray:
    """Return logits [rows, classes] for int64 [rows, tokens] `input_ids`, `attention_mask` and `token_type_ids`."""
    found: FloatArray = model(inputs)[0]
    return found


def has_adapters(terms: TaskTerms) -> bool:
    """Whether a task needs the graph with adapters."""
    return any(own.bottleneck is not None for own in terms.linear.values())


def full_weights(terms: TaskTerms, base: BaseLayers) -> dict[str, FloatArray]:
    """Return a full model's weights that differ from the base's, by name; an adapter's are named after its layer."""
    weights = {f"{_HEAD}.weight": terms.head.weight, f"{_HEAD}.bias": terms.head.bias}
    linear = {path: replace(own, bottleneck=None) for path, own in terms.linear.items()}
    weights |= merged_weights(replace(terms, linear=linear), base)
    for path, own in terms.linear.items():
        if own.bottleneck is not None:
            weights |= {f"{path}/{part}": getattr(own.bottleneck, part) for part in _PARTS}
    return weights


def write_templates(source: Path, base: BaseLayers, folder: Path) -> None:
    """Convert a base's classifier, without and with adapters.

    Args:
        source: Folder of the base, in Hugging Face format.
        base: Layers of the base.
        folder: Folder to write to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in (_PLAIN, _ADAPTERS):
        _convert(source, base, folder / name, adapters=name == _ADAPTERS)
    (folder / DONE).touch()


class _Template:
    """A converted graph, and the name of each weight's constant in it."""

    def __init__(self, core: ov.Core, stem: Path) -> None:
        self._graph = core.read_model(stem.with_suffix(".xml"))
        self._names: dict[str, str] = json.loads(stem.with_suffix(".json").read_text())

    def model(self, weights: Mapping[str, FloatArray], own_tables: bool) -> ov.Model:
        """Return the graph with other weights; adapters that a task lacks are zero."""
        graph = self._graph.clone()
        constants = {node.get_friendly_name(): node for node in graph.get_ops() if node.get_type_name() == "Constant"}
        for name, constant in self._names.items():
            node = constants[constant]
            given = weights.get(name)
            if given is None and "/" in name:
                given = np.zeros(node.data.shape, np.float32)  # a bottleneck that adds nothing
            if given is None and own_tables and name.startswith(_TABLES):
                given = node.data  # the engine copies the weights of layers anyway, to reorder them
            if given is not None:
                shape = node.data.shape
                # A vector is stored in the shape in which it is added; the number of classes differs between tasks.
                shaped = given if given.ndim == len(shape) else given.reshape([1] * (len(shape) - 1) + [-1])
                node.output(0).replace(ops.constant(np.array(shaped)).output(0))
        graph.validate_nodes_and_infer_types()
        return graph


def _convert(source: Path, base: BaseLayers, stem: Path, *, adapters: bool) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification

    from tidal.pets.kinds.adapter import accepts_adapter
    from tidal.pets.terms import Bottleneck, Head
    from tidal_builders.pets.training.merged import merge_terms

    # Distinct weights identify the constants.
    draw = np.random.default_rng(0)

    def values(*shape: int) -> FloatArray:
        return draw.normal(0, 0.02, shape).astype(np.float32)

    config = AutoConfig.from_pretrained(source)
    config.num_labels = _CLASSES
    model = AutoModelForSequenceClassification.from_config(config).eval()
    wanted: dict[str, FloatArray] = {}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            array = values(*parameter.shape)
            parameter.copy_(torch.from_numpy(array))
            wanted[name.removeprefix(f"{model.base_model_prefix}.")] = array
    if adapters:
        linear = {}
        for path, layer in base.linear.items():
            if accepts_adapter(path):
                outputs, width = layer.shape[0], 64
                own = Bottleneck(values(width, outputs), values(width), values(outputs, width), values(outputs), "relu")
                linear[path] = LinearTerms(bottleneck=own)
                wanted |= {f"{path}/{part}": getattr(own, part) for part in _PARTS}
        head = Head(wanted[f"{_HEAD}.weight"], wanted[f"{_HEAD}.bias"], tuple(map(str, range(_CLASSES))))
        merge_terms(model.base_model, TaskTerms(head, linear))
    graph = ov.convert_model(_logits(model), example_input=_example(torch))
    _save(graph, wanted, source, stem)


def _save(graph: ov.Model, wanted: Mapping[str, FloatArray], source: Path, stem: Path) -> None:
    """Write the graph with the base's weights, and the names of the constants."""
    from transformers import AutoModel

    state = {name: tensor.numpy() for name, tensor in AutoModel.from_pretrained(source).state_dict().items()}
    names: dict[str, str] = {}
    places = {array.tobytes(): name for name, array in wanted.items()}
    for node in graph.get_ops():
        if node.get_type_name() == "Constant" and node.get_element_type() == ov.Type.f32 and node.data.size > 1:
            name = places.get(np.ascontiguousarray(node.data).tobytes())
            if name is None:
                continue
            names[name] = node.get_friendly_name()
            if name in state:
                new = ops.constant(np.array(state[name], np.float32).reshape(node.data.shape))
                new.set_friendly_name(node.get_friendly_name())
                node.output(0).replace(new.output(0))
    if missing := sorted(set(wanted) - set(names)):
        raise SystemExit(f"the converted model has no constant for {', '.join(missing[:3])}")
    ov.save_model(graph, stem.with_suffix(".xml"), compress_to_fp16=False)
    stem.with_suffix(".json").write_text(json.dumps(names))


def _logits(model: Any) -> Any:
    import torch

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
            found = self.model(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
            return found.logits

    return Logits()


def _example(torch: Any) -> dict[str, Any]:
    ids = torch.ones((2, 8), dtype=torch.long)
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0  # the conversion might drop a mask without zeros
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
