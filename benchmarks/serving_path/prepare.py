"""Prepares the measured model once: an intent classifier on all-MiniLM-L6-v2."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import demo.texts
import demo.train
from benchmarks.kept import cache_folder
from benchmarks.report import progress
from tidal.repository.entries import ModelEntry

MODEL = "intents"
#: Maximum batch size of the engine, and of the bare models around it: larger batches are refused.
MAX_BATCH = 32


def prepare() -> tuple[Path, Path, str]:
    """Train and build the model unless it is up to date.

    Returns:
        Model repository, folder of the source model, and the digest of texts and training code.
    """
    recipe = "".join(Path(str(module.__file__)).read_text() for module in (demo.texts, demo.train))
    digest = hashlib.sha256(recipe.encode()).hexdigest()[:12]
    folder = cache_folder() / f"intents-{digest}"
    source = folder / "model"
    if not (source / "config.json").exists():
        progress("training the intent classifier's head")
        demo.train.train_intent_classifier(source)
    repository = folder / "repository"
    spec = folder / "intents.yaml"
    spec.write_text(
        f"kind: arlo\nname: {MODEL}\nmodel: {source}\nprecision: fp32\n"
        f"lengths: [32, 64, 128, 256, 512]\nform: dynamic\nmax_batch: {MAX_BATCH}\n"
    )
    progress("building (skipped if it is up to date)")
    command = [sys.executable, "-m", "tidal_client.main", "build", str(spec), "--repository", str(repository)]
    subprocess.run(command, check=True, stdout=sys.stderr)
    assert ModelEntry(repository / MODEL).latest() is not None
    return repository, source, digest


if __name__ == "__main__":
    print(f"artefacts {prepare()[2]}")
