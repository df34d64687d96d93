"""Writes a cascade's version: its levels' tokenizers, the report of the search, and the manifest."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from tidal.errors import InvalidArgument
from tidal.manifest import TokenizerInfo, sha256_file
from tidal.repository.entries import ModelEntry
from tidal.tabi.manifest import EarlyRouterInfo, Level, TabiManifest, load_tabi_manifest
from tidal_builders.arrays import write_arrays
from tidal_builders.publishing import VersionFields, publish_version
from tidal_builders.runner import BuildRun
from tidal_builders.tabi.config import cascade_config_pbtxt
from tidal_builders.tabi.figures import plot_candidates, plot_reliability
from tidal_builders.tabi.measured_search import CascadeSearch
from tidal_builders.tabi.plan import CascadePlan
from tidal_builders.tabi.search_report import SearchReport
from tidal_builders.tabi.spec import TabiSpec
from tidal_builders.tabi.versions import LevelVersion

REPORT_DATA, REPORT_CANDIDATES, REPORT_RELIABILITY = (
    "report/report.json",
    "report/candidates.png",
    "report/reliability.png",
)
_TOKENIZERS = "tokenizers"


def levels_of(
    spec: TabiSpec, plan: CascadePlan, search: CascadeSearch, versions: Sequence[LevelVersion]
) -> tuple[Level, ...]:
    """Return the levels for the manifest, ascending by score.

    Args:
        spec: Spec of the cascade.
        plan: Plan of the cascade.
        search: Result of the search.
        versions: Published versions of the levels, in the order of the spec.
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
        for result in search.result.levels
    )


def publish_cascade(
    run: BuildRun[TabiSpec, CascadePlan],
    search: CascadeSearch,
    levels: tuple[Level, ...],
    versions: Sequence[LevelVersion],
    report: SearchReport,
    chosen: int,
) -> tuple[TabiManifest, int]:
    """Publish tokenizers, report and manifest as the newest version.

    Args:
        run: The build of the cascade.
        search: Result of the search.
        levels: Levels as `levels_of` returns them.
        versions: Versions of the levels, in the order of the spec.
        report: Report of the search.
        chosen: Index of the candidate that meets the target.

    Returns:
        The manifest and the version's number.
    """

    def fill(folder: Path) -> None:
        (folder / _TOKENIZERS).mkdir()
        for level, result in zip(levels, search.result.levels, strict=True):
            source = versions[result.index]
            shutil.copyfile(source.folder / source.tokenizer.file, folder / level.tokenizer.file)
        for each in search.result.routers:
            file = folder / _router_file(levels[each.level])
            file.parent.mkdir(exist_ok=True)
            weights, bias = np.array(each.fitted.weights, np.float32), np.array(each.fitted.bias)
            write_arrays(file, {"weights": weights, "bias": bias})
        _write_report(report, folder)

    def describe(_: Path, fields: VersionFields) -> TabiManifest:
        plan = run.plan
        return TabiManifest(
            kind="tabi",
            **fields,
            task=plan.agreement.task,
            pairs=search.pairs,
            metric=plan.metric,
            labels=plan.agreement.labels,
            data=plan.ingredients["data file"],
            rows=search.rows,
            levels=levels,
            candidates=search.result.candidates,
            early_routers=tuple(
                EarlyRouterInfo(
                    level=each.level,
                    file=_router_file(levels[each.level]),
                    loss=each.fitted.loss,
                    constant_loss=each.fitted.constant_loss,
                )
                for each in search.result.routers
            ),
            serving=search.serving,
            warnings=report.warnings,
            target=run.spec.target,
            chosen=chosen,
        )

    return publish_version(run, fill, describe, cascade_config_pbtxt)


def named_versions(cascade: ModelEntry, model: str) -> set[int]:
    """Return the versions of a level's model that the cascade's readable versions refer to.

    Args:
        cascade: Repository entry of the cascade.
        model: Name of the level's model.
    """
    named = set()
    for version in cascade.versions():
        with suppress(InvalidArgument):
            levels = load_tabi_manifest(cascade.version_dir(version)).levels
            named |= {level.version for level in levels if level.model == model}
    return named


def _router_file(level: Level) -> str:
    return f"early_routers/{level.name}.npz"


def _tokenizer(spec: TabiSpec, versions: Sequence[LevelVersion], index: int) -> TokenizerInfo:
    """Return a level's tokenizer, with the file named after the first level of the spec that has the same file."""
    files = [version.folder / version.tokenizer.file for version in versions]
    hashes = [sha256_file(file) for file in files]
    first = spec.levels[hashes.index(hashes[index])].name
    return versions[index].tokenizer.model_copy(update={"file": f"{_TOKENIZERS}/{first}.json"})


def _write_report(report: SearchReport, staging: Path) -> None:
    (staging / REPORT_DATA).parent.mkdir()
    (staging / REPORT_DATA).write_text(report.model_dump_json(indent=1))
    plot_candidates(report, staging / REPORT_CANDIDATES)
    plot_reliability(report, staging / REPORT_RELIABILITY)
