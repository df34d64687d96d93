"""The `config.pbtxt` of a model of the `otas` backend; written once, so that operators may edit it."""

from __future__ import annotations

from tidal.otas.manifest import ImageConfig
from tidal_builders.otas.spec import OtasSpec


def otas_config_pbtxt(spec: OtasSpec, image: ImageConfig) -> str:
    """Return the text of the file.

    Rows of a request are separate queries that share its options, so `max_batch_size` limits rows, not batches. The
    backend does its own queueing and batching.

    Args:
        spec: Spec of the model.
        image: Image preparation of the model.
    """
    pixels = ", ".join(map(str, image.shape))
    return f"""\
name: "{spec.name}"
backend: "otas"
max_batch_size: 64
input [
  {{ name: "image" data_type: TYPE_STRING dims: [ 1 ] optional: true }},
  {{ name: "pixel_values" data_type: TYPE_FP32 dims: [ {pixels} ] optional: true }}
]
output [
  {{ name: "logits" data_type: TYPE_FP32 dims: [ -1 ] }},
  {{ name: "probabilities" data_type: TYPE_FP32 dims: [ -1 ] }},
  {{ name: "label" data_type: TYPE_STRING dims: [ 1 ] }},
  {{ name: "gamma" data_type: TYPE_INT32 dims: [ 1 ] }},
  {{ name: "input_tokens" data_type: TYPE_INT32 dims: [ 1 ] }},
  {{ name: "queue_ms" data_type: TYPE_FP32 dims: [ 1 ] }}
]
dynamic_batching {{ }}
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
"""
