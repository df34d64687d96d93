"""Names of registries in specs and manifests: checked when they are read, and listed in the schema."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema


def check_registered(name: str, registry: Collection[str]) -> str:
    """Check that a registry has a name, and return the name.

    Args:
        name: Name to check.
        registry: Names of the registry, at least two.

    Raises:
        ValueError: It is not registered; names the registered ones.
    """
    if name not in registry:
        *first, last = map(repr, registry)
        raise ValueError(f"expected {', '.join(first)} or {last}, got '{name}'")
    return name


class Registered:
    """Annotation of a text field that is a name of a registry.

    Args:
        registry: Names of the registry, at least two.
    """

    def __init__(self, registry: Collection[str]) -> None:
        self._registry = registry

    def __get_pydantic_core_schema__(self, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(
            lambda name: check_registered(name, self._registry), core_schema.str_schema()
        )

    def __get_pydantic_json_schema__(self, _schema: CoreSchema, _handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "string", "enum": list(self._registry)}
