"""Checks a RayCluster of `ray.io/v1`: its own fields by KubeRay's Go types, its pods by Kubernetes.

From `ray-operator/apis/ray/v1/raycluster_types.go`, without the options for Ray's autoscaler and for Redis.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import kubernetes_validate
from jsonschema import Draft7Validator

# The oldest version of Kubernetes with sidecars that are on by default, and the newest one.
KUBERNETES = ("1.29", "1.34")
_COUNT = {"type": "integer", "minimum": 0}
_STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}


def _object(required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "required": list(required), "properties": properties}


_GROUP = {"rayStartParams": _STRINGS, "template": _object(("spec",), metadata={"type": "object"}, spec={})}
# `rayStartParams`, `minReplicas` and `maxReplicas` are required by the types before KubeRay 1.4.
_HEAD = _object(
    ("rayStartParams", "template"),
    **_GROUP,
    serviceType={"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
    headService={"type": "object"},
    enableIngress={"type": "boolean"},
)
_WORKERS = _object(
    ("groupName", "minReplicas", "maxReplicas", "rayStartParams", "template"),
    **_GROUP,
    groupName={"type": "string", "minLength": 1},
    replicas=_COUNT,
    minReplicas=_COUNT,
    maxReplicas=_COUNT,
    numOfHosts=_COUNT,
    suspend={"type": "boolean"},
)
_SPEC = _object(
    ("headGroupSpec",),
    headGroupSpec=_HEAD,
    workerGroupSpecs={"type": "array", "items": _WORKERS},
    rayVersion={"type": "string"},
    enableInTreeAutoscaling={"type": "boolean"},
    headServiceAnnotations=_STRINGS,
    suspend={"type": "boolean"},
)
_SCHEMA = _object(
    ("apiVersion", "kind", "metadata", "spec"),
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayCluster"},
    metadata={"type": "object", "required": ["name"]},
    spec=_SPEC,
)


def problems(document: dict[str, Any]) -> list[str]:
    """Unknown, missing and mistyped fields of a RayCluster, and of its pods in the first and last version."""
    found = [f"{error.json_path}: {error.message}" for error in Draft7Validator(_SCHEMA).iter_errors(document)]
    for pod in [] if found else pods(document):
        whole = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": pod}
        for version in KUBERNETES:
            try:
                kubernetes_validate.validate(whole, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                found.append(f"Kubernetes {version}: {error}")
    return found


def pods(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The pods of the head and of each group, in the order of the document."""
    spec = document["spec"]
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        yield group["template"]["spec"]
