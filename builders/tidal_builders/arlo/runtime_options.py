"""Options for the runtimes of a text classifier that is served alone or as a level of a cascade."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from tidal.arlo.parameters import SLO_LATENCIES
from tidal.engines import EngineKind, PlanOptions
from tidal_builders.arlo.runtime_lengths import MAX_RUNTIMES
from tidal_builders.spec import check_plan_options
from tidal_builders.tolerances import DEFAULT_TOLERANCE, LEAST_AGREEMENT, VECTOR_AGREEMENT, VECTOR_TOLERANCE


def _by_precision(values: Mapping[str, float], form: str = "g") -> str:
    return ", ".join(f"{value:{form}} for {name}" for name, value in values.items())


class TensorRtOptions(PlanOptions):
    """Options of TensorRT plans."""

    native: bool = Field(
        False, description="publish a partitioned model's runtimes for Triton's own TensorRT backend (tensorrt_plan)"
    )


class RuntimeOptions(BaseModel):
    """Engine, shapes and placement of a text classifier's runtimes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    engine: EngineKind = Field("openvino", description="engine to compile for")
    device: Literal["auto", "cpu", "gpu"] = Field(
        "auto", description="device to run on; auto: a GPU if the engine supports it and this machine has one"
    )
    precision: Literal["fp32", "fp16", "bf16", "int8", "auto"] = Field(
        "fp32",
        description="arithmetic; auto: the most precise one within the tolerance and within 3 % of the fastest",
    )
    tolerance: float | None = Field(
        None,
        gt=0,
        description="maximum difference of any logit from the source model, or of 1 - cosine for embeddings; "
        f"default: {_by_precision(DEFAULT_TOLERANCE)}; for embeddings {_by_precision(VECTOR_TOLERANCE)} (in addition, "
        f"a minimum share of the samples must keep their label: {_by_precision(LEAST_AGREEMENT, '.0%')}; of "
        "embeddings, a minimum rank correlation of the similarities: "
        f"{_by_precision(VECTOR_AGREEMENT)})",
    )
    lengths: tuple[int, ...] | Literal["auto"] = Field(
        "auto",
        description="input lengths of the runtimes in tokens, ascending; the last is the longest input; auto: up to "
        f"{MAX_RUNTIMES} with the least mean latency, measured over a fine grid of lengths, for the expected lengths",
    )
    lengths_like: Literal["short", "even"] | Path | None = Field(
        None,
        description="expected input lengths, for which auto chooses lengths, form and precision; a text file, one text "
        "per line, relative to the spec file: those of its texts; short: those of short messages, 24 tokens in the "
        "median; even: all equally often; default: those that `tidal build --relearn` has read from a server, else "
        "those of the texts of samples, or short without them",
    )
    form: Literal["auto", "static", "dynamic"] = Field(
        "auto",
        description="static: one runtime per length, inputs padded to it; dynamic: one for all; auto: the faster; with "
        "lengths auto also static ones for short inputs beside a dynamic one for longer inputs",
    )
    placement: Literal["auto", "polymorphic", "partitioned"] = Field(
        "auto",
        description="polymorphic: all runtimes share one process and all of the machine; partitioned: each runtime has "
        "instances of its own; auto: partitioned for static runtimes on several GPUs, else polymorphic",
    )
    slo_ms: float | None = Field(
        None,
        gt=0,
        le=3_600_000,
        allow_inf_nan=False,
        description="latency objective of a partitioned model in milliseconds; default: "
        f"{SLO_LATENCIES:g} times the latency of its longest runtime",
    )
    tensorrt: TensorRtOptions | None = Field(None, description="options of plans, for engine tensorrt")
    max_batch: int = Field(16, ge=1, le=64, description="maximum batch size that is profiled and served")
    threads: int | None = Field(
        None,
        ge=1,
        description="CPU threads per engine; default: up to 4 on all cores, and in addition one single-threaded engine "
        "per core if that has more throughput; the server chooses between the two by load",
    )
    contexts: int | None = Field(None, ge=1, description="number of concurrent engines; default: cores / threads")
    samples: Path | None = Field(
        None,
        description="text file, one text per line, for verification (odd lines) and int8 calibration (even lines); "
        "relative to the spec file; default: generated English text",
    )

    @field_validator("lengths")
    @classmethod
    def _ascending(cls, value: tuple[int, ...] | str) -> tuple[int, ...] | str:
        if isinstance(value, tuple) and (
            not value or value[0] < 1 or any(b <= a for a, b in itertools.pairwise(value))
        ):
            raise ValueError(f"expected positive, ascending lengths or 'auto', got {list(value)}")
        return value

    @property
    def chooses_by_length(self) -> bool:
        """Whether the build chooses something by the expected lengths."""
        return "auto" in (self.lengths, self.form, self.precision)

    @property
    def plan_options(self) -> TensorRtOptions:
        """Options of plans, with defaults: processes of their own cannot share a plan's weights."""
        options = self.tensorrt or TensorRtOptions()
        if self.placement == "partitioned" and "plans" not in options.model_fields_set:
            return options.model_copy(update={"plans": "separate"})
        return options

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        if self.placement == "partitioned" and self.form == "dynamic":
            raise ValueError(
                "fields 'placement' and 'form': partitioned requires static runtimes, got form dynamic; set form "
                "static or auto"
            )
        if self.placement == "polymorphic" and self.slo_ms is not None:
            raise ValueError(
                "fields 'placement' and 'slo_ms': polymorphic has no SLO, only the requests' latency_ms; remove slo_ms "
                "or set placement partitioned or auto"
            )
        check_plan_options(self.engine, self.tensorrt)
        if self.plan_options.native and self.placement != "partitioned":
            raise ValueError(
                f"fields 'placement' and 'tensorrt': native requires placement partitioned, got {self.placement}"
            )
        return self
