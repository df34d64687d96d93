"""Convert the decoder to a stateful OpenVINO graph, in the form that OpenVINO's own pipelines read.

Inputs `input_ids`, `attention_mask`, `position_ids` [rows, tokens] and `beam_idx` [rows], output `logits`
[rows, tokens, vocabulary]. Keys and values are states that are read in the order of `beam_idx`: the plugin then fuses
attention, and OpenVINO GenAI can replace it by paged attention.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops
from openvino._offline_transformations import apply_make_stateful_transformation

from benchmarks.flover.source import open_source

if TYPE_CHECKING:
    import torch

GRAPH = "openvino_model.xml"


def write_graph(source: Path, folder: Path) -> None:
    """Convert a source's decoder in float32; an engine may compute in a lower precision."""
    import torch

    model = open_source(source, "fp32")
    form = model.config
    kept = [torch.zeros(2, form.n_head, 3, form.n_embd // form.n_head) for _ in range(2 * form.n_layer)]
    mask, tokens = torch.ones(2, 5, dtype=torch.long), torch.ones(2, 2, dtype=torch.long)
    mask[1, 0] = 0  # the conversion might drop a mask without zeros
    with torch.no_grad():
        graph = ov.convert_model(_module(model), example_input=(tokens, mask, tokens.cumsum(1) + 2, *kept))
    names = ["input_ids", "attention_mask", "position_ids"]
    past = [f"past.{number}" for number in range(len(kept))]
    present = [f"present.{number}" for number in range(len(kept))]
    for place, name in zip(graph.inputs, [*names, *past], strict=True):
        place.get_tensor().set_names({name})
        shape = ov.PartialShape([-1, -1]) if name in names else ov.PartialShape([-1, form.n_head, -1, kept[0].shape[3]])
        place.get_node().set_partial_shape(shape)
        place.get_node().set_friendly_name(name)
    for place, name in zip(graph.outputs, ["logits", *present], strict=True):
        place.get_tensor().set_names({name})
    graph.validate_nodes_and_infer_types()
    _reorder(graph, past)
    apply_make_stateful_transformation(graph, dict(zip(past, present, strict=True)))
    _begin_empty(graph)
    folder.mkdir(parents=True, exist_ok=True)
    ov.save_model(graph, folder / GRAPH, compress_to_fp16=False)


def only_last(graph: ov.Model) -> None:
    """Change a graph to return the logits of the last token only, [rows, 1, vocabulary]."""
    head = graph.output("logits").get_node().input_value(0).get_node()
    last = ops.slice(head.input_value(0), [-1], [np.iinfo(np.int64).max], [1], [1])
    head.input(0).replace_source_output(last.output(0))
    graph.validate_nodes_and_infer_types()


def _reorder(graph: ov.Model, past: list[str]) -> None:
    """Read each state in the order of `beam_idx`."""
    order = ops.parameter([-1], ov.Type.i32, name="beam_idx")
    order.output(0).get_tensor().set_names({"beam_idx"})
    graph.add_parameters([order])
    for name in past:
        kept = graph.input(name)
        readers = kept.get_target_inputs()
        gathered = ops.gather(kept, order, ops.constant(0))
        for reader in readers:
            reader.replace_source_output(gathered.output(0))
    graph.validate_nodes_and_infer_types()


def _begin_empty(graph: ov.Model) -> None:
    """Initialise each state with no tokens, and as many rows as the inputs have."""
    rows = ops.gather(ops.shape_of(graph.input("input_ids"), output_type="i64"), [0], 0)
    for node in graph.get_ops():
        if node.get_type_name() == "ReadValue":
            _, heads, _, width = (size.min_length for size in node.get_output_partial_shape(0))
            shape = ops.concat([rows, np.array([heads, 0, width], np.int64)], 0)
            node.set_arguments([ops.broadcast(ops.constant(np.float32(0)), shape).output(0)])
    graph.validate_nodes_and_infer_types()


def _module(model: Any) -> torch.nn.Module:
    import torch
    from torch.nn import functional

    form = model.config

    class Decoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = model.transformer, model.lm_head

        def forward(self, ids: Any, mask: Any, places: Any, *kept: Any) -> tuple[Any, ...]:
            rows = self.body.wte(ids) + self.body.wpe(places)
            length, total = ids.shape[1], mask.shape[1]
            order = torch.arange(total)
            seen = order[None, None, :] <= order[total - length :, None]
            allowed = (seen & mask.bool()[:, None, :])[:, None]
            present = []
            for number, layer in enumerate(self.body.h):
                heads = [
                    part.unflatten(-1, (form.n_head, -1)).transpose(1, 2)
                    for part in layer.attn.c_attn(layer.ln_1(rows)).chunk(3, -1)
                ]
                keys = torch.cat([kept[2 * number], heads[1]], 2)
                values = torch.cat([kept[2 * number + 1], heads[2]], 2)
                found = functional.scaled_dot_product_attention(heads[0], keys, values, attn_mask=allowed)
                rows = rows + layer.attn.c_proj(found.transpose(1, 2).flatten(2))
                rows = rows + layer.mlp(layer.ln_2(rows))
                present += [keys, values]
            return (self.head(self.body.ln_f(rows)), *present)

    return Decoder().eval()
