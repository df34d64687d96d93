"""Merges a task's differences into the constants of a graph, which serves a single hot task faster."""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from tidal.pets.engine.description import Description
from tidal.pets.merging import dense
from tidal.pets.openvino_engine.tasks import load_task
from tidal.pets.terms import FloatArray, TaskTerms


def merge_into(graph: ov.Model, description: Description, terms: TaskTerms) -> None:
    """Replace the constants of a graph that a task changes.

    Args:
        graph: Graph of the encoder; it is changed.
        description: Layers of the encoder.
        terms: Terms of the task.

    Raises:
        InvalidArgument: The terms do not fit the graph's layers.
    """
    load_task(terms, description).release()  # checks every array against the layer that it changes
    constants = {node.get_friendly_name(): node for node in graph.get_ops() if node.get_type_name() == "Constant"}
    changed: dict[str, FloatArray] = {}

    def copy(name: str) -> FloatArray:
        return changed.setdefault(name, np.array(constants[name].data, np.float32))

    for spec in description.linear:
        own = terms.linear.get(spec.path)
        rows = slice(spec.first, spec.first + spec.outputs)
        if own is not None and own.delta is not None:
            copy(spec.weight)[rows] += dense(own.delta, (spec.outputs, spec.inputs))
        if own is not None and own.bias is not None:
            copy(spec.bias).reshape(-1)[rows] += own.bias
    for norm in description.norm:
        affine = terms.norm.get(norm.path)
        if affine is not None:
            copy(norm.weight)[:] = affine.weight
            copy(norm.bias)[:] = affine.bias
    for name, array in changed.items():
        new = ops.constant(array)
        new.set_friendly_name(name)
        constants[name].output(0).replace(new.output(0))
