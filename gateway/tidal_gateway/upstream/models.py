"""What the gateway knows of a model: its tensors and what it is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

#: Backend of the models that run one engine for another model; clients do not call them.
_INTERNAL_BACKENDS = frozenset({"engine"})


class Use(StrEnum):
    """What a model can be used for."""

    GENERATION = "generation"
    CHAT = "chat"
    EMBEDDING = "embedding"
    RERANKING = "reranking"
    TEXT_CLASSIFICATION = "text classification"
    IMAGE_CLASSIFICATION = "image classification"


_USES_OF_TASKS = {
    "classification": Use.TEXT_CLASSIFICATION,
    "multi-label": Use.TEXT_CLASSIFICATION,
    "rerank": Use.RERANKING,
    "embedding": Use.EMBEDDING,
}


def uses_of_task(task: str) -> frozenset[Use] | None:
    """What a model or task with these outputs can be used for; None if its tensors decide."""
    if task in _USES_OF_TASKS:
        return frozenset({_USES_OF_TASKS[task]})
    return None if task in ("", "auto") else frozenset()


@dataclass(frozen=True)
class ModelFacts:
    """A model as a server describes it.

    Attributes:
        name: Name of the model.
        versions: Versions that serve.
        inputs: Datatype and shape by input name.
        outputs: Datatype and shape by output name.
        backend: Name of the backend.
        max_rows: Maximum number of rows of a request; 0 if the model has no batch axis.
        decoupled: Whether it answers in streams only.
        task: Task of an encoder, from its config; empty if the config does not say.
    """

    name: str
    versions: tuple[str, ...]
    inputs: Mapping[str, tuple[str, tuple[int, ...]]]
    outputs: Mapping[str, tuple[str, tuple[int, ...]]]
    backend: str = ""
    max_rows: int = 0
    decoupled: bool = False
    task: str = ""

    @property
    def internal(self) -> bool:
        """Whether only other models call it."""
        return self.backend in _INTERNAL_BACKENDS

    @cached_property
    def uses(self) -> frozenset[Use]:
        """What the model can be used for, by its inputs and outputs."""
        known = uses_of_task(self.task)
        if known is not None:
            return known
        found = set()
        if "stream" in self.inputs and "text_output" in self.outputs:
            found.add(Use.GENERATION)
            if "messages" in self.inputs:
                found.add(Use.CHAT)
        if "embedding" in self.outputs:
            found.add(Use.EMBEDDING)
        if "score" in self.outputs and "text_pair" in self.inputs:
            found.add(Use.RERANKING)
        if "label" in self.outputs and "text_input" in self.inputs:
            found.add(Use.TEXT_CLASSIFICATION)
        if "label" in self.outputs and "image" in self.inputs:
            found.add(Use.IMAGE_CLASSIFICATION)
        return frozenset(found)


def model_facts(metadata: Any, config: Any, versions: tuple[str, ...]) -> ModelFacts:
    """Return the facts of a model.

    Args:
        metadata: Its `ModelMetadataResponse`.
        config: Its `ModelConfig` message.
        versions: Versions that serve.
    """

    def tensors(specs: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
        return {each.name: (each.datatype, tuple(each.shape)) for each in specs}

    return ModelFacts(
        name=metadata.name,
        versions=versions,
        inputs=tensors(metadata.inputs),
        outputs=tensors(metadata.outputs),
        backend=config.backend,
        max_rows=config.max_batch_size,
        decoupled=config.model_transaction_policy.decoupled,
        task=config.parameters["task"].string_value if "task" in config.parameters else "",
    )
