"""Artefacts of the compositions: a cascade of two levels, its levels built for other placements, and an encoder."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

import demo.train
from benchmarks.compositions.artefacts import LABELLED, RECIPES, SEED, BuiltArtefacts, begin
from benchmarks.report import progress
from benchmarks.tabi.tasks import TaskQueries
from benchmarks.texts import tweet_lengths
from demo.texts import LABELS, lengthen, make_examples
from tidal.arlo.manifest import ArloManifest, load_arlo_manifest
from tidal.pets.manifest import load_pets_manifest
from tidal.pets.profile import Tables
from tidal.tabi.manifest import TabiManifest, load_tabi_manifest

CASCADE, ENCODER = "cascade", "encoder"
LEVELS = tuple(RECIPES)
STATIC, PARTITIONED = f"{CASCADE}_static", f"{CASCADE}_partitioned"
# Lengths of tweets, scaled so that 128 tokens become 512, as in Arlo's evaluation; the rest is for a text's own words.
_SCALE, _LONGEST = 4, 450


@dataclass(frozen=True, slots=True)
class CascadeArtefacts(BuiltArtefacts):
    """The artefacts of this benchmark: the cascade, its levels in other placements, and the shared encoder."""

    @property
    def manifest(self) -> TabiManifest:
        """Manifest of the cascade."""
        return load_tabi_manifest(self.version(CASCADE))

    @property
    def tables(self) -> Tables:
        """Latency tables of the shared encoder's profile."""
        return load_pets_manifest(self.version(ENCODER)).profile.tables()

    def level(self, prefix: str, level: str) -> tuple[Path, ArloManifest]:
        """Return version folder and manifest of a level.

        Args:
            prefix: Prefix of the model's name: the cascade, or another placement.
            level: Name of the level.
        """
        folder = self.version(f"{prefix}_{level}")
        return folder, load_arlo_manifest(folder)


def make_queries(count: int, seed: int, data: Path | None) -> TaskQueries:
    """Return different texts with an intent, lengthened by small talk to scaled lengths of tweets.

    Args:
        count: Number of texts.
        seed: Seed; equal seeds give equal texts.
        data: Folder with `tweet_lengths`; None draws lengths from their percentiles.
    """
    lengths, _ = tweet_lengths(4 * count, seed, data)
    found: dict[tuple[str, ...], str] = {}
    for (text, label), length in zip(make_examples(4 * count, seed), lengths, strict=True):
        found.setdefault((lengthen(text, min(_LONGEST, _SCALE * length)),), LABELS[label])
    if len(found) < count:
        raise ValueError(f"count is {count}, but only {len(found)} different texts exist")
    return TaskQueries(tuple(found)[:count], tuple(found.values())[:count])


def prepare(data: Path | None, *, placements: bool = True) -> CascadeArtefacts:
    """Train and build the missing artefacts: minutes, once.

    Args:
        data: Folder with `tweet_lengths`; None draws lengths from their percentiles.
        placements: Whether to build the levels with static engines and partitioned too.
    """
    labelled = make_queries(LABELLED, SEED, data)
    rows = "".join(f"{text}\t{label}\n" for (text,), label in zip(labelled.texts, labelled.truth, strict=True))
    folder, digest = begin("compositions", __file__, rows)
    sources = {level: folder / level for level in LEVELS}
    (folder / "labelled.tsv").write_text(f"text\tlabel\n{rows}")
    progress("building (nothing to do when it is up to date)")
    specs = []
    for spec in _specs(sources, placements=placements):
        specs.append(folder / f"{spec['name']}.yaml")
        specs[-1].write_text(yaml.safe_dump(spec, sort_keys=False))
    repository = folder / "repository"
    command = [sys.executable, "-m", "tidal_client.main", "build", *map(str, specs), "--repository", str(repository)]
    subprocess.run(command, check=True, stdout=sys.stderr)
    return CascadeArtefacts(repository, digest)


def _specs(sources: dict[str, Path], *, placements: bool) -> list[dict[str, Any]]:
    """Return the specs of the shared encoder, of the cascade, whose levels have one engine for all lengths, and of its
    levels with static engines and partitioned."""
    placed = {
        STATIC: {"placement": "polymorphic", "form": "static", "lengths": [64, 128, 256, 512], "max_batch": 4},
        PARTITIONED: {"placement": "partitioned", "lengths": [64, 512], "max_batch": 1},
    }
    cascade = {
        "kind": "tabi",
        "name": CASCADE,
        "levels": [{"name": level, "model": str(source)} for level, source in sources.items()],
        "data": "labelled.tsv",
        "target": {"escalation_rate": 0.3},
        "runtimes": {"precision": "fp32", "form": "dynamic", "lengths": [32, 64, 128, 256, 512], "max_batch": 4},
    }
    outputs = ["logits", "attention_received"]
    return [
        {"kind": "pets", "name": ENCODER, "model": str(demo.train.minilm_folder()), "max_length": 128},
        cascade,
        *(
            {"kind": "arlo", "name": f"{prefix}_{level}", "model": str(source), "outputs": outputs, **options}
            for prefix, options in (placed.items() if placements else ())
            for level, source in sources.items()
        ),
    ]


def main(data: Annotated[Path | None, typer.Option(help="Folder with tweet_lengths.")] = None) -> None:
    """Train and build the artefacts of `python -m benchmarks.compositions`; minutes, once."""
    print(f"artefacts {prepare(data).digest}")


if __name__ == "__main__":
    typer.run(main)
