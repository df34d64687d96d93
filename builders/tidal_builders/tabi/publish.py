"""Writes a cascade's version: its levels' tokenizers, what was measured, and the manifest that names them all."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tidal.errors import InvalidArgument
from tidal.manifest import TokenizerInfo, sha256_file
from tidal.repository.entries import ModelEntry
from tidal.tabi.manifest import Level, TabiManifest, load_tabi_manifest
from tidal_builders.publishing import VersionFields, publish_version
from tidal_builders.runner import BuildRun
from tidal_builders.tabi.config import cascade_config_pbtxt
from tidal_builders.tabi.figures import plot_candidates, plot_reliability
from tidal_builders.tabi.plan import CascadePlan
from tidal_builders.tabi.report import SearchReport
from tidal_builders.tabi.searching import Searched
from tidal_builders.tabi.spec import TabiSpec
from tidal_builders.tabi.versions import LevelVersion

REPORT_DATA, REPORT_CANDIDATES, REPORT_RELIABILITY = (
    "report/report.json",
    "report/candidates.png",
    "report/reliability.png",
)
_TOKENIZERS = "tokenizers"


def levels_of(
    spec: TabiSpec, plan: CascadePlan, searched: Searched, versions: Sequence[LevelVersion]
) -> tuple[Level, ...]:
    """The levels as the manifest has them, ascending by score.

    Args:
        spec: of the cascade.
        plan: of the cascade.
        searched: what was found.
        versions: of the levels, in the order of the spec.
    """
    return tuple(
        Level(
            name=spec.levels[result.index].name,
            model=versions[result.index].model,
            task=versions[result.index].task,
            version=versions[result.index].version,
            fingerprint=versions[result.index].fingerprint,
            tokenizer=_tokenizer(spec, versions, result.index),
            max_length=versions[result.index].max_length,
            order=plan.agreement.orders[result.index],
            attention=versions[result.index].attention,
            calibration=result.calibrated.calibration,
            score=result.score,
            latency=result.latency,
        )
        for result in searched.result.levels
    )


def publish_cascade(
    run: BuildRun[TabiSpec, CascadePlan],
    searched: Searched,
    levels: tuple[Level, ...],
    versions: Sequence[LevelVersion],
    report: SearchReport,
    chosen: int,
) -> tuple[TabiManifest, int]:
    """Publish tokenizers, report and manifest as the newest version.

    Args:
        run: The build of the cascade.
        searched: Result of the search.
        levels: Levels as `levels_of` returns them.
        versions: Versions of the levels, in the order of the spec.
        report: Report of the search.
        chosen: Index of the candidate that meets the target.

    Returns:
        The manifest and the version's number.
    """

    def fill(folder: Path) -> None:
        (folder / _TOKENIZERS).mkdir()
        for level, result in zip(levels, searched.result.levels, strict=True):
            source = versions[result.index]
            shutil.copyfile(source.folder / source.tokenizer.file, folder / level.tokenizer.file)
        _write_report(report, folder)

    def describe(_: Path, fields: VersionFields) -> TabiManifest:
        plan = run.plan
        return TabiManifest(
            kind="tabi",
            **fields,
            task=plan.agreement.task,
            pairs=searched.pairs,
            metric=plan.metric,
            labels=plan.agreement.labels,
            data=plan.ingredients["data file"],
            rows=searched.rows,
            levels=levels,
            candidates=searched.result.candidates,
            serving=searched.serving,
            warnings=report.warnings,
            target=run.spec.target,
            chosen=chosen,
        )

    return publish_version(run, fill, describe, cascade_config_pbtxt)


def versions_named(cascade: ModelEntry, model: str) -> set[int]:
    """Versions of a level's model that the cascade's versions name; one that cannot be read needs none."""
    named = set()
    for version in cascade.versions():
        with suppress(InvalidArgument):
            levels = load_tabi_manifest(cascade.version_dir(version)).levels
            named |= {level.version for level in levels if level.model == model}
    return named


def _tokenizer(spec: TabiSpec, versions: Sequence[LevelVersion], index: int) -> TokenizerInfo:
    """The level's tokenizer under the name of the first level of the spec that has the same."""
    files = [version.folder / version.tokenizer.file for version in versions]
    hashes = [sha256_file(file) for file in files]
    first = spec.levels[hashes.index(hashes[index])].name
    return versions[index].tokenizer.model_copy(update={"file": f"{_TOKENIZERS}/{first}.json"})


def _write_report(report: SearchReport, staging: Path) -> None:
    (staging / REPORT_DATA).parent.mkdir()
    (staging / REPORT_DATA).write_text(report.model_dump_json(indent=1))
    plot_candidates(report, staging / REPORT_CANDIDATES)
    plot_reliability(report, staging / REPORT_RELIABILITY)
