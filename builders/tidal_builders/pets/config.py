"""The `config.pbtxt` of a base that the `pets` backend serves. Operators may edit it: it is written once."""

from __future__ import annotations

from tidal_builders.pets.spec import PetsSpec

_TENSORS = """\
input [
  { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] optional: true },
  { name: "text_pair" data_type: TYPE_STRING dims: [ 1 ] optional: true },
  { name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] optional: true allow_ragged_batch: true },
  { name: "attention_mask" data_type: TYPE_INT64 dims: [ -1 ] optional: true allow_ragged_batch: true },
  { name: "token_type_ids" data_type: TYPE_INT64 dims: [ -1 ] optional: true allow_ragged_batch: true }
]
output [
  { name: "logits" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "probabilities" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "label" data_type: TYPE_STRING dims: [ 1 ] }"""


def pets_config_pbtxt(spec: PetsSpec) -> str:
    """The complete text of `config.pbtxt`.

    Rows of a request are separate queries of one task, so `max_batch_size` limits rows, not batches. Plain
    `dynamic_batching`: the backend queues and batches by itself.

    Args:
        spec: Spec of the model.
    """
    attention = (
        ',\n  { name: "attention_received" data_type: TYPE_FP32 dims: [ -1 ] }' if spec.attention_received else ""
    )
    truncate = 'parameters { key: "truncate" value: { string_value: "true" } }\n' if spec.truncate else ""
    return (
        f'name: "{spec.name}"\nbackend: "pets"\nmax_batch_size: 64\n{_TENSORS}{attention}\n]\n'
        f"dynamic_batching {{ }}\ninstance_group [ {{ count: 1 kind: KIND_CPU }} ]\n{truncate}"
    )
