"""The `config.pbtxt` of a cascade, for the `tabi` backend. It is written once, so that an operator may edit it."""

from __future__ import annotations

from tidal.tabi.manifest import TabiManifest

_OUTPUTS = {
    "classification": (("label", "TYPE_STRING", 1), ("probabilities", "TYPE_FP32", -1)),
    "regression": (("value", "TYPE_FP32", 1),),
    "rerank": (("score", "TYPE_FP32", 1),),
}
_EVERY_OUTPUT = (
    ("level", "TYPE_INT32", 1),
    ("confidence", "TYPE_FP32", 1),
    ("degraded", "TYPE_BOOL", 1),
    ("input_tokens", "TYPE_INT32", 1),
    ("pruned_text", "TYPE_STRING", 1),
)


_OF_PAIRS = (("pruned_pair", "TYPE_STRING", 1),)


def cascade_config_pbtxt(manifest: TabiManifest) -> str:
    """Return the complete text of a cascade's config.pbtxt.

    Rows of a request are separate queries. `text_pair` is declared for pairs only, and required there: clients that
    generate inputs from a model's config, such as perf_analyzer, then work without options.

    Args:
        manifest: Manifest of the cascade.
    """
    outputs = ",\n".join(
        f'  {{ name: "{name}" data_type: {kind} dims: [ {dims} ] }}'
        for name, kind, dims in (*_OUTPUTS[manifest.task], *_EVERY_OUTPUT, *(_OF_PAIRS if manifest.pairs else ()))
    )
    names = ("text_input", "text_pair") if manifest.pairs else ("text_input",)
    inputs = ",\n".join(f'  {{ name: "{name}" data_type: TYPE_STRING dims: [ 1 ] }}' for name in names)
    return (
        f'name: "{manifest.name}"\nbackend: "tabi"\nmax_batch_size: 64\n'
        f"input [\n{inputs}\n]\n"
        f"output [\n{outputs}\n]\n"
        "dynamic_batching { }\ninstance_group [ { count: 1 kind: KIND_CPU } ]\n"
    )
