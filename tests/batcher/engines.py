"""A model of the `engine` backend that is made in a moment: the sum of each row's tokens, whose number may vary."""

from __future__ import annotations

from pathlib import Path

import openvino as ov
from openvino import opset13 as ops

from tidal import device
from tidal.engine_model.manifest import EngineInput, EngineManifest, Runtime
from tidal.engines.registry import engine_version
from tidal.manifest import MANIFEST_FILE, FileRecord, Source, Verification, sha256_file


def publish_summing_engine(model: Path, *, max_batch: int, max_length: int = 64) -> None:
    """Write version 1 of the model."""
    names = ("input_ids", "attention_mask")
    inputs = [ops.parameter(ov.PartialShape([-1, -1]), ov.Type.i64, name=name) for name in names]
    for node, name in zip(inputs, names, strict=True):
        node.output(0).tensor.names = {name}
    total = ops.reduce_sum(ops.multiply(*inputs), ops.constant([1]), keep_dims=True)
    logits = ops.convert(total, "f32")
    logits.output(0).tensor.names = {"logits"}
    version = model / "1"
    (version / "engines").mkdir(parents=True)
    file = version / "engines" / "model.xml"
    ov.save_model(ov.Model([logits], inputs, "sum"), file, compress_to_fp16=False)
    manifest = EngineManifest(
        kind="engine",
        name=model.name,
        created="2030-01-01T00:00:00Z",
        spec="sum.yaml",
        fingerprint="f",
        source=Source(model="sum", architecture="sum", sha256="s"),
        engine="openvino",
        precision="fp32",
        device=device.cpu(),
        libraries={"openvino": engine_version("openvino") or ""},
        files=tuple(
            FileRecord(path=f"engines/{path.name}", bytes=path.stat().st_size, sha256=sha256_file(path))
            for path in sorted(file.parent.iterdir())
        ),
        front=None,
        inputs=tuple(EngineInput(name=name, below=100) for name in names),
        runtime=Runtime(max_length=max_length, file="engines/model.xml", dynamic=True, max_batch=max_batch),
        threads=1,
        verification=Verification(samples=1, max_abs_error=0.0, tolerance=1e-3, argmax_agreement=1.0),
    )
    (version / MANIFEST_FILE).write_text(manifest.model_dump_json())
