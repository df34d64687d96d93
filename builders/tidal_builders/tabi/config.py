"""The `config.pbtxt` of a cascade, which the `tabi` backend serves. An operator may edit it: it is written once."""

from __future__ import annotations

from tidal.tabi.manifest import TabiManifest

_OUTPUTS = {
    "classification": (("label", "TYPE_STRING", 1), ("probabilities", "TYPE_FP32", -1)),
    "regression": (("value", "TYPE_FP32", 1),),
}
_EVERY_OUTPUT = (
    ("level", "TYPE_INT32", 1),
    ("confidence", "TYPE_FP32", 1),
    ("degraded", "TYPE_BOOL", 1),
    ("pruned_text", "TYPE_STRING", 1),
)


_OF_PAIRS = (("pruned_pair", "TYPE_STRING", 1),)


def cascade_config_pbtxt(manifest: TabiManifest) -> str:
    """The complete text.

    Rows of a request are separate queries. `text_pair` is declared for single texts too, so that a client who sends one
    is told what is wrong.
    """
    outputs = ",\n".join(
        f'  {{ name: "{name}" data_type: {kind} dims: [ {dims} ] }}'
        for name, kind, dims in (*_OUTPUTS[manifest.task], *_EVERY_OUTPUT, *(_OF_PAIRS if manifest.pairs else ()))
    )
    return (
        f'name: "{manifest.name}"\nbackend: "tabi"\nmax_batch_size: 64\n'
        'input [\n  { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] },\n'
        '  { name: "text_pair" data_type: TYPE_STRING dims: [ 1 ] optional: true }\n]\n'
        f"output [\n{outputs}\n]\n"
        "dynamic_batching { }\ninstance_group [ { count: 1 kind: KIND_CPU } ]\n"
    )
