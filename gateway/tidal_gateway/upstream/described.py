"""What the status endpoint of a `tidal serve` reports of its models: tasks, labels, chat templates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tidal_gateway.upstream.status import get_document


class _Report(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class TaskReport(_Report):
    """One task of a model.

    Attributes:
        kind: Kind of fine-tuning, such as ``lora``.
        created: Time at which it was added, in seconds since 1970; 0 if unknown.
        task: Task that its outputs belong to, such as ``classification``; empty where its model decides.
        labels: Names of its labels, in the order of its probabilities.
    """

    kind: str = ""
    created: int = 0
    task: str = ""
    labels: tuple[str, ...] = ()


class DescribedModel(_Report):
    """One model.

    Attributes:
        kind: Kind of its spec, such as ``pets``; empty if unknown.
        created: Time of its build, in seconds since 1970; 0 if unknown.
        task: Task that its outputs belong to; empty if its tasks decide, or none is known.
        labels: Names of its labels, in the order of its probabilities.
        chat_template: Jinja source of its chat template; None for none.
        tasks: Its tasks by name.
    """

    kind: str = ""
    created: int = 0
    task: str = ""
    labels: tuple[str, ...] = ()
    chat_template: str | None = None
    tasks: Mapping[str, TaskReport] = Field(default_factory=dict)

    def labels_of(self, task: str) -> tuple[str, ...]:
        """Labels of a task, or with an empty name of the model itself; empty if they are not known."""
        if not task:
            return self.labels
        return self.tasks[task].labels if task in self.tasks else ()


class _Document(_Report):
    models: Mapping[str, DescribedModel]


#: Of a model that nothing describes.
UNKNOWN: Final = DescribedModel()


async def read_models(address: str) -> Mapping[str, DescribedModel] | None:
    """Read the descriptions at `host:port` by model; None where nothing answers or the document has another form."""
    content = await get_document(address, "/models")
    return None if content is None else parse_models(content)


def parse_models(content: bytes) -> Mapping[str, DescribedModel] | None:
    """Return the descriptions of a document by model; None if it has another form."""
    try:
        return _Document.model_validate_json(content).models
    except ValidationError:
        return None
