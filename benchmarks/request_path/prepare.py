"""`python -m benchmarks.request_path.prepare [--before FOLDER]`: builds what the benchmark measures, once.

These are tiny models of all systems, an intent classifier on all-MiniLM-L6-v2 in three precisions, and the load
generator. With `--before`, FOLDER gets the commit that is compared with, its environment, and its own tiny models.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

import demo.texts
from benchmarks.kept import cache_folder
from benchmarks.report import progress
from benchmarks.request_path import models
from benchmarks.serving_path.prepare import prepare as prepare_source
from demo.texts import lengthen
from testing import decoders, perf_analyzer, tiny_vision
from testing import models as tiny_models

#: Commit that `requests_vs_before` compares with.
BEFORE_COMMIT = "ee44a59"
PRECISIONS = ("fp32", "int8", "auto")
#: Precision that claims are made of.
CLAIMED = "fp32"
# The largest error of a logit is about 1; the build requires in addition that 97 % of the labels stay.
_INT8_TOLERANCE = 1.5
_ROOT = Path(__file__).parents[2]
_MODELS = "request_path"


@dataclass(frozen=True, slots=True)
class RequestPathArtefacts:
    """Prepared artefacts.

    Attributes:
        folder: Folder of the tiny models and their sources.
        real: Repository of the models on all-MiniLM-L6-v2.
    """

    folder: Path
    real: Path

    @property
    def digest(self) -> str:
        """Digest of the recipe of the tiny models."""
        return self.folder.name.rpartition("-")[2]

    @property
    def sources(self) -> Path:
        """Sources of the tiny models."""
        return self.folder / "sources"

    @property
    def free(self) -> Path:
        """Repository of the tiny models."""
        return self.folder / "repository"


def real_model(precision: str) -> str:
    """Return the name of the model on all-MiniLM-L6-v2 that is built with a precision."""
    return f"minilm_{precision}_arlo"


def prepare() -> RequestPathArtefacts:
    """Create missing artefacts."""
    modules = (models, tiny_models, tiny_vision, decoders)
    recipe = "".join(Path(str(module.__file__)).read_text(encoding="utf-8") for module in modules)
    folder = cache_folder() / f"request_path-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    source_repository, source, _ = prepare_source()
    artefacts = RequestPathArtefacts(folder, source_repository.parent / "request_path")
    progress("building tiny models of all systems (skipped if they are up to date)")
    models.write_sources(artefacts.sources)
    models.build(artefacts.sources, folder)
    progress("building all-MiniLM-L6-v2 (skipped if it is up to date)")
    for precision in PRECISIONS:
        _build_real(artefacts.real, source, precision)
    try:
        perf_analyzer.fetch(cache_folder())
    except perf_analyzer.NoPerfAnalyzer as error:
        progress(f"the project's own client generates the load: {error}")
    return artefacts


def _build_real(repository: Path, source: Path, precision: str) -> None:
    """Build one precision; only the claimed one must be within its tolerance."""
    repository.mkdir(exist_ok=True)
    spec = repository / f"{precision}.yaml"
    fields = "lengths: [32, 64, 128, 256]\nform: dynamic\nmax_batch: 64\n"
    if precision == "int8":
        # The head was trained on such texts: on others it is unsure, and the smallest error changes the label.
        samples = repository / "samples.txt"
        texts = [text for text, _ in demo.texts.make_examples(512, seed=11)]
        samples.write_text(
            "".join(f"{lengthen(text, 30) if at % 16 == 0 else text}\n" for at, text in enumerate(texts))
        )
        fields += f"samples: {samples}\ntolerance: {_INT8_TOLERANCE}\n"
    spec.write_text(f"kind: arlo\nname: {real_model(precision)}\nmodel: {source}\nprecision: {precision}\n{fields}")
    command = [sys.executable, "-m", "tidal_client.main", "build", str(spec), "--repository", str(repository)]
    if subprocess.run(command, check=precision == CLAIMED, stdout=sys.stderr).returncode:
        progress(f"{precision} is left out: it was not published")


def prepare_before(folder: Path, sources: Path) -> None:
    """Export the earlier commit, install it and let it build its tiny models, unless that was done.

    Args:
        folder: Folder of the earlier commit.
        sources: Sources of the tiny models.
    """
    if not (folder / "Makefile").exists():
        progress(f"exporting {BEFORE_COMMIT}")
        # Renamed when it is complete: a tree that was cut short would be taken for the whole.
        partial = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        with subprocess.Popen(["git", "archive", BEFORE_COMMIT], cwd=_ROOT, stdout=subprocess.PIPE) as archive:
            subprocess.run(["tar", "-x", "-C", str(partial)], stdin=archive.stdout, check=True)
        if archive.returncode:
            raise SystemExit(f"commit {BEFORE_COMMIT} is not in this repository's history")
        partial.rename(folder)
    progress(f"installing {BEFORE_COMMIT} (skipped if it is installed)")
    subprocess.run(["make", "install"], cwd=folder, check=True, stdout=sys.stderr)
    progress(f"building tiny models with {BEFORE_COMMIT} (skipped if they are up to date)")
    models.build(sources, folder / _MODELS, before_python(folder))


def before_python(folder: Path) -> str:
    """Return the interpreter of the earlier commit's environment."""
    return str(folder.resolve() / ".venv" / "bin" / "python")


def before_repository(folder: Path) -> Path:
    """Return the repository of the earlier commit's tiny models.

    Raises:
        SystemExit: They were not built.
    """
    repository = folder / _MODELS / "repository"
    if not repository.is_dir():
        raise SystemExit(
            f"{repository} does not exist: run python -m benchmarks.request_path.prepare --before {folder}"
        )
    return repository


def main(
    before: Annotated[Path | None, typer.Option(help=f"Folder for commit {BEFORE_COMMIT} and its environment.")] = None,
) -> None:
    """Create missing artefacts of the benchmark."""
    artefacts = prepare()
    if before is not None:
        prepare_before(before, artefacts.sources)
    print(f"artefacts {artefacts.digest}")


if __name__ == "__main__":
    typer.run(main)
