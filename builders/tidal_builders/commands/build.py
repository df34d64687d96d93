"""`tidal build`: builds models from spec files and publishes them in a model repository."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.console import Console

from tidal.commands.output import table_console
from tidal.errors import InvalidArgument, TidalError, did_you_mean
from tidal.tabi.manifest import Target
from tidal_builders.kinds import kind_of
from tidal_builders.progress import clean_stdout, progress_bars
from tidal_builders.relearning import learn_lengths
from tidal_builders.report import BuildReport
from tidal_builders.spec import ModelSpec
from tidal_builders.specs import load_spec, spec_schema

DONE, STALE, BAD_INPUT, FAILED = 0, 1, 2, 3
# Text of the system's error for a full disk; libraries that write files put it into errors of their own.
_DISK_FULL = re.compile(r"No space left on device|Disk quota exceeded|File too large")


def build(
    specs: Annotated[
        list[Path] | None, typer.Argument(metavar="SPEC.yaml...", help="Spec files, one per model.", show_default=False)
    ] = None,
    repository: Annotated[Path, typer.Option(help="Model repository to publish into.")] = Path("model_repository"),
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Build only the spec of this name; may be repeated.", show_default=False),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Build nothing; exit 1 if a model is stale, and print why.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Build nothing; print what would be built and why.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Build again even if current.")] = False,
    target_accuracy: Annotated[
        float | None,
        typer.Option(metavar="SCORE", help="Cascades: minimum score (replaces the spec's target).", show_default=False),
    ] = None,
    target_accuracy_loss: Annotated[
        float | None,
        typer.Option(
            metavar="LOSS",
            help="Cascades: maximum loss of score against the most accurate level, with 95 % confidence (replaces the "
            "target).",
            show_default=False,
        ),
    ] = None,
    target_latency_ms: Annotated[
        float | None,
        typer.Option(metavar="MS", help="Cascades: maximum mean latency (replaces the target).", show_default=False),
    ] = None,
    escalation_rate: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Cascades: maximum share of queries that are escalated from the first level (replaces the target).",
            show_default=False,
        ),
    ] = None,
    target_p75_ms: Annotated[
        float | None,
        typer.Option(
            metavar="MS",
            help="Cascades: maximum 75th percentile of the latency, beside one of the targets.",
            show_default=False,
        ),
    ] = None,
    target_p99_ms: Annotated[
        float | None,
        typer.Option(
            metavar="MS",
            help="Cascades: maximum 99th percentile of the latency, beside one of the targets.",
            show_default=False,
        ),
    ] = None,
    relearn: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Text classifiers: choose lengths, form and precision for the queries that a server has received; may "
            "be repeated.",
            show_default=False,
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Metrics of the server for --relearn.  [default: the `tidal serve` of the repository]",
            show_default=False,
        ),
    ] = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of a spec and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")] = False,
) -> None:
    """Compile, verify, profile and publish models.

    A spec is a small YAML file:

    ```yaml
    kind: arlo              # a text classifier
    name: intents           # its name in the repository
    model: ./my-classifier  # a folder, or a Hugging Face id
    precision: auto         # fp32 (default), bf16, int8; auto: the most precise
                            # one within the tolerance and within 3 % of the
                            # fastest
    ```

    A cascade of classifiers, which answers easy queries with the small one:

    ```yaml
    kind: tabi
    name: reviews
    levels:                 # from the smallest to the largest
      - {name: small, model: ./distilbert-reviews}
      - {name: large, model: ./roberta-large-reviews}
    data: labelled.tsv      # columns text (and text_pair) and label
    target: {accuracy: 0.95}
    ```

    A frozen encoder for any number of fine-tuned tasks, which `tidal tasks` adds:

    ```yaml
    {kind: pets, name: base, model: ./bert-base}
    ```

    A vision transformer from timm that adds or merges tokens, for such tasks:

    ```yaml
    {kind: otas, name: vision, model: ./vit-small}
    ```

    A decoder, whose generations are batched in every decode step:

    ```yaml
    {kind: flover, name: writer, model: ./gpt2, max_concurrency: 16}
    ```

    `tidal build --schema` prints every field with its meaning and default.

    Each model is exported, compiled, verified on text against the unmodified source model, and profiled: its latency
    by length and batch size is measured on this machine. A model within its tolerance is published atomically as a
    new numbered version; the three newest versions are kept. `config.pbtxt` is written if it does not exist, and never
    changed afterwards.

    A second run builds nothing unless the spec, the source model's files, the builder's code, a library or the machine
    has changed. An interrupted build resumes at the stage where it stopped. A new target of a cascade is met without
    running its models again.

    Tables and JSON are printed to standard output, progress and errors to standard error.

    **Examples:**

    ```sh
    tidal build intents.yaml                 # build one model
    tidal build *.yaml --only intents        # one of many
    tidal build *.yaml --check               # is everything current?
    tidal build intents.yaml --dry-run       # what would be built, and why
    tidal build intents.yaml --json | jq .   # for another program
    tidal build reviews.yaml --target-accuracy 0.93  # another target
    tidal build intents.yaml --relearn intents       # for the lengths of received queries
    ```

    **Exit codes:**

    - `0` every model is current or was published; also `--dry-run` with stale models
    - `1` `--check` found a stale model
    - `2` wrong usage, or a spec that cannot be built
    - `3` a model missed its tolerance, or no candidate of a cascade meets its target, so that it was not published; or
      a build failed
    """
    if schema:
        print(json.dumps(spec_schema(), indent=2))
        raise typer.Exit(DONE)
    errors = Console(stderr=True, soft_wrap=True, highlight=False)
    try:
        chosen = _chosen(specs or [], only or [])
        targets = {
            "accuracy": target_accuracy,
            "accuracy_loss": target_accuracy_loss,
            "latency_ms": target_latency_ms,
            "escalation_rate": escalation_rate,
            "p75_ms": target_p75_ms,
            "p99_ms": target_p99_ms,
        }
        chosen = _with_target(chosen, {name: value for name, value in targets.items() if value is not None})
        learn_lengths(relearn or [], [spec for _, spec in chosen], repository, metrics)
    except TidalError as error:
        errors.print(f"error: {error}", style="red", markup=False)
        raise typer.Exit(BAD_INPUT if isinstance(error, InvalidArgument) else FAILED) from None
    reports: list[BuildReport] = []
    worst = DONE
    for path, spec in chosen:
        try:
            report = _plan(path, spec, repository, force) if check or dry_run else _build(path, spec, repository, force)
        except TidalError as error:
            errors.print(f"error: {spec.name}: {error}", style="red", markup=False)
            worst = max(worst, BAD_INPUT if isinstance(error, InvalidArgument) else FAILED)
            continue
        except Exception as error:
            if not _DISK_FULL.search(str(error)):
                raise
            errors.print(f"error: {spec.name}: the disk is full: {error}", style="red", markup=False)
            worst = FAILED
            continue
        reports.append(report)
        if report.outcome == "missed":
            worst = max(worst, FAILED)
        elif report.outcome == "stale" and check:
            worst = max(worst, STALE)
        if not as_json:
            _print(report)
    if as_json:
        print(json.dumps({"models": [report.model_dump(mode="json") for report in reports], "exit_code": worst}))
    raise typer.Exit(worst)


def _chosen(paths: list[Path], only: list[str]) -> list[tuple[Path, ModelSpec]]:
    if not paths:
        raise InvalidArgument("no spec file is given; run `tidal build SPEC.yaml`, or see `tidal build --help`")
    specs = [(path, load_spec(path)) for path in paths]
    first: dict[str, Path] = {}
    for path, spec in specs:
        for name in spec.models:
            if name in first:
                raise InvalidArgument(f"specs {first[name]} and {path} both build a model '{name}'; rename one")
            first[name] = path
    names = [spec.name for _, spec in specs]
    for name in only:
        if name not in names:
            raise InvalidArgument(f"--only {name}: no given spec has this name; {did_you_mean(name, names)}")
    return [(path, spec) for path, spec in specs if not only or spec.name in only]


def _with_target(chosen: list[tuple[Path, ModelSpec]], given: dict[str, float]) -> list[tuple[Path, ModelSpec]]:
    """The specs; cascades have the target of the command line, if one is given."""
    if not given:
        return chosen
    try:
        target = Target.model_validate(given)
    except ValidationError as error:
        problem = error.errors()[0]
        raise InvalidArgument(f"options --target-*: {problem['msg'].removeprefix('Value error, ')}") from None
    if not any(spec.has_target for _, spec in chosen):
        raise InvalidArgument("a target is given, but no spec is a cascade (kind: tabi)")
    return [(path, spec.model_copy(update={"target": target}) if spec.has_target else spec) for path, spec in chosen]


def _plan(path: Path, spec: ModelSpec, repository: Path, force: bool) -> BuildReport:
    kind = kind_of(spec)
    plan = kind.make_plan(spec, repository, path.parent)
    reasons = plan.reasons or (("forced",) if force else plan.missing)
    return kind.make_report(
        name=spec.name, outcome="stale" if reasons else "current", reasons=reasons, version=plan.version
    )


def _build(path: Path, spec: ModelSpec, repository: Path, force: bool) -> BuildReport:
    with progress_bars(spec.name) as progress, clean_stdout():
        return kind_of(spec).run(spec, repository, spec_file=path, force=force, progress=progress)


def _print(report: BuildReport) -> None:
    for part in report.parts():
        _print(part)
    console = table_console()
    for grid in report.tables():
        console.print(grid)
    for remark in report.remarks():
        console.print(f"{report.name}: {remark}", markup=False, highlight=False, soft_wrap=True)
    why = "; ".join(report.reasons)
    if report.outcome == "current":
        line = f"{report.name}: version {report.version} is current"
    elif report.outcome == "stale":
        line = f"{report.name}: stale: {why}"
    elif report.outcome == "missed":
        line = f"{report.name}: not published: {why}"
    else:
        reused = f", {len(report.reused)} finished stages reused" if report.reused else ""
        line = f"{report.name}: version {report.version} published in {report.seconds:.1f} s ({why}{reused})"
    console.print(line, markup=False, soft_wrap=True)
    for warning in report.warnings:
        console.print(f"warning: {report.name}: {warning}", style="yellow", markup=False, soft_wrap=True)
