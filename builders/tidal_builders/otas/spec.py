"""The spec of a vision transformer that adapts its number of tokens."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from tidal.engines import EngineKind, PlanOptions
from tidal_builders.spec import ModelSpec, check_plan_options
from tidal_builders.tolerances import DEFAULT_TOLERANCE


class OtasSpec(ModelSpec):
    """A frozen vision transformer, served by the `otas` backend, which chooses the number of tokens for every batch."""

    model_config = ConfigDict(title="otas")

    kind: Literal["otas"]
    model: str = Field(
        min_length=1,
        description="timm vision transformer (vit_*): a Hugging Face id such as timm/vit_small_patch16_224."
        "augreg_in21k, or a folder in timm's format: absolute, or relative to the spec file (begin it with ./ or ../ "
        "to get an error if the folder is missing)",
    )
    revision: str | None = Field(None, description="branch, tag or commit of a Hugging Face id")
    gammas: tuple[int, ...] | None = Field(
        None,
        min_length=1,
        description="changes of the number of tokens per layer: above 0, prompts are added; below 0, tokens are "
        "merged; 0 is required; default: -20, -15, -10, -5, 0, 2, 4, 8 scaled to the model's tokens and layers",
    )
    prompts: Literal["replaced", "accumulated"] = Field(
        "replaced", description="whether a layer's prompts replace those of the previous layer or are added to them"
    )
    max_batch: int = Field(
        64, ge=1, le=1024, description="maximum number of images per batch that is profiled and served"
    )
    static_batches: tuple[int, ...] = Field(
        (1, 8),
        description="batch sizes to try static engines for, where γ is 0 or below; each costs a copy of the weights "
        "and is kept only if it is faster; empty: one engine for all sizes",
    )
    engine: EngineKind = Field("openvino", description="engine to compile for")
    device: Literal["auto", "cpu", "gpu"] = Field(
        "auto", description="device to run on; auto: a GPU if the engine supports it and this machine has one"
    )
    tensorrt: PlanOptions | None = Field(None, description="options of plans, for engine tensorrt")
    threads: int | None = Field(None, ge=1, description="CPU threads; default: all cores")
    profile_seconds: float = Field(
        120.0, gt=0, le=3600, description="seconds after which no further profiling round starts; two are always made"
    )
    tolerance: float = Field(
        DEFAULT_TOLERANCE["fp32"],
        gt=0,
        description="maximum difference of any component of the features from the source model's",
    )

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        check_plan_options(self.engine, self.tensorrt)
        return self

    @field_validator("static_batches")
    @classmethod
    def _ascending(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if value and (list(value) != sorted(set(value)) or value[0] != 1):
            raise ValueError(f"expected ascending sizes that begin with 1, or none, got {list(value)}")
        return value
