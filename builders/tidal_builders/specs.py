"""What a build is asked for: one YAML file a model, typed by its `kind`."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic.json_schema import models_json_schema

from tidal.arlo.parameters import SLO_LATENCIES
from tidal.engines import PlanOptions
from tidal.errors import InvalidArgument, did_you_mean

# Largest difference of any logit from the source model, where a spec names none. Logits of classifiers lie some
# units apart; fp16 keeps 11 bits of each number, bf16 8 and int8 about 7, which many layers turn into these.
DEFAULT_TOLERANCE = {"fp32": 1e-3, "fp16": 0.02, "bf16": 0.1, "int8": 0.5}
# Least share of verification samples that must keep their label: a wide tolerance alone does not protect answers.
LEAST_AGREEMENT = {"fp32": 1.0, "fp16": 0.99, "bf16": 0.99, "int8": 0.97}


class TensorRtOptions(PlanOptions):
    """How TensorRT plans are made and published."""

    native: bool = Field(
        False, description="publish a partitioned model's runtimes for Triton's own TensorRT backend (tensorrt_plan)"
    )


class ArloSpec(BaseModel):
    """A text classifier, served by the `arlo` backend."""

    model_config = ConfigDict(extra="forbid", frozen=True, title="arlo")

    kind: Literal["arlo"]
    name: str = Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", description="the model's name in the repository")
    model: str = Field(
        min_length=1,
        description="Hugging Face id, or a folder in its format: absolute, or relative to the spec file "
        "(begin it with ./ or ../ to be told when it is missing)",
    )
    revision: str | None = Field(None, description="branch, tag or commit of a Hugging Face id")
    labels: tuple[str, ...] | None = Field(None, min_length=1, description="label names; default: the model's own")
    engine: Literal["openvino", "torch", "tensorrt"] = Field("openvino", description="engine to compile for")
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
    outputs: tuple[Literal["logits", "attention_received"], ...] = Field(
        ("logits",),
        description="attention_received: for every token the attention that it receives, summed over queries, heads "
        "and layers",
    )
    samples: Path | None = Field(
        None,
        description="text file, one text a line, to verify with (odd lines) and to calibrate int8 with (even lines); "
        "relative to the spec file; default: English text that the builder makes",
    )
    truncate: bool = Field(False, description="serve a longer text cut to the limit instead of refusing it")

    @field_validator("lengths")
    @classmethod
    def _ascending(cls, value: tuple[int, ...] | str) -> tuple[int, ...] | str:
        if isinstance(value, tuple) and (
            not value or value[0] < 1 or any(b <= a for a, b in itertools.pairwise(value))
        ):
            raise ValueError(f"expected positive, ascending lengths or 'auto', got {list(value)}")
        return value

    @field_validator("outputs")
    @classmethod
    def _with_logits(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if "logits" not in value or len(set(value)) != len(value):
            raise ValueError(f"expected logits and other outputs once each, got {list(value)}")
        return value

    @property
    def plan_options(self) -> TensorRtOptions:
        """How plans are made, where the engine needs any."""
        return self.tensorrt or TensorRtOptions()

    @model_validator(mode="after")
    def _fitting(self) -> ArloSpec:
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
        if self.tensorrt is not None and self.engine != "tensorrt":
            raise ValueError(
                f"fields 'engine' and 'tensorrt': options of plans go with engine tensorrt, got {self.engine}"
            )
        if self.plan_options.native and self.placement != "partitioned":
            raise ValueError(
                f"fields 'placement' and 'tensorrt': native takes placement partitioned, got {self.placement}"
            )
        return self


# Every kind of spec that `tidal build` reads.
SPECS: dict[str, type[ArloSpec]] = {"arlo": ArloSpec}


def spec_schema() -> dict[str, Any]:
    """JSON schema of a spec file: one of the kinds, told apart by `kind`."""
    references, definitions = models_json_schema([(model, "validation") for model in SPECS.values()])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "tidal build spec",
        "oneOf": [references[model, "validation"] for model in SPECS.values()],
        "discriminator": {"propertyName": "kind"},
        **definitions,
    }


def load_spec(path: Path) -> ArloSpec:
    """Read one spec file.

    Raises:
        InvalidArgument: the file is missing or no YAML mapping, or a field is unknown, missing or wrong.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgument(f"spec {path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"spec {path} is not valid YAML: {' '.join(str(error).split())}") from None
    return parse_spec(content, str(path))


def parse_spec(content: object, origin: str) -> ArloSpec:
    """Check a spec's content; `origin` names it in errors.

    Raises:
        InvalidArgument: names the field, what came and what is accepted.
    """
    if not isinstance(content, dict):
        raise InvalidArgument(f"spec {origin} must be a mapping of fields, got {type(content).__name__}")
    kind = content.get("kind")
    if kind is None:
        raise InvalidArgument(f"spec {origin} names no kind; accepted: {', '.join(sorted(SPECS))}")
    if kind not in SPECS:
        raise InvalidArgument(f"spec {origin} has the unknown kind '{kind}': {did_you_mean(str(kind), SPECS)}")
    model = SPECS[kind]
    try:
        return model.model_validate(content)
    except ValidationError as error:
        problems = "; ".join(_sentence(problem, model) for problem in error.errors())
        raise InvalidArgument(f"spec {origin}: {problems}") from None


def _sentence(problem: Any, model: type[BaseModel]) -> str:
    if not problem["loc"]:
        return str(problem["msg"]).removeprefix("Value error, ")
    name = str(problem["loc"][0])
    if name == "tensorrt" and len(problem["loc"]) > 1:
        return f"field 'tensorrt': {_sentence({**problem, 'loc': problem['loc'][1:]}, TensorRtOptions)}"
    if problem["type"] == "extra_forbidden":
        return f"unknown field '{name}': {did_you_mean(name, model.model_fields)}"
    message = str(problem["msg"]).removeprefix("Value error, ")
    meaning = model.model_fields[name].description if name in model.model_fields else None
    return f"field '{name}': {message[0].lower()}{message[1:]}" + (f" ({meaning})" if meaning else "")
