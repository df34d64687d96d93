"""The `config.pbtxt` of a decoder; written once, so that an operator may edit it."""

from __future__ import annotations

from tidal_builders.flover.spec import FloverSpec

_TENSORS = """\
input [
  { name: "text_input" data_type: TYPE_STRING dims: [ -1 ] optional: true },
  { name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] optional: true },
  { name: "messages" data_type: TYPE_STRING dims: [ 1 ] optional: true },
  { name: "tools" data_type: TYPE_STRING dims: [ 1 ] optional: true },
  { name: "stream" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
]
output [
  { name: "index" data_type: TYPE_INT32 dims: [ -1 ] },
  { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] },
  { name: "token_ids" data_type: TYPE_INT64 dims: [ -1 ] },
  { name: "finish_reason" data_type: TYPE_STRING dims: [ -1 ] },
  { name: "logprobs" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "token_texts" data_type: TYPE_STRING dims: [ -1 ] },
  { name: "top_token_ids" data_type: TYPE_INT64 dims: [ -1, -1 ] },
  { name: "top_logprobs" data_type: TYPE_FP32 dims: [ -1, -1 ] },
  { name: "top_token_texts" data_type: TYPE_STRING dims: [ -1, -1 ] },
  { name: "prompt_tokens" data_type: TYPE_INT32 dims: [ -1 ] },
  { name: "cached_tokens" data_type: TYPE_INT32 dims: [ -1 ] },
  { name: "generated_tokens" data_type: TYPE_INT32 dims: [ -1 ] }
]
"""


def flover_config_pbtxt(spec: FloverSpec) -> str:
    """Return the `config.pbtxt` of a decoder: decoupled, as a request may have any number of responses.

    Args:
        spec: Spec of the decoder.
    """
    return (
        f'name: "{spec.name}"\nbackend: "flover"\nmax_batch_size: 0\n{_TENSORS}'
        "model_transaction_policy { decoupled: true }\ninstance_group [ { count: 1 kind: KIND_CPU } ]\n"
    )
