"""The spec of a cascade: its levels, a labelled file, and the target that it must meet."""

from __future__ import annotations

import re
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tidal.errors import InvalidArgument
from tidal.tabi.manifest import Metric, Target
from tidal.tasks.names import check_task_name
from tidal_builders.arlo.runtime_options import RuntimeOptions
from tidal_builders.rows import Columns
from tidal_builders.spec import ModelSpec

_MODEL_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


class _Part(BaseModel):
    """A part of the spec: immutable, unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class LevelSpec(_Part):
    """One classifier of a cascade."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9_-]*$",
        description="short name; unless it is a task, the level becomes the Triton model <cascade>_<this name>",
    )
    model: str = Field(
        min_length=1,
        description="Hugging Face id, or a folder in its format: absolute, or relative to the spec file "
        "(begin it with ./ or ../ to get an error if it is missing); with a task, the name of the pets model that has "
        "it, in the repository",
    )
    task: str | None = Field(
        None, min_length=1, description="task of a pets model to use as the level; other tasks share its base"
    )
    revision: str | None = Field(None, description="branch, tag or commit of a Hugging Face id")
    labels: tuple[str, ...] | None = Field(
        None, min_length=1, description="names of the model's classes in its own order; default: the model's own names"
    )
    runtimes: RuntimeOptions | None = Field(
        None, description="options of this level's runtimes; each replaces the option for all levels"
    )

    @model_validator(mode="after")
    def _shared(self) -> LevelSpec:
        if self.task is None:
            return self
        for name in ("revision", "runtimes"):
            if getattr(self, name) is not None:
                raise ValueError(f"fields 'task' and '{name}': got both; a task runs as its pets model does")
        if not _MODEL_NAME.fullmatch(self.model):
            raise ValueError(f"fields 'task' and 'model': expected the name of a pets model, got '{self.model}'")
        try:
            check_task_name(self.task)
        except InvalidArgument as error:
            raise ValueError(f"field 'task': {error}") from None
        return self


class Parts(_Part):
    """Shares of the labelled queries."""

    calibration: float = Field(0.25, gt=0, lt=1, description="share used for temperatures and tuned weights")
    selection: float = Field(0.25, gt=0, lt=1, description="share used for thresholds and the choice of a candidate")
    report: float = Field(0.5, gt=0, lt=1, description="share used for the reported values only")

    @model_validator(mode="after")
    def _whole(self) -> Parts:
        if abs(sum(self.shares) - 1) > 1e-6:
            raise ValueError(f"expected shares that sum to 1, got a sum of {sum(self.shares):g}")
        return self

    @property
    def shares(self) -> tuple[float, float, float]:
        """The three shares, in the order of `Data.part`."""
        return self.calibration, self.selection, self.report


class TabiSpec(ModelSpec):
    """A cascade of classifiers, served by the `tabi` backend over levels on the `arlo` backend, or tasks on `pets`."""

    model_config = ConfigDict(title="tabi")

    has_target: ClassVar[bool] = True

    kind: Literal["tabi"]
    task: Literal["auto", "rerank"] = Field(
        "auto",
        description="what the cascade answers with; rerank: the probability that the second text of a pair is relevant "
        "to the first, from rerankers and data that is labelled 0 or 1; auto: labels, or the values of regressions",
    )
    levels: tuple[LevelSpec, ...] = Field(
        min_length=2,
        description="classifiers from the smallest to the largest; all but the last output the attention that word "
        "pruning uses; they are called in the order of their scores",
    )
    data: Path = Field(
        description="labelled file, relative to the spec file: .tsv (unquoted), .csv or .jsonl, each also .gz; the "
        "first line of a .tsv or .csv names the columns"
    )
    columns: Columns = Field(Columns(), description="names of the columns")
    labels: tuple[str, ...] | None = Field(
        None,
        min_length=2,
        description="label names in the order of the cascade's probabilities; they also name the labels of models that "
        "only number them (LABEL_0 …); default: those of the first level",
    )
    target: Target = Field(
        Target(accuracy_loss=0.01),
        description="target to meet on the selection part: exactly one of accuracy, accuracy_loss, latency_ms and "
        "escalation_rate, and limits of the latency's percentiles beside it",
    )
    metric: Metric | None = Field(
        None,
        description="metric of the scores: accuracy; for regressions pearson (default), spearman or r2",
    )
    tolerance: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="regressions: maximum error of a correct answer; default: half the standard deviation of the "
        "labels outside the report part",
    )
    latencies: Literal["served", "engines"] = Field(
        "served",
        description="latencies of candidates; served: from the client's request to the response, measured through a "
        "tritonserver that the build starts for some seconds; engines: the time of the engines only",
    )
    early_router: bool = Field(
        False,
        description="whether to fit a router that reads a query's words before any level runs, and to try candidates "
        "of two levels in which it sends difficult queries to the last level at once; not for regressions",
    )
    parts: Parts = Field(Parts(), description="shares of the labelled queries; equal texts are in the same part")
    runtimes: RuntimeOptions = Field(RuntimeOptions(), description="options of all levels' runtimes")

    @model_validator(mode="after")
    def _fitting(self) -> TabiSpec:
        names = [level.name for level in self.levels]
        if len(set(names)) != len(names):
            raise ValueError(f"field 'levels': names must differ, got {', '.join(names)}")
        if self.labels is not None and len(set(self.labels)) != len(self.labels):
            raise ValueError(f"field 'labels': names must differ, got {', '.join(self.labels)}")
        for level in self.levels:
            try:
                self.runtimes_of(level)
            except ValidationError as error:
                problems = "; ".join(problem["msg"].removeprefix("Value error, ") for problem in error.errors())
                raise ValueError(
                    f"field 'runtimes' of level '{level.name}', with that of all levels: {problems}"
                ) from None
        return self

    def runtimes_of(self, level: LevelSpec) -> RuntimeOptions:
        """A level's options: its own, else those of all levels.

        Raises:
            ValidationError: the two do not fit together.
        """
        own = level.runtimes or RuntimeOptions()
        given = self.runtimes.model_dump(exclude_unset=True) | own.model_dump(exclude_unset=True)
        return RuntimeOptions.model_validate(given)

    def model_of(self, level: LevelSpec) -> str:
        """The Triton model that serves a level."""
        return f"{self.name}_{level.name}" if level.task is None else level.model

    @property
    def models(self) -> tuple[str, ...]:
        """All Triton models that a build publishes, the cascade's own first."""
        return (self.name, *(self.model_of(level) for level in self.levels if level.task is None))
