"""The part of a cascade's build that runs models: answers are collected, then candidates searched, each once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from pydantic import BaseModel

from tidal_builders.tabi.collect import Runner, Texts, collect
from tidal_builders.tabi.data import Queries
from tidal_builders.tabi.outputs import REPORT, LevelFacts, LevelOutputs
from tidal_builders.tabi.plan import CascadePlan
from tidal_builders.tabi.search import SearchResult, search
from tidal_builders.tabi.spec import Parts, TabiSpec
from tidal_builders.workspace import Workspace

Report = Callable[[str, float], None]
_PREFIX = "search-"


class Searched(BaseModel):
    """What a search found, and on what.

    Attributes:
        result: levels and candidates.
        rows: queries by part.
        pairs: whether they are pairs of texts.
    """

    result: SearchResult
    rows: dict[str, int]
    pairs: bool


def searched(
    spec: TabiSpec, plan: CascadePlan, queries: Queries, folders: Sequence[Path], work: Workspace, report: Report
) -> Searched:
    """Candidates of a cascade. They do not depend on the target, so another target finds them in the workspace.

    Args:
        spec: of the cascade.
        plan: of the cascade, with all levels built.
        queries: as `read_queries` gives them.
        folders: the levels' published versions, in the order of the spec.
        work: of the cascade.
        report: told the stages and their shares.
    """
    name = f"{_PREFIX}{plan.search_key[:16]}"
    return work.record(name, Searched, lambda: _search(spec, plan, queries, folders, work, report))


def retain_current(plan: CascadePlan, keys: Sequence[str], work: Workspace) -> None:
    """Remove what no build of the cascade as it is now would read again."""
    work.retain([f"{_PREFIX}{plan.search_key[:16]}", *keys])


def _search(
    spec: TabiSpec, plan: CascadePlan, queries: Queries, folders: Sequence[Path], work: Workspace, report: Report
) -> Searched:
    data, regression = queries.data, plan.agreement.task == "regression"
    runners = [
        Runner(level.name, folder, order, work, task=level.task)
        for level, folder, order in zip(spec.levels, folders, plan.agreement.orders, strict=True)
    ]
    outputs = collect(runners, data.texts, lambda share: report("run the levels", share))

    def rerun(level: int, texts: Texts) -> LevelOutputs:
        runner = runners[level]
        return runner.run(runner.read(texts), lambda share: report(f"run {runner.name} on shortened queries", share))

    found = search(
        data,
        [LevelFacts(runner.name, each, runner.tokenizer) for runner, each in zip(runners, outputs, strict=True)],
        rerun,
        metric=plan.metric,
        tolerance=(spec.tolerance or float(data.truth[data.part != REPORT].std()) / 2) if regression else None,
        progress=lambda share: report("search candidates", share),
    )
    counts = np.bincount(data.part, minlength=3).tolist()
    return Searched(result=found, rows=dict(zip(Parts.model_fields, counts, strict=True)), pairs=queries.pairs)
