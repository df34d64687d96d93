"""The part of a cascade's build that runs models: answers are collected, then candidates searched, each once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from pydantic import BaseModel

from tidal.tabi.manifest import Metric, ServingOverhead, Target
from tidal_builders.tabi.bench import ascending
from tidal_builders.tabi.collect import Runner, Texts, collect
from tidal_builders.tabi.data import Queries
from tidal_builders.tabi.optimism import optimism_warning
from tidal_builders.tabi.outputs import REPORT, SELECTION, LevelFacts, LevelOutputs
from tidal_builders.tabi.plan import CascadePlan
from tidal_builders.tabi.report import LevelReport, SearchReport
from tidal_builders.tabi.search import SearchResult, search
from tidal_builders.tabi.spec import Parts, TabiSpec
from tidal_builders.tabi.versions import LevelVersion
from tidal_builders.workspace import Workspace

Report = Callable[[str, float], None]
_PREFIX = "search-"


class Searched(BaseModel):
    """What a search found, and on what.

    Attributes:
        result: levels and candidates.
        rows: queries by part.
        pairs: whether they are pairs of texts.
        serving: what serving adds to the engines' time; None where the latencies are the engines' alone.
        warnings: what the measurement warns of.
    """

    result: SearchResult
    rows: dict[str, int]
    pairs: bool
    serving: ServingOverhead | None = None
    warnings: tuple[str, ...] = ()


def searched(
    spec: TabiSpec,
    plan: CascadePlan,
    queries: Queries,
    versions: Sequence[LevelVersion],
    work: Workspace,
    report: Report,
) -> Searched:
    """Candidates of a cascade. They do not depend on the target, so another target finds them in the workspace.

    Args:
        spec: of the cascade.
        plan: of the cascade, with all levels built.
        queries: as `read_queries` gives them.
        versions: the levels' published versions, in the order of the spec.
        work: of the cascade.
        report: told the stages and their shares.
    """
    name = f"{_PREFIX}{plan.search_key[:16]}"
    return work.record(name, Searched, lambda: _search(spec, plan, queries, versions, work, report))


def retain_current(plan: CascadePlan, keys: Sequence[str], work: Workspace) -> None:
    """Remove what no build of the cascade as it is now would read again."""
    work.retain([f"{_PREFIX}{plan.search_key[:16]}", *keys])


def _search(
    spec: TabiSpec,
    plan: CascadePlan,
    queries: Queries,
    versions: Sequence[LevelVersion],
    work: Workspace,
    report: Report,
) -> Searched:
    data, regression = queries.data, plan.agreement.task == "regression"
    runners = [
        Runner(level.name, version.folder, order, work, task=level.task)
        for level, version, order in zip(spec.levels, versions, plan.agreement.orders, strict=True)
    ]
    outputs = collect(runners, data.texts, lambda share: report("run the levels", share))

    def rerun(level: int, texts: Texts) -> LevelOutputs:
        runner = runners[level]
        return runner.run(runner.read(texts), lambda share: report(f"run {runner.name} on shortened queries", share))

    facts = [LevelFacts(runner.name, each, runner.tokenizer) for runner, each in zip(runners, outputs, strict=True)]
    serving, warnings = _serving(spec, plan, queries, versions, runners, facts, report)
    scales = [1.0 if serving is None else serving.engine_scale[each.name] for each in facts]
    found = search(
        data,
        [
            LevelFacts(each.name, each.outputs.slowed(scale), each.tokenizer)
            for each, scale in zip(facts, scales, strict=True)
        ],
        lambda level, texts: rerun(level, texts).slowed(scales[level]),
        metric=plan.metric,
        tolerance=(spec.tolerance or float(data.truth[data.part != REPORT].std()) / 2) if regression else None,
        serving=serving,
        progress=lambda share: report("search candidates", share),
    )
    counts = np.bincount(data.part, minlength=3).tolist()
    rows = dict(zip(Parts.model_fields, counts, strict=True))
    return Searched(result=found, rows=rows, pairs=queries.pairs, serving=serving, warnings=warnings)


def _serving(
    spec: TabiSpec,
    plan: CascadePlan,
    queries: Queries,
    versions: Sequence[LevelVersion],
    runners: Sequence[Runner],
    facts: Sequence[LevelFacts],
    report: Report,
) -> tuple[ServingOverhead | None, tuple[str, ...]]:
    """What serving adds to the engines' time, and a warning where it cannot be measured."""
    if spec.latencies == "engines":
        return None, ()
    from tidal_builders.tabi.overhead import disturbance_warning, overhead
    from tidal_builders.tabi.serving import CannotServe, ProbedLevel, measure_serving

    data, orders, order = queries.data, plan.agreement.orders, ascending(queries.data, facts, plan.metric)
    levels = [
        ProbedLevel(facts[index].name, versions[index], orders[index], _timing(runners[index], data.texts))
        for index in order
    ]
    try:
        times = measure_serving(
            levels,
            data.texts,
            np.flatnonzero(data.part == SELECTION),
            task=plan.agreement.task,
            labels=plan.agreement.labels,
            progress=lambda share: report("measure through a server", share),
        )
    except CannotServe as error:
        return None, (
            f"latencies are of the engines alone, without what a server adds: {error}. The chosen candidate may be "
            "slower than another one that meets the target: build where a tritonserver runs, or set "
            "'latencies: engines' in the spec to accept it",
        )
    names, collected = [level.name for level in levels], [facts[index].outputs.latency_ms for index in order]
    disturbance = disturbance_warning(names, times, collected)
    return overhead(names, times, collected), () if disturbance is None else (disturbance,)


def _timing(runner: Runner, texts: Texts) -> Callable[[int], float]:
    """Runs a level's engine on one of the texts, for the milliseconds that it takes."""

    def run(row: int) -> float:
        return runner.time(runner.read([texts[row]])[0])

    return run


def report_of(
    searched: Searched, names: Sequence[str], metric: Metric, target: Target, chosen: int | None
) -> SearchReport:
    """The report of a search.

    Args:
        searched: what it found.
        names: of the levels in the order that they were given to it.
        metric: that it was for.
        target: that the choice was for.
        chosen: index of the chosen candidate; None where none meets the target.
    """
    result = searched.result
    levels = tuple(
        LevelReport(
            name=names[each.index],
            score=each.score,
            latency=each.latency,
            calibration=each.calibrated.calibration,
            reliability_before=each.calibrated.before,
            reliability_after=each.calibrated.after,
        )
        for each in result.levels
    )
    warnings = searched.warnings
    if chosen is not None:
        optimism = optimism_warning(
            metric, result.tried + len(levels), searched.rows["selection"], result.candidates[chosen]
        )
        warnings += () if optimism is None else (optimism,)
    return SearchReport(
        metric=metric,
        target=target,
        rows=searched.rows,
        levels=levels,
        candidates=result.candidates,
        chosen=chosen,
        tried=result.tried,
        too_slow=result.too_slow,
        serving=searched.serving,
        warnings=warnings,
    )
