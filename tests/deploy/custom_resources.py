"""Checks custom resources against the types of KServe's SDK and of the Prometheus operator's CRDs.

Both are Python code generated from the schemas. It is parsed, not imported: importing takes longer than all other tests
of deployment, and requires packages that nothing else needs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import cache
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

_PLAIN: Mapping[str, type | tuple[type, ...]] = {"str": str, "int": int, "bool": bool, "float": (int, float)}


def problems(document: Any, kind: str) -> list[str]:
    """Unknown, missing and mistyped fields of a document of KServe or of the Prometheus operator.

    Types of Kubernetes itself, such as containers, are left out.
    """
    of = {"ServingRuntime": "V1alpha1ServingRuntime", "InferenceService": "V1beta1InferenceService"}
    return list(_wrong(document, of.get(kind, kind), kind))


def _wrong(value: Any, declared: str, where: str) -> list[str]:
    if inner := re.fullmatch(r"(?:list|List)\[(.*)\]", declared):
        if not isinstance(value, list):
            return [f"{where} is not a list"]
        return [each for n, item in enumerate(value) for each in _wrong(item, inner[1], f"{where}[{n}]")]
    if inner := re.fullmatch(r"(?:dict\(|Dict\[)str, (.*)[)\]]", declared):
        if not isinstance(value, dict):
            return [f"{where} is no mapping"]
        return [each for name, item in value.items() for each in _wrong(item, inner[1], f"{where}.{name}")]
    if inner := re.fullmatch(r"Literal\[(.*)\]", declared):
        allowed = ast.literal_eval(f"[{inner[1]}]")
        return [] if value in allowed else [f"{where} is {value!r}, not one of {allowed}"]
    if declared in _PLAIN:
        return [] if isinstance(value, _PLAIN[declared]) else [f"{where} is {value!r}, not {declared}"]
    fields = _fields(declared)
    if fields is None:
        return []
    if set(fields) == {"root"}:  # a plain value with a name of its own
        return _wrong(value, fields["root"][0], where)
    if not isinstance(value, dict):
        return [f"{where} is no mapping"]
    found = [f"{where} has no {name}" for name, (_, needed) in fields.items() if needed and name not in value]
    for name, item in value.items():
        found += _wrong(item, fields[name][0], f"{where}.{name}") if name in fields else [f"{where}.{name} is unknown"]
    return found


@cache
def _fields(declared: str) -> dict[str, tuple[str, bool]] | None:
    """Type of each field by its name in YAML, and whether it is needed; None for a type of others."""
    if re.match(r"V1(alpha|beta)\d", declared):
        return _fields_of_kserve(declared)
    return _fields_of_the_operator(declared)


def _fields_of_kserve(declared: str) -> dict[str, tuple[str, bool]] | None:
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", declared).lower()
    file = Path(str(distribution("kserve").locate_file(f"kserve/models/{name}.py")))
    if not file.is_file():
        return None
    named: dict[str, dict[str, str]] = {}
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Dict):
            named[node.targets[0].id] = ast.literal_eval(node.value)
    return {alias: (named["openapi_types"][field], False) for field, alias in named["attribute_map"].items()}


@cache
def _operator() -> str:
    package = distribution("cloudcoil-models-prometheus-operator")
    return Path(str(package.locate_file("cloudcoil/models/prometheus_operator/v1.py"))).read_text()


def _fields_of_the_operator(declared: str) -> dict[str, tuple[str, bool]] | None:
    block = re.search(rf"^class {re.escape(declared)}\(.*?(?=^class |\Z)", _operator(), re.MULTILINE | re.DOTALL)
    if block is None:
        return None
    (definition,) = ast.parse(block[0]).body
    assert isinstance(definition, ast.ClassDef)
    fields = {}
    for node in definition.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            text = ast.unparse(node.annotation)
            alias = re.search(r"alias='(\w+)'", text)
            plain = re.sub(r"^Annotated\[(.*), Field\(.*\)\]$", r"\1", text)
            plain = re.sub(r"^Optional\[(.*)\]$", r"\1", plain)
            fields[alias[1] if alias else node.target.id] = (plain, node.value is None)
    return fields
