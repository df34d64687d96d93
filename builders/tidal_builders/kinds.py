"""The registry of the kinds of models that `tidal build` builds: one entry per kind, imported when it is used."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Unpack, cast

from tidal_builders.planning import BuildPlan
from tidal_builders.report import BuildReport
from tidal_builders.runner import BuildOptions
from tidal_builders.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class BuildableKind:
    """A kind of model, by the places of its parts, each as `module:name`.

    Attributes:
        spec: Subclass of `ModelSpec`.
        plan: Function of a spec, the repository and the folder that relative paths start from; returns a `BuildPlan`.
        build: Function of a spec, the repository and `BuildOptions`; returns a report.
        report: Subclass of `BuildReport`.
    """

    spec: str
    plan: str
    build: str
    report: str

    def load(self, part: Literal["spec", "plan", "build", "report"]) -> Any:
        """Import one of its parts."""
        module, _, name = str(getattr(self, part)).partition(":")
        return getattr(import_module(module), name)

    @property
    def spec_type(self) -> type[ModelSpec]:
        """The class of its specs."""
        return cast(type[ModelSpec], self.load("spec"))

    def make_plan(self, spec: ModelSpec, repository: Path, base: Path) -> BuildPlan[Any]:
        """Compare what is published with a spec.

        Args:
            spec: Spec of this kind.
            repository: Model repository; it need not exist.
            base: Folder that relative paths of the spec start from.

        Raises:
            TidalError: The spec cannot be built.
        """
        return cast(BuildPlan[Any], self.load("plan")(spec, repository, base))

    def run(self, spec: ModelSpec, repository: Path, **options: Unpack[BuildOptions]) -> BuildReport:
        """Build a model, unless its newest version is current.

        Args:
            spec: Spec of this kind.
            repository: Model repository; it is created if it does not exist.
            **options: See `BuildOptions`.

        Raises:
            TidalError: The spec cannot be built, or a stage failed.
        """
        return cast(BuildReport, self.load("build")(spec, repository, **options))

    def make_report(self, **fields: Any) -> BuildReport:
        """A report with these fields."""
        return cast(type[BuildReport], self.load("report"))(**fields)


KINDS: dict[str, BuildableKind] = {
    "arlo": BuildableKind(
        spec="tidal_builders.arlo.spec:ArloSpec",
        plan="tidal_builders.arlo.plan:plan_arlo",
        build="tidal_builders.arlo.build:build_arlo",
        report="tidal_builders.arlo.report:ArloReport",
    ),
    "tabi": BuildableKind(
        spec="tidal_builders.tabi.spec:TabiSpec",
        plan="tidal_builders.tabi.plan:plan_cascade",
        build="tidal_builders.tabi.build:build_tabi",
        report="tidal_builders.tabi.report:CascadeReport",
    ),
    "pets": BuildableKind(
        spec="tidal_builders.pets.spec:PetsSpec",
        plan="tidal_builders.pets.plan:plan_pets",
        build="tidal_builders.pets.build:build_pets",
        report="tidal_builders.pets.report:PetsReport",
    ),
    "otas": BuildableKind(
        spec="tidal_builders.otas.spec:OtasSpec",
        plan="tidal_builders.otas.plan:plan_otas",
        build="tidal_builders.otas.build:build_otas",
        report="tidal_builders.otas.report:OtasReport",
    ),
    "flover": BuildableKind(
        spec="tidal_builders.flover.spec:FloverSpec",
        plan="tidal_builders.flover.plan:plan_flover",
        build="tidal_builders.flover.build:build_flover",
        report="tidal_builders.flover.report:FloverReport",
    ),
}


def kind_of(spec: ModelSpec) -> BuildableKind:
    """The registry's entry for a spec."""
    return KINDS[spec.kind]
