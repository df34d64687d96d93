"""A partitioned model of trivial Python models, with its manifests."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tidal.arlo.manifest import ArloManifest, Placement
from tidal.device import cpu
from tidal.engine_model.manifest import EngineInput, EngineManifest, Runtime
from tidal.manifest import Source, TokenizerInfo, Verification
from tidal.profiles import LatencyProfile
from tidal.repository.allocation import make_allocation, write_allocation
from tidal.repository.names import runtime_model

_CODE = Path(__file__).with_name("partitioned_code")
_CONFIG = """
backend: "python"
input [ { name: "SECONDS" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "RAN" data_type: TYPE_INT32 dims: [ 2 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""


def publish_partitioned(
    repository: Path, front: str, lengths: Sequence[int], version: int = 1, placement: Placement = "partitioned"
) -> None:
    """Publish a version of a front and its runtimes, the front last; every config.pbtxt has 1 instance.

    With `placement="polymorphic"` no models of runtimes are published.
    """
    common: dict[str, Any] = {
        "name": front,
        "created": "2030-01-01T00:00:00Z",
        "spec": "m.yaml",
        "fingerprint": "f",
        "source": Source(model="m", architecture="Bert", sha256="s"),
        "engine": "openvino",
        "precision": "fp32",
        "device": cpu(),
        "libraries": {},
        "verification": Verification(samples=1, max_abs_error=0.0, tolerance=0.1, argmax_agreement=1.0),
        "files": (),
    }
    runtimes = tuple(Runtime(max_length=n, file="engine", dynamic=False, max_batch=1) for n in lengths)
    for runtime in runtimes if placement == "partitioned" else ():
        inputs = (EngineInput(name="input_ids", below=9),)
        engine = EngineManifest(**common, kind="engine", front=front, inputs=inputs, runtime=runtime, threads=1)
        _write(repository / runtime_model(front, runtime.max_length), version, engine, "runtime.py")
    once = tuple((1.0,) for _ in lengths)
    manifest = ArloManifest(
        **common,
        kind="arlo",
        placement=placement,
        tokenizer=TokenizerInfo(file="t", max_length=lengths[-1], pad_token_id=0, type_ids=False),
        labels=("a",),
        runtimes=runtimes,
        profile=LatencyProfile(lengths=tuple(lengths), batches=(1,), median_ms=once, p95_ms=once, threads=1),
    )
    _write(repository / front, version, manifest, "front.py")


def set_instances(
    repository: Path, front: str, instances: dict[int, int], loaded: dict[int, int] | None = None
) -> None:
    write_allocation(repository / front, make_allocation(instances, loaded))


def _write(folder: Path, version: int, manifest: ArloManifest | EngineManifest, code: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    policy = f"version_policy {{ specific {{ versions: [ {version} ] }} }}\n" if code == "runtime.py" else ""
    (folder / "config.pbtxt").write_text(_CONFIG + policy)
    staging = Path(tempfile.mkdtemp(dir=folder.parent.parent))
    (staging / "manifest.json").write_text(manifest.model_dump_json())
    shutil.copy(_CODE / code, staging / "model.py")
    # Otherwise Python writes bytecode there, and Triton treats the version as changed.
    (staging / "__pycache__").touch()
    shutil.move(staging, folder / str(version))
