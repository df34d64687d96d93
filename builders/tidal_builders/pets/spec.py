"""The spec of a base for fine-tuned tasks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, Self

from pydantic import ConfigDict, Field, model_validator

from tidal.engines import PlanOptions
from tidal.pets.engine.contract import PetsPrecision
from tidal.pets.opening import PETS_ENGINES, PetsEngineEntry, PetsEngineKind
from tidal_builders.long_texts import LongTextOptions
from tidal_builders.spec import ModelSpec, check_plan_options
from tidal_builders.tolerances import DEFAULT_TOLERANCE


class PetsPlanOptions(PlanOptions):
    """Options of the TensorRT plan, and the tasks that it has capacity for."""

    rank: int = Field(16, ge=1, le=1024, description="maximum rank of a low-rank difference")
    bottleneck: int = Field(64, ge=1, le=4096, description="maximum width of an adapter's bottleneck")
    tasks: int = Field(64, ge=1, le=100_000, description="number of tasks that fit into GPU memory")


class PetsSpec(LongTextOptions, ModelSpec):
    """A frozen encoder that fine-tuned tasks share, served by the `pets` backend."""

    model_config = ConfigDict(title="pets")

    kind: Literal["pets"]
    model: str = Field(
        min_length=1,
        description="encoder that the tasks were fine-tuned from: a Hugging Face id, or a folder in its format: "
        "absolute, or relative to the spec file (begin it with ./ or ../ to get an error if the folder is missing)",
    )
    revision: str | None = Field(None, description="branch, tag or commit of a Hugging Face id")
    max_length: int | None = Field(
        None, ge=8, description="maximum input length in tokens that is profiled and served; default: the model's own"
    )
    max_batch: int = Field(
        64, ge=1, le=1024, description="maximum batch size of short queries that is profiled and served"
    )
    max_tokens: int = Field(
        2048, ge=8, description="maximum number of tokens per batch that is profiled and served, with padding"
    )
    engine: PetsEngineKind = Field(
        "openvino", description="engine to run on; tensorrt serves only the dense kinds: adapter, bitfit and lora"
    )
    device: Literal["auto", "cpu", "gpu"] = Field(
        "auto", description="device to run on; auto: a GPU if the engine supports it and this machine has one"
    )
    precision: PetsPrecision = Field(
        "fp32", description="arithmetic of the shared products; bf16: engine openvino, on processors that support it"
    )
    threads: int | None = Field(None, ge=1, description="CPU threads; default: all cores")
    profile_seconds: float = Field(
        60.0, gt=0, le=3600, description="seconds after which no further profiling round starts; two are always made"
    )
    tolerance: float | None = Field(
        None,
        gt=0,
        description="maximum difference of any component of the pooled vector from the source model's; "
        f"default: {DEFAULT_TOLERANCE['fp32']:g}, for bf16 {DEFAULT_TOLERANCE['bf16']:g}",
    )
    tensorrt: PetsPlanOptions | None = Field(None, description="options of the plan, for engine tensorrt")
    samples: Path | None = Field(
        None,
        description="text file, one text per line, for verification; relative to the spec file; default: generated "
        "English text",
    )
    attention_received: bool = Field(
        False,
        description="whether to also output, for every token, the attention that it receives, summed over queries, "
        "heads and layers, which a cascade uses to prune words; engine openvino only",
    )

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        check_plan_options(self.engine, self.tensorrt)
        if self.precision not in PETS_ENGINES[self.engine].precisions:
            accepted = _engines(lambda entry: self.precision in entry.precisions)
            raise ValueError(
                f"fields 'engine' and 'precision': {self.precision} requires engine {accepted}, got {self.engine}"
            )
        if self.attention_received and not PETS_ENGINES[self.engine].attention:
            accepted = _engines(lambda entry: entry.attention)
            raise ValueError(
                f"fields 'engine' and 'attention_received': attention requires engine {accepted}, got {self.engine}"
            )
        return self


def _engines(accepts: Callable[[PetsEngineEntry], bool]) -> str:
    return " or ".join(kind for kind, entry in PETS_ENGINES.items() if accepts(entry))
