"""A kind of model that copies a text file, for tests of the registry."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Unpack

from rich.table import Table

from tidal.manifest import Version, read_manifest
from tidal.repository.entries import ModelEntry
from tidal_builders.fingerprint import code_hash
from tidal_builders.planning import BuildPlan, compare, ingredients
from tidal_builders.publishing import publish_version, write_config_once
from tidal_builders.report import BuildReport
from tidal_builders.runner import BuildOptions, BuildRun, Recipe, run_build
from tidal_builders.spec import ModelSpec

CONFIG = 'backend: "toy"\n'


class ToySpec(ModelSpec):
    kind: Literal["toy"]
    source: Path
    longest: int = 100


class ToyManifest(Version):
    kind: Literal["toy"]
    characters: int


class ToyReport(BuildReport):
    characters: int = 0

    def tables(self) -> list[Table]:
        if self.outcome != "published":
            return []
        table = Table("toy characters")
        table.add_row(str(self.characters))
        return [table]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyPlan(BuildPlan[ToyManifest]):
    source: Path


def plan_toy(spec: ToySpec, repository: Path, base: Path) -> ToyPlan:
    entry, source = ModelEntry(repository / spec.name), base / spec.source
    parts = ingredients(
        spec,
        source=source,
        code=code_hash("tidal_builders.runner"),
        device_kind="cpu",
        libraries=("numpy",),
        more={},
    )
    published, reasons = compare(entry, lambda folder: read_manifest(folder, ToyManifest), parts)
    return ToyPlan(entry=entry, ingredients=parts, published=published, reasons=reasons, source=source)


def build_toy(spec: ToySpec, repository: Path, **options: Unpack[BuildOptions]) -> ToyReport:
    return run_build(Recipe(plan_toy, _current, _build), spec, repository, **options)


def _current(spec: ToySpec, plan: ToyPlan) -> ToyReport:
    write_config_once(plan.entry, lambda: CONFIG)
    return ToyReport(name=spec.name, outcome="current", version=plan.version)


def _build(run: BuildRun[ToySpec, ToyPlan]) -> ToyReport:
    text = (run.plan.source / "text.txt").read_text()
    if len(text) > run.spec.longest:
        return ToyReport(name=run.spec.name, outcome="missed", reasons=(f"{len(text)} characters",))
    folder = run.work.directory("copy", lambda path: (path / "copy.txt").write_text(text) and None)
    manifest, version = publish_version(
        run,
        lambda staging: (staging / "copy.txt").write_bytes((folder / "copy.txt").read_bytes()) and None,
        lambda _, fields: ToyManifest(kind="toy", characters=len(text), **fields),
        lambda _: CONFIG,
    )
    return ToyReport(name=run.spec.name, outcome="published", version=version, characters=manifest.characters)
