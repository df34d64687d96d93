"""How the runtimes of a text classifier are made, of one that is served by itself or as a level of a cascade."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from tidal.arlo.parameters import SLO_LATENCIES
from tidal.engines import EngineKind, PlanOptions
from tidal_builders.spec import check_plan_options
from tidal_builders.tolerances import DEFAULT_TOLERANCE, LEAST_AGREEMENT


class TensorRtOptions(PlanOptions):
    """How TensorRT plans are made and published."""

    native: bool = Field(
        False, description="publish a partitioned model's runtimes for Triton's own TensorRT backend (tensorrt_plan)"
    )


class RuntimeOptions(BaseModel):
    """Engine, shapes and placement of a text classifier's runtimes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    engine: EngineKind = Field("openvino", description="engine to compile for")
    device: Literal["auto", "cpu", "gpu"] = Field(
        "auto", description="where it runs; auto: on the GPU if the engine and this machine have one"
    )
    precision: Literal["fp32", "fp16", "bf16", "int8", "auto"] = Field(
        "fp32",
        description="arithmetic; of those whose answers stay inside the tolerance, auto takes the most precise one "
        "within 3 % of the fastest",
    )
    tolerance: float | None = Field(
        None,
        gt=0,
        description="largest accepted difference of any logit from the source model; default: "
        + ", ".join(f"{value:g} for {name}" for name, value in DEFAULT_TOLERANCE.items())
        + " (besides, "
        + ", ".join(f"{value:.0%} for {name}" for name, value in LEAST_AGREEMENT.items())
        + " of the samples must keep their label)",
    )
    lengths: tuple[int, ...] | Literal["auto"] = Field(
        "auto",
        description="input lengths in tokens, ascending, that runtimes are made for, the last is the longest input; "
        "auto measures latency over a fine grid and takes the ends of its steps",
    )
    form: Literal["auto", "static", "dynamic"] = Field(
        "auto", description="one runtime a length, padded to it; one for all lengths; or whichever measures faster"
    )
    placement: Literal["auto", "polymorphic", "partitioned"] = Field(
        "auto",
        description="where engines run: polymorphic, all runtimes in one process that gives every batch the whole "
        "machine; partitioned, each runtime in instances of its own; auto: partitioned for static runtimes on several "
        "GPUs",
    )
    slo_ms: float | None = Field(
        None,
        gt=0,
        le=3_600_000,
        allow_inf_nan=False,
        description="latency in milliseconds that a partitioned model is to keep; default: "
        f"{SLO_LATENCIES:g} times that of its longest runtime",
    )
    tensorrt: TensorRtOptions | None = Field(None, description="how plans are made, for engine tensorrt")
    max_batch: int = Field(16, ge=1, le=64, description="largest batch that is profiled and served")
    threads: int | None = Field(
        None,
        ge=1,
        description="threads an engine; default: engines of all cores, at most 4 each, and besides one engine a "
        "thread if that answers a crowd faster; the server chooses between the two by load",
    )
    contexts: int | None = Field(None, ge=1, description="engines at the same time; default: cores / threads")
    samples: Path | None = Field(
        None,
        description="text file, one text a line, to verify with (odd lines) and to calibrate int8 with (even lines); "
        "relative to the spec file; default: English text that the builder makes",
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
    def plan_options(self) -> TensorRtOptions:
        """How plans are made, where the engine needs any."""
        return self.tensorrt or TensorRtOptions()

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        if self.placement == "partitioned" and self.form == "dynamic":
            raise ValueError(
                "fields 'placement' and 'form': partitioned takes static runtimes, got form dynamic; accepted with "
                "partitioned are form static and auto"
            )
        if self.placement == "polymorphic" and self.slo_ms is not None:
            raise ValueError(
                "fields 'placement' and 'slo_ms': polymorphic has no SLO of its own, only the requests' latency_ms; "
                "accepted with slo_ms are placement partitioned and auto"
            )
        check_plan_options(self.engine, self.tensorrt)
        if self.plan_options.native and self.placement != "partitioned":
            raise ValueError(
                f"fields 'placement' and 'tensorrt': native takes placement partitioned, got {self.placement}"
            )
        return self
