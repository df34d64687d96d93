"""The models of the benchmark, built in seconds: a tiny classifier and embedding model, two decoders."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, cast

import yaml

from testing.decoders import write_decoder
from testing.models import make_tiny_classifier
from testing.sentence_models import make_embedding_model
from tidal_builders.arlo.build import build_arlo
from tidal_builders.arlo.spec import ArloSpec
from tidal_builders.flover.build import build_flover
from tidal_builders.specs import load_spec, parse_spec

INTENT, EMBEDDER, WRITER, PACED = "intent", "embedder", "writer", "paced"
TEXT = "good hotel book train"
_POSITIONS = 4096
_PACED_CONFIG = """
backend: "python"
max_batch_size: 0
model_transaction_policy { decoupled: true }
input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "stream" data_type: TYPE_BOOL dims: [ 1 ] } ]
output [ { name: "index" data_type: TYPE_INT32 dims: [ -1 ] },
  { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] },
  { name: "token_ids" data_type: TYPE_INT64 dims: [ -1 ] },
  { name: "finish_reason" data_type: TYPE_STRING dims: [ -1 ] },
  { name: "prompt_tokens" data_type: TYPE_INT32 dims: [ -1 ] },
  { name: "generated_tokens" data_type: TYPE_INT32 dims: [ -1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""


def build(folder: Path) -> Path:
    """Build all models; return their repository.

    Args:
        folder: Folder to build in.
    """
    repository = folder / "models"
    repository.mkdir()
    labels = tuple(f"label {number}" for number in range(8))
    _encoder(repository, make_tiny_classifier(folder / INTENT, layers=1, labels=labels, max_position=64), INTENT)
    _encoder(repository, make_embedding_model(folder / EMBEDDER), EMBEDDER)
    spec_file = folder / f"{WRITER}.yaml"
    source = write_decoder(folder / WRITER, n_positions=_POSITIONS)
    fields = {"kind": "flover", "name": WRITER, "model": str(source), "max_concurrency": 4, "threads": 1}
    spec_file.write_text(yaml.safe_dump({**fields, "profile_seconds": 0.01}))
    spec: Any = load_spec(spec_file)
    build_flover(spec, repository, spec_file=spec_file, force=False)
    version = repository / PACED / "1"
    version.mkdir(parents=True)
    shutil.copy2(Path(__file__).with_name("paced_model.py"), version / "model.py")
    (version.parent / "config.pbtxt").write_text(_PACED_CONFIG)
    return repository


def _encoder(repository: Path, source: Path, name: str) -> None:
    fields = {"kind": "arlo", "name": name, "model": str(source), "lengths": [16], "form": "dynamic", "max_batch": 4}
    spec = cast(ArloSpec, parse_spec(fields, "benchmark"))
    found = build_arlo(spec, repository, spec_file=Path(f"{name}.yaml"))
    if found.outcome != "published":
        raise RuntimeError(f"model '{name}' was not built: {found.reasons}")
