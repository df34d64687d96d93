"""The `config.pbtxt` of a base that the `pets` backend serves. Operators may edit it: it is written once."""

from __future__ import annotations

from tidal.pets.heads import shared_outputs
from tidal_builders.pets.spec import PetsSpec

_INPUTS = """\
input [
  { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] optional: true },
  { name: "text_pair" data_type: TYPE_STRING dims: [ 1 ] optional: true },
  { name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] optional: true allow_ragged_batch: true },
  { name: "attention_mask" data_type: TYPE_INT64 dims: [ -1 ] optional: true allow_ragged_batch: true },
  { name: "token_type_ids" data_type: TYPE_INT64 dims: [ -1 ] optional: true allow_ragged_batch: true }
]
"""


def pets_config_pbtxt(spec: PetsSpec) -> str:
    """The complete text of `config.pbtxt`, with the outputs of all tasks that may share the encoder.

    Rows of a request are separate queries of one task, so `max_batch_size` limits rows, not batches. Plain
    `dynamic_batching`: the backend queues and batches by itself.

    Args:
        spec: Spec of the model.
    """
    tensors = [(each.name, each.data_type, each.dims) for each in shared_outputs()]
    if spec.attention_received:
        tensors.append(("attention_received", "TYPE_FP32", (-1,)))
    outputs = ",\n".join(
        f'  {{ name: "{name}" data_type: {data_type} dims: [ {", ".join(map(str, dims))} ] }}'
        for name, data_type, dims in tensors
    )
    given = {"truncate": spec.truncate or None, "stride": spec.stride}
    parameters = "".join(
        f'parameters {{ key: "{name}" value: {{ string_value: "{str(value).lower()}" }} }}\n'
        for name, value in given.items()
        if value is not None
    )
    return (
        f'name: "{spec.name}"\nbackend: "pets"\nmax_batch_size: 64\n{_INPUTS}output [\n{outputs}\n]\n'
        f"dynamic_batching {{ }}\ninstance_group [ {{ count: 1 kind: KIND_CPU }} ]\n{parameters}"
    )
