"""The spec of an encoder."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, field_validator

from tidal.errors import did_you_mean
from tidal_builders.arlo.runtime_options import RuntimeOptions
from tidal_builders.encoder_tasks.entries import BUILD_TASKS
from tidal_builders.long_texts import LongTextOptions
from tidal_builders.spec import ModelSpec


class ArloSpec(LongTextOptions, RuntimeOptions, ModelSpec):
    """An encoder, served by the `arlo` backend."""

    model_config = ConfigDict(title="arlo")

    kind: Literal["arlo"]
    model: str = Field(
        min_length=1,
        description="Hugging Face id, or a folder in its format: absolute, or relative to the spec file "
        "(begin it with ./ or ../ to get an error if the folder is missing)",
    )
    revision: str | None = Field(None, description="branch, tag or commit of a Hugging Face id")
    task: str = Field(
        "auto",
        description="what the model does: " + ", ".join(BUILD_TASKS) + "; auto: recognised from the model's files",
        json_schema_extra={"enum": ["auto", *BUILD_TASKS]},
    )
    labels: tuple[str, ...] | None = Field(None, min_length=1, description="label names; default: the model's own")
    pooling: Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"] | None = Field(
        None, description="how the vectors of tokens become an embedding; default: what the model's modules.json says"
    )
    normalize: bool | None = Field(
        None, description="whether embeddings get a length of 1; default: what the model's modules.json says"
    )
    prompts: dict[Annotated[str, Field(min_length=1, max_length=256)], str] | None = Field(
        None,
        description="embedding: texts to put in front of a query's text, by the name that requests give; default: what "
        "the model's config_sentence_transformers.json says",
    )
    default_prompt: str | None = Field(
        None,
        description="embedding: name of the prompt of requests that name none; default: what the model's "
        "config_sentence_transformers.json says, if prompts has it",
    )
    similarity: Literal["cosine", "dot", "euclidean", "manhattan"] | None = Field(
        None,
        description="embedding: function that clients compare vectors by; default: what the model's "
        "config_sentence_transformers.json says, or cosine",
    )
    outputs: tuple[Literal["logits", "attention_received"], ...] = Field(
        ("logits",),
        description="outputs of the engines: logits stands for those of the task; attention_received: for every token, "
        "the attention that it receives, summed over queries, heads and layers",
    )
    max_answer_tokens: int = Field(15, ge=1, le=1000, description="question-answering: longest answer in tokens")
    impossible_answers: bool = Field(
        False, description="question-answering: whether the empty answer (the context has no answer) is accepted"
    )

    @field_validator("task")
    @classmethod
    def _known(cls, value: str) -> str:
        if value != "auto" and value not in BUILD_TASKS:
            raise ValueError(did_you_mean(value, ["auto", *BUILD_TASKS]))
        return value

    @field_validator("outputs")
    @classmethod
    def _with_logits(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if "logits" not in value or len(set(value)) != len(value):
            raise ValueError(f"expected logits and other outputs once each, got {list(value)}")
        return value
