"""What a base for fine-tuned tasks is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import ConfigDict, Field, model_validator

from tidal.engines import PlanOptions
from tidal.pets.opening import PetsEngineKind
from tidal_builders.spec import ModelSpec, check_plan_options
from tidal_builders.tolerances import DEFAULT_TOLERANCE


class PetsPlanOptions(PlanOptions):
    """What tasks a TensorRT plan is made for, and how."""

    rank: int = Field(16, ge=1, le=1024, description="largest rank of a low-rank difference")
    bottleneck: int = Field(64, ge=1, le=4096, description="largest width of an adapter's bottleneck")
    tasks: int = Field(64, ge=1, le=100_000, description="tasks that the banks have room for on the GPU")


class PetsSpec(ModelSpec):
    """A frozen encoder that fine-tuned tasks share, served by the `pets` backend."""

    model_config = ConfigDict(title="pets")

    kind: Literal["pets"]
    model: str = Field(
        min_length=1,
        description="the encoder that the tasks were fine-tuned from: a Hugging Face id, or a folder in its format: "
        "absolute, or relative to the spec file (begin it with ./ or ../ to be told when it is missing)",
    )
    revision: str | None = Field(None, description="branch, tag or commit of a Hugging Face id")
    max_length: int | None = Field(
        None, ge=8, description="longest input in tokens that is profiled and served; default: the model's own limit"
    )
    max_batch: int = Field(64, ge=1, le=1024, description="largest batch of short queries that is profiled and served")
    max_tokens: int = Field(
        2048, ge=8, description="tokens of the largest batch that is profiled and served, padding included"
    )
    engine: PetsEngineKind = Field(
        "openvino", description="engine to run it with; tensorrt serves the dense kinds alone: adapter, bitfit and lora"
    )
    device: Literal["auto", "cpu", "gpu"] = Field(
        "auto", description="where it runs; auto: on the GPU if the engine and this machine have one"
    )
    precision: Literal["fp32", "bf16"] = Field(
        "fp32", description="arithmetic of the shared products; bf16 with engine openvino, on processors that have it"
    )
    threads: int | None = Field(None, ge=1, description="CPU threads; default: all cores")
    profile_seconds: float = Field(
        60.0, gt=0, le=3600, description="seconds after which no third round of measuring begins; two are always made"
    )
    tolerance: float | None = Field(
        None,
        gt=0,
        description="largest accepted difference of any component of the pooled vector from the source model's; "
        f"default: {DEFAULT_TOLERANCE['fp32']:g}, for bf16 {DEFAULT_TOLERANCE['bf16']:g}",
    )
    tensorrt: PetsPlanOptions | None = Field(None, description="of the plan, for engine tensorrt")
    samples: Path | None = Field(
        None,
        description="text file, one text a line, to verify with; relative to the spec file; default: English text that "
        "the builder makes",
    )
    attention_received: bool = Field(
        False,
        description="also give for every token the attention that it receives, summed over queries, heads and layers, "
        "which a cascade reads to prune words; with engine openvino",
    )
    truncate: bool = Field(False, description="serve a longer text cut to the limit instead of refusing it")

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        check_plan_options(self.engine, self.tensorrt)
        if self.precision == "bf16" and self.engine != "openvino":
            raise ValueError(f"fields 'engine' and 'precision': bf16 goes with engine openvino, got {self.engine}")
        if self.attention_received and self.engine != "openvino":
            raise ValueError(
                f"fields 'engine' and 'attention_received': attention goes with engine openvino, got {self.engine}"
            )
        return self
