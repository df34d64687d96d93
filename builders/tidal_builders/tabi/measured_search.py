"""The part of a cascade's build that runs models: collects the levels' answers, then searches candidates, each once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from pydantic import BaseModel

from tidal.tabi.manifest import Metric, Target
from tidal.tabi.serving_overhead import ServingOverhead
from tidal_builders.tabi.collect import LevelRunner, Texts, collect
from tidal_builders.tabi.combinations import ascending
from tidal_builders.tabi.data import REPORT, SELECTION, CollectedLevel, LabelledQueries, LevelOutputs
from tidal_builders.tabi.optimism import optimism_warning
from tidal_builders.tabi.plan import CascadePlan
from tidal_builders.tabi.search import SearchResult, search
from tidal_builders.tabi.search_report import LevelReport, SearchReport
from tidal_builders.tabi.spec import Parts, TabiSpec
from tidal_builders.tabi.versions import LevelVersion
from tidal_builders.workspace import Workspace

Report = Callable[[str, float], None]
_PREFIX = "search-"


class CascadeSearch(BaseModel):
    """The result of a search, with the data it is from.

    Attributes:
        result: Levels and candidates.
        rows: Number of queries by part.
        pairs: Whether the queries are pairs of texts.
        serving: Time that serving adds to the engines; None if the latencies are of the engines alone.
        warnings: Warnings of the measurement.
    """

    result: SearchResult
    rows: dict[str, int]
    pairs: bool
    serving: ServingOverhead | None = None
    warnings: tuple[str, ...] = ()


def search_cascade(
    spec: TabiSpec,
    plan: CascadePlan,
    queries: LabelledQueries,
    versions: Sequence[LevelVersion],
    work: Workspace,
    report: Report,
) -> CascadeSearch:
    """Search the candidates of a cascade, or load them from the workspace: they do not depend on the target.

    Args:
        spec: Spec of the cascade.
        plan: Plan of the cascade, with all levels built.
        queries: Labelled queries.
        versions: Published versions of the levels, in the order of the spec.
        work: Workspace of the cascade.
        report: Receives the name and the completed share of each stage.
    """
    name = f"{_PREFIX}{plan.search_key[:16]}"
    return work.record(name, CascadeSearch, lambda: _search(spec, plan, queries, versions, work, report))


def retain_current(plan: CascadePlan, keys: Sequence[str], work: Workspace) -> None:
    """Remove the stages that no build of the cascade in its current state would use again.

    Args:
        plan: Plan of the cascade.
        keys: Keys of the levels' answers to keep.
        work: Workspace of the cascade.
    """
    work.retain([f"{_PREFIX}{plan.search_key[:16]}", *keys])


def _search(
    spec: TabiSpec,
    plan: CascadePlan,
    queries: LabelledQueries,
    versions: Sequence[LevelVersion],
    work: Workspace,
    report: Report,
) -> CascadeSearch:
    data, regression = queries.data, plan.agreement.task == "regression"
    runners = [
        LevelRunner(level.name, version.folder, order, work, task=level.task, reranks=plan.agreement.task == "rerank")
        for level, version, order in zip(spec.levels, versions, plan.agreement.orders, strict=True)
    ]
    outputs = collect(runners, data.texts, lambda share: report("run the levels", share))

    def rerun(level: int, texts: Texts) -> LevelOutputs:
        runner = runners[level]
        return runner.run(runner.encode(texts), lambda share: report(f"run {runner.name} on pruned queries", share))

    facts = [CollectedLevel(runner.name, each, runner.tokenizer) for runner, each in zip(runners, outputs, strict=True)]
    serving, warnings = _serving(spec, plan, queries, versions, runners, facts, report)
    scales = [1.0 if serving is None else serving.engine_scale[each.name] for each in facts]
    found = search(
        data,
        [
            CollectedLevel(each.name, each.outputs.slowed(scale), each.tokenizer)
            for each, scale in zip(facts, scales, strict=True)
        ],
        lambda level, texts: rerun(level, texts).slowed(scales[level]),
        metric=plan.metric,
        tolerance=(spec.tolerance or float(data.truth[data.part != REPORT].std()) / 2) if regression else None,
        serving=serving,
        early_router=spec.early_router,
        progress=lambda share: report("search candidates", share),
    )
    counts = np.bincount(data.part, minlength=3).tolist()
    rows = dict(zip(Parts.model_fields, counts, strict=True))
    return CascadeSearch(result=found, rows=rows, pairs=queries.pairs, serving=serving, warnings=warnings)


def _serving(
    spec: TabiSpec,
    plan: CascadePlan,
    queries: LabelledQueries,
    versions: Sequence[LevelVersion],
    runners: Sequence[LevelRunner],
    facts: Sequence[CollectedLevel],
    report: Report,
) -> tuple[ServingOverhead | None, tuple[str, ...]]:
    """Measure the time that serving adds to the engines; with a warning if it cannot be measured."""
    if spec.latencies == "engines":
        return None, ()
    from tidal_builders.tabi.overhead import disturbance_warning, overhead
    from tidal_builders.tabi.served_latency import ProbedLevel, ServingUnavailable, measure_serving

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
    except ServingUnavailable as error:
        return None, (
            f"latencies are of the engines alone, without the time that a server adds: {error}. The chosen candidate "
            "may be slower than another one that meets the target: build where tritonserver runs, or set "
            "'latencies: engines' in the spec to accept it",
        )
    names, collected = [level.name for level in levels], [facts[index].outputs.latency_ms for index in order]
    disturbance = disturbance_warning(names, times, collected)
    return overhead(names, times, collected), () if disturbance is None else (disturbance,)


def _timing(runner: LevelRunner, texts: Texts) -> Callable[[int], float]:
    """Return a function that runs a level's engine on one of the texts and returns its milliseconds."""

    def run(row: int) -> float:
        return runner.time(runner.encode([texts[row]])[0])

    return run


def search_report(
    search: CascadeSearch, names: Sequence[str], metric: Metric, target: Target, chosen: int | None
) -> SearchReport:
    """Return the report of a search.

    Args:
        search: Result of the search.
        names: Names of the levels, in the order of the spec.
        metric: Metric of the scores.
        target: Target of the choice.
        chosen: Index of the chosen candidate; None if none meets the target.
    """
    result = search.result
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
    warnings = search.warnings
    # A bound that holds for all candidates together is not too optimistic.
    if chosen is not None and target.accuracy_loss is None:
        optimism = optimism_warning(metric, len(result.candidates), search.rows["selection"], result.candidates[chosen])
        warnings += () if optimism is None else (optimism,)
    return SearchReport(
        metric=metric,
        target=target,
        rows=search.rows,
        levels=levels,
        candidates=result.candidates,
        chosen=chosen,
        tried=result.tried,
        too_slow=result.too_slow,
        serving=search.serving,
        warnings=warnings,
    )
