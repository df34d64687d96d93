"""Prepares the artefacts of the benchmark once: a decoder of GPT-2 small's size built in two precisions, its OpenVINO
graph, references by transformers, and OpenVINO GenAI in a separate folder if it is available."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from benchmarks.flover import export, genai, reference, source
from benchmarks.flover.reference import References, read_references, write_references
from benchmarks.flover.source import GPT2_SMALL, Shape, write_source
from benchmarks.kept import cache_folder
from benchmarks.report import progress
from tidal import device
from tidal.flover.manifest import FloverManifest, load_flover_manifest
from tidal.repository.entries import ModelEntry

#: Number of slots, and of tokens of a slot.
SLOTS, LONGEST = 32, 576
_DONE = "done"


@dataclass(frozen=True)
class FloverArtefacts:
    """Prepared artefacts.

    Attributes:
        folder: Folder of all artefacts.
        precision: Precision that systems are compared in.
    """

    folder: Path
    precision: str

    @property
    def digest(self) -> str:
        """Digest of recipe and sizes."""
        return self.folder.name.removeprefix("flover-")

    @property
    def source(self) -> Path:
        """The decoder in Hugging Face format."""
        return self.folder / "source"

    @property
    def graph(self) -> Path:
        """Folder of the OpenVINO graph and of the tokenizers' graphs."""
        return self.folder / "graph"

    @property
    def extra(self) -> Path:
        """Folder that OpenVINO GenAI was installed into."""
        return self.folder / "genai"

    def version(self, precision: str) -> Path:
        """Return the version folder of the decoder as Tidal serves it."""
        latest = ModelEntry(self.folder / "repository" / _name(precision)).latest()
        assert latest is not None
        return latest

    @cached_property
    def manifest(self) -> FloverManifest:
        """Manifest of the compared decoder."""
        return load_flover_manifest(self.version(self.precision))

    @cached_property
    def references(self) -> References:
        """Generations of transformers in float32."""
        return read_references(self.folder / reference.FILE)

    @cached_property
    def no_genai(self) -> str:
        """Reason why OpenVINO GenAI cannot run; "" if it is installed."""
        return genai.why_not(self.extra)


def load(shape: Shape = GPT2_SMALL) -> FloverArtefacts:
    """Return prepared artefacts.

    Raises:
        SystemExit: `prepare` has not completed with this code.
    """
    artefacts = _artefacts(shape)
    if not (artefacts.folder / _DONE).exists():
        raise SystemExit(f"{artefacts.folder / _DONE} does not exist: run python -m benchmarks.flover.prepare first")
    return artefacts


def prepare(shape: Shape = GPT2_SMALL) -> FloverArtefacts:
    """Create missing artefacts, which takes a few minutes."""
    artefacts = _artefacts(shape)
    artefacts.folder.mkdir(parents=True, exist_ok=True)
    if not (artefacts.source / "tokenizer.json").exists():
        progress("writing a decoder of GPT-2 small's size, with random weights")
        write_source(artefacts.source, shape)
    for precision in sorted({artefacts.precision, "fp32"}):
        _build(artefacts, precision)
    if not (artefacts.graph / export.GRAPH).exists():
        progress("converting it for OpenVINO")
        export.write_graph(artefacts.source, artefacts.graph)
    genai.install(artefacts.extra)
    if not artefacts.no_genai:
        genai.write_tokenizers(artefacts.extra, artefacts.source, artefacts.graph)
    if not (artefacts.folder / reference.FILE).exists():
        progress("generating references with transformers in float32")
        write_references(artefacts.source, artefacts.folder / reference.FILE, shape.vocabulary)
    (artefacts.folder / _DONE).touch()
    return artefacts


def compared_precision() -> str:
    """Return bf16 if the processor has bfloat16 instructions, else fp32."""
    return "bf16" if {"avx512_bf16", "amx_bf16"} & set(device.cpu().features) else "fp32"


def _artefacts(shape: Shape) -> FloverArtefacts:
    return FloverArtefacts(cache_folder() / f"flover-{_digest(shape)}", compared_precision())


def _build(artefacts: FloverArtefacts, precision: str) -> None:
    name = _name(precision)
    spec = artefacts.folder / f"{name}.yaml"
    longest = min(LONGEST, source.read_positions(artefacts.source))
    spec.write_text(
        f"kind: flover\nname: {name}\nmodel: {artefacts.source}\nmax_concurrency: {SLOTS}\nmax_length: {longest}\n"
        f"precision: {precision}\n"
    )
    progress(f"building {name} (skipped if it is up to date)")
    command = [sys.executable, "-m", "tidal_client.main", "build", str(spec)]
    subprocess.run([*command, "--repository", str(artefacts.folder / "repository")], check=True, stdout=sys.stderr)


def _name(precision: str) -> str:
    return f"gpt2_{precision}"


def _digest(shape: Shape) -> str:
    recipe = "".join(Path(str(module.__file__)).read_text() for module in (source, export, reference, genai))
    return hashlib.sha256(f"{recipe}{shape}{np.__version__}".encode()).hexdigest()[:12]


if __name__ == "__main__":
    print(f"artefacts {prepare().digest}")
