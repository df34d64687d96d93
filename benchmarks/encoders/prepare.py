"""`python -m benchmarks.encoders.prepare`: writes what the benchmark measures, once.

These are an embedding model (all-MiniLM-L6-v2) and a cross-encoder of its size (its encoder with a head of random
weights), each as source, as ONNX file for the peers on ONNX Runtime, and as built by Tidal; models for entities and
answers with random heads; and an encoder that is shared by tasks of all kinds.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import demo.texts
from benchmarks.encoders import equality, mixed_tasks, source
from benchmarks.encoders.source import LONGEST, ONNX, TASKS, Task, write_source
from benchmarks.kept import cache_folder
from benchmarks.report import progress
from demo.texts import lengthen
from tidal import device
from tidal.arlo.manifest import ArloManifest, load_arlo_manifest
from tidal.repository.entries import ModelEntry

#: Task of the spec of Tidal, and the output that the benchmark requests.
SPEC_TASKS: Mapping[Task, tuple[str, str]] = {"embed": ("embedding", "embedding"), "rerank": ("rerank", "score")}
_LENGTHS = (32, 64, 128, LONGEST)
_DONE = "done"
# The largest 1 - cosine of an embedding, that of a text of 3 tokens, is about 0.05; the benchmark reports its effect.
_INT8_TOLERANCE, _SAMPLES = 0.1, 512


@dataclass(frozen=True, slots=True)
class EncoderArtefacts:
    """Prepared artefacts.

    Attributes:
        folder: Folder of all artefacts.
    """

    folder: Path

    @property
    def digest(self) -> str:
        """Digest of the recipe."""
        return self.folder.name.rpartition("-")[2]

    @property
    def repository(self) -> Path:
        """Repository of Tidal's models."""
        return self.folder / "repository"

    def source(self, task: Task) -> Path:
        """Folder of a task's model in Hugging Face's format, with `model.onnx`."""
        return self.folder / task

    def tokenizer(self, task: Task) -> Path:
        """File of a task's tokenizer."""
        return self.source(task) / "tokenizer.json"

    def version(self, task: Task, precision: str = "fp32") -> Path:
        """Version folder of a model that Tidal built."""
        latest = ModelEntry(self.repository / model_name(task, precision)).latest()
        if latest is None:
            raise SystemExit(f"{model_name(task, precision)} was not built: run python -m benchmarks.encoders.prepare")
        return latest

    def manifest(self, task: Task, precision: str = "fp32") -> ArloManifest:
        """Manifest of a model that Tidal built."""
        return load_arlo_manifest(self.version(task, precision))

    def graph(self, task: Task) -> Path:
        """OpenVINO model of a task in fp32, which Tidal serves and peers are put around."""
        version, manifest = self.version(task), self.manifest(task)
        return manifest.artifact(manifest.runtimes[-1], version).path

    def graph_output(self, task: Task) -> str:
        """Name of the graph's output with the embeddings, or with the logits of scores."""
        return "embedding" if task == "embed" else "logits"


def model_name(task: Task, precision: str = "fp32") -> str:
    """Return the name of a model in Tidal's repository."""
    return f"minilm_{task}_{precision}"


def load() -> EncoderArtefacts:
    """Return prepared artefacts.

    Raises:
        SystemExit: `prepare` has not completed with this code.
    """
    artefacts = _artefacts()
    if not (artefacts.folder / _DONE).exists():
        raise SystemExit(f"{artefacts.folder / _DONE} does not exist: run python -m benchmarks.encoders.prepare first")
    return artefacts


def prepare() -> EncoderArtefacts:
    """Create missing artefacts."""
    artefacts = _artefacts()
    for task in TASKS:
        if not (artefacts.source(task) / ONNX).exists():
            progress(f"writing the {task} model")
            write_source(task, artefacts.source(task))
    artefacts.repository.mkdir(exist_ok=True)
    for task in TASKS:
        _build(artefacts, task, "fp32")
    _build(artefacts, "embed", "int8")
    if {"avx512_bf16", "amx_bf16"} & set(device.cpu().features):
        _build(artefacts, "embed", "bf16")
    for kind, name in equality.MODELS.items():
        if not (artefacts.folder / kind / "config.json").exists():
            equality.write_source(kind, artefacts.folder / kind)
        fields = f"model: {artefacts.folder / kind}\nform: dynamic\nprecision: fp32\n{equality.SPEC_FIELDS[kind]}"
        _build_spec(artefacts, name, fields, required=True)
    if not mixed_tasks.is_built(artefacts.repository):
        progress("building an encoder that tasks of all kinds share")
        mixed_tasks.build_tasks(artefacts.repository)
    (artefacts.folder / _DONE).touch()
    return artefacts


def _artefacts() -> EncoderArtefacts:
    recipe = Path(str(source.__file__)).read_text(encoding="utf-8")
    return EncoderArtefacts(cache_folder() / f"encoders-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}")


def _build(artefacts: EncoderArtefacts, task: Task, precision: str) -> None:
    name = model_name(task, precision)
    fields = f"lengths: {list(_LENGTHS)}\nform: dynamic\nmax_batch: 64\n"
    if precision == "int8":
        samples = artefacts.folder / "samples.txt"
        texts = [text for text, _ in demo.texts.make_examples(_SAMPLES, seed=11)]
        samples.write_text("".join(f"{lengthen(text, 30) if at % 4 == 0 else text}\n" for at, text in enumerate(texts)))
        fields += f"samples: {samples}\ntolerance: {_INT8_TOLERANCE}\n"
    fields = f"model: {artefacts.source(task)}\ntask: {SPEC_TASKS[task][0]}\nprecision: {precision}\n{fields}"
    # Only the compared precision must be within its tolerance.
    _build_spec(artefacts, name, fields, required=precision == "fp32")


def _build_spec(artefacts: EncoderArtefacts, name: str, fields: str, *, required: bool) -> None:
    spec = artefacts.folder / f"{name}.yaml"
    spec.write_text(f"kind: arlo\nname: {name}\n{fields}")
    progress(f"building {name} (skipped if it is up to date)")
    command = [sys.executable, "-m", "tidal_client.main", "build", str(spec), "--repository", str(artefacts.repository)]
    if subprocess.run(command, check=required, stdout=sys.stderr).returncode:
        progress(f"{name} is left out: it was not published")


if __name__ == "__main__":
    print(f"artefacts {prepare().digest}")
