"""Removes from an OpenVINO graph what only other tokens than the first need, where its answer is that of the first."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import opset13

# From a node and an axis of its output, of which only the first element is needed: the inputs that are then needed only
# as far, with the axis of each.
_Rule = Callable[[ov.Node, int], Mapping[int, int]]


def keep_first_token(model: ov.Model) -> int:
    """Compute the last layers for the first token only, if the model reads no other token of their outputs.

    Classifiers and rerankers read the vector of the first token. The last layer's attention then needs one query, and
    its other linear layers one row: of six equal layers with 12 `width`² multiplications per token, this saves 10 of
    72. The result does not change. A model that reads all tokens is left as it is.

    Args:
        model: Model to change.

    Returns:
        Number of inserted slices; 0 if the model is left as it is.
    """
    nodes = model.get_ordered_ops()
    first: dict[str, int] = {}  # axis by name of the nodes of whose output only the first element along it is needed
    for node in reversed(nodes):
        readers = node.output(0).get_target_inputs() if len(node.outputs()) == 1 else ()
        if readers:
            axes = {_demands(each.get_node(), first).get(each.get_index(), -1) for each in readers}
            axis = axes.pop()
            if not axes and axis >= 0 and _shortened(node, axis):
                first[node.get_name()] = axis
    if not any(node.get_type_name() == "MatMul" for node in nodes if node.get_name() in first):
        return 0
    slices = 0
    for node in nodes:
        for index, axis in _demands(node, first).items():
            # What takes the first element itself needs no slice.
            if node.get_name() in first and node.input_value(index).get_node().get_name() not in first:
                bounds = (opset13.constant(np.array([each], np.int64)) for each in (0, 1, 1, axis))
                sliced = opset13.slice(node.input_value(index), *bounds)
                node.input(index).replace_source_output(sliced.output(0))
                slices += 1
    model.validate_nodes_and_infer_types()
    return slices


def _demands(node: ov.Node, first: Mapping[str, int]) -> Mapping[int, int]:
    """Return the inputs of which a node needs only the first element along an axis, with the axis."""
    if node.get_name() in first:
        return _shortened(node, first[node.get_name()])
    if node.get_type_name() == "Gather":
        index, axis, rank = _constant(node, 1), _constant(node, 2), _rank(node.input_value(0))
        if index is not None and axis is not None and rank is not None and index.size == 1 and not index.any():
            return {0: int(axis.item()) % rank}
    return {}


def _shortened(node: ov.Node, axis: int) -> Mapping[int, int]:
    """Return the inputs that shorten a node's output to its first element along an axis; empty if none do."""
    rule = _RULES.get(node.get_type_name())
    return {} if rule is None or _rank(node.output(0)) is None else rule(node, axis)


def _same_axis(node: ov.Node, axis: int) -> Mapping[int, int]:
    return {0: axis}


def _elementwise(node: ov.Node, axis: int) -> Mapping[int, int]:
    """Inputs that are not broadcast along the axis; axes are counted from the last one."""
    from_end = axis - len(node.output(0).get_partial_shape())
    found = {}
    for index, each in enumerate(node.input_values()):
        shape = each.get_partial_shape()
        if shape.rank.is_static and len(shape) >= -from_end:
            size = shape[len(shape) + from_end]
            if size.is_dynamic or size.get_length() != 1:
                found[index] = len(shape) + from_end
    return found


def _unless_reduced(node: ov.Node, axis: int) -> Mapping[int, int]:
    """Normalisations and reductions, whose second input has their axes."""
    axes, rank = _constant(node, 1), _rank(node.input_value(0))
    if axes is None or rank is None or axis in axes % rank or not node.get_attributes().get("keep_dims", True):
        return {}
    return {0: axis}


def _softmax(node: ov.Node, axis: int) -> Mapping[int, int]:
    return {} if axis == node.get_attributes()["axis"] % len(node.output(0).get_partial_shape()) else {0: axis}


def _matmul(node: ov.Node, axis: int) -> Mapping[int, int]:
    rank = len(node.output(0).get_partial_shape())
    rows = axis == rank - 2 == (_rank(node.input_value(0)) or 0) - 2
    return {0: axis} if rows and not node.get_attributes()["transpose_a"] else {}


def _attention(node: ov.Node, axis: int) -> Mapping[int, int]:
    """Queries, and the rows of the mask; each query reads all keys and values."""
    if axis != len(node.output(0).get_partial_shape()) - 2 or node.get_attributes()["causal"]:
        return {}
    mask = node.input_value(3).get_partial_shape() if len(node.inputs()) > 3 else ov.PartialShape([])
    if mask.rank.is_dynamic:
        return {}
    rows = len(mask) - 2
    broadcast = rows < 0 or (mask[rows].is_static and mask[rows].get_length() == 1)
    return {0: axis} if broadcast else {0: axis, 3: rows}


def _transpose(node: ov.Node, axis: int) -> Mapping[int, int]:
    order = _constant(node, 1)
    return {} if order is None or not order.size else {0: int(order[axis])}


def _reshape(node: ov.Node, axis: int) -> Mapping[int, int]:
    """Reshapes that keep the axis and those before it, whatever their sizes."""
    pattern, shape = _constant(node, 1), node.input_value(0).get_partial_shape()
    if pattern is None or shape.rank.is_dynamic or axis >= len(shape) or not node.get_attributes()["special_zero"]:
        return {}
    before = zip(pattern[:axis], list(shape)[:axis], strict=True)
    kept = all(size == 0 or (old.is_static and old.get_length() == size) for size, old in before)
    return {0: axis} if kept and pattern[axis] == 0 else {}


def _constant(node: ov.Node, index: int) -> npt.NDArray[np.int64] | None:
    source = node.input_value(index).get_node()
    return np.asarray(source.data, np.int64) if source.get_type_name() == "Constant" else None


def _rank(value: ov.Output) -> int | None:
    shape = value.get_partial_shape()
    return len(shape) if shape.rank.is_static else None


_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(("Convert", "ConvertLike", "Erf", "Gelu", "Relu", "Sigmoid", "Sqrt", "Swish", "Tanh"), _same_axis),
    **dict.fromkeys(("Add", "Divide", "Multiply", "Power", "Select", "SquaredDifference", "Subtract"), _elementwise),
    **dict.fromkeys(("MVN", "ReduceMean", "ReduceSum"), _unless_reduced),
    "MatMul": _matmul,
    "Reshape": _reshape,
    "ScaledDotProductAttention": _attention,
    "Softmax": _softmax,
    "Transpose": _transpose,
}
