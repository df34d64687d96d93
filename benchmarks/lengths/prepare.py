"""`python -m benchmarks.lengths.prepare [--data DIR]`: builds one model for each distribution of lengths."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.kept import cache_folder
from benchmarks.lengths.workload import NAMES, LengthsWorkload
from benchmarks.report import progress
from benchmarks.serving_path.prepare import prepare as prepare_source
from tidal import device
from tidal.engines import Precision

_SEED = 71


@dataclass(frozen=True, slots=True)
class LengthsArtefacts:
    """Prepared models.

    Attributes:
        repository: Repository with the model `lengths_NAME` of each distribution.
        precision: Precision of all of them: bf16 where the processor has it, else fp32.
        workload: The distributions.
    """

    repository: Path
    precision: Precision
    workload: LengthsWorkload


def prepare(data: Path | None) -> LengthsArtefacts:
    """Build the models unless they are up to date.

    Args:
        data: Folder with `tweet_lengths` and `xquad`; None draws lengths from their percentiles.
    """
    _, source, digest = prepare_source()
    precision: Precision = "bf16" if {"avx512_bf16", "amx_bf16"} & set(device.cpu().features) else "fp32"
    key = hashlib.sha256(f"{digest} {data}".encode()).hexdigest()[:12]
    folder = cache_folder() / f"lengths-{key}"
    folder.mkdir(parents=True, exist_ok=True)
    artefacts = LengthsArtefacts(folder / "repository", precision, LengthsWorkload(source / "tokenizer.json", data))
    for name in NAMES:
        progress(f"building for the lengths of {name} (skipped if it is up to date)")
        like = "even"
        if name != "even":
            like = f"{name}.txt"
            artefacts.workload.write_texts(name, folder / like, _SEED)
        spec = folder / f"{name}.yaml"
        spec.write_text(
            f"kind: arlo\nname: lengths_{name}\nmodel: {source}\nprecision: {precision}\nlengths_like: {like}\n"
            "max_batch: 4\n"
        )
        command = [sys.executable, "-m", "tidal_client.main", "build", str(spec)]
        subprocess.run([*command, "--repository", str(artefacts.repository)], check=True, stdout=sys.stderr)
    return artefacts


def main(
    data: Annotated[Path | None, typer.Option(help="Folder that contains tweet_lengths and xquad.")] = None,
) -> None:
    """Build one model for each distribution of lengths."""
    print(f"artefacts {prepare(data).repository}")


if __name__ == "__main__":
    typer.run(main)
