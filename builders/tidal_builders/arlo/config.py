"""The `config.pbtxt` of a model that the `arlo` backend serves. An operator may edit it: it is written once."""

from __future__ import annotations

from tidal_builders.specs import ArloSpec

_INPUTS = """\
input [
  { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] optional: true },
  { name: "text_pair" data_type: TYPE_STRING dims: [ 1 ] optional: true },
  { name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] optional: true allow_ragged_batch: true },
  { name: "attention_mask" data_type: TYPE_INT64 dims: [ -1 ] optional: true allow_ragged_batch: true },
  { name: "token_type_ids" data_type: TYPE_INT64 dims: [ -1 ] optional: true allow_ragged_batch: true }
]
"""

_OUTPUTS = """\
  { name: "logits" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "probabilities" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "label" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "max_length" data_type: TYPE_INT32 dims: [ 1 ] }"""


def config_pbtxt(spec: ArloSpec) -> str:
    """The complete text. Rows of a request are separate queries, so `max_batch_size` bounds rows, not batches.

    Plain `dynamic_batching`: the backend queues and batches by itself, and Triton's own queue policies stall.
    """
    outputs = _OUTPUTS
    if "attention_received" in spec.outputs:
        outputs += ',\n  { name: "attention_received" data_type: TYPE_FP32 dims: [ -1 ] }'
    parameters = ""
    if spec.truncate:
        parameters = 'parameters { key: "truncate" value: { string_value: "true" } }\n'
    return (
        f'name: "{spec.name}"\nbackend: "arlo"\nmax_batch_size: 64\n{_INPUTS}output [\n{outputs}\n]\n'
        f"dynamic_batching {{ }}\ninstance_group [ {{ count: 1 kind: KIND_CPU }} ]\n{parameters}"
    )
