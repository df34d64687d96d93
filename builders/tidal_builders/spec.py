"""What the specs of all kinds of models have in common."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from tidal.engines import PlanOptions, engine_entry


class ModelSpec(BaseModel):
    """A model to build: immutable, and unknown fields are errors. Each kind has a subclass with a literal `kind`.

    Attributes:
        has_target: Whether the spec has a field `target`, which the options `--target-*` of `tidal build` replace.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    has_target: ClassVar[bool] = False

    kind: str
    name: str = Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", description="name of the model in the repository")

    @property
    def models(self) -> tuple[str, ...]:
        """Names of all Triton models that a build publishes; the first is `name`."""
        return (self.name,)


def check_plan_options(engine: str, options: PlanOptions | None) -> None:
    """Check that options of plans are only given with an engine that uses plans.

    Raises:
        ValueError: The engine uses no plans; for a model's validator.
    """
    if options is not None and not engine_entry(engine).uses_plans:
        raise ValueError(
            f"fields 'engine' and 'tensorrt': plan options require engine tensorrt, got {engine}; remove 'tensorrt'"
        )
