"""Commands, metrics and versions of the code, which the tests compare with the files of deployment."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import yaml

from tidal.cluster.node_metrics import NodeMetrics
from tidal.controller.metrics import ClusterMetrics
from tidal.controller.reports import NodeReport
from tidal_client.main import GROUP, _load

ROOT = Path(__file__).parents[2]
SYSTEMS = ("arlo", "tabi", "pets", "otas", "flover")
_LIBRARY = ROOT / "backends" / "tidal"
_HISTOGRAM = ("_bucket", "_sum", "_count")

#: Of Triton's own metrics those that are used: of models, of the machine, and of GPUs where there are any.
SERVERS_OWN = frozenset(
    {
        *(f"nv_inference_{name}" for name in ("request_success", "request_failure", "count", "exec_count")),
        *(f"nv_inference_{name}" for name in ("queue_duration_us", "compute_infer_duration_us")),
        "nv_inference_pending_request_count",
        "nv_cpu_utilization",
        "nv_cpu_memory_used_bytes",
        "nv_cpu_memory_total_bytes",
    }
)
ON_GPUS = frozenset({"nv_gpu_utilization", "nv_gpu_memory_used_bytes", "nv_gpu_memory_total_bytes"})


@cache
def pyproject() -> dict[str, Any]:
    """The project's metadata."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def documents(path: str) -> list[dict[str, Any]]:
    """The YAML documents of a file."""
    return [each for each in yaml.safe_load_all((ROOT / path).read_text()) if each is not None]


def accepts(words: Sequence[str]) -> dict[str, Any]:
    """Parse the arguments of a `tidal` command; raises the command's error for invalid ones."""
    name, *rest = words
    (entry,) = (each for each in entry_points(group=GROUP) if each.name == name)
    return _parsed(_load(entry), name, rest)


def _parsed(command: Any, name: str, words: Sequence[str]) -> dict[str, Any]:
    context = command.make_context(name, list(words))
    if not hasattr(command, "resolve_command"):  # a command without subcommands
        return context.params
    inner, found, rest = command.resolve_command(context, [*context._protected_args, *context.args])
    assert inner is not None
    assert found is not None
    return _parsed(found, inner, rest)


@cache
def series() -> frozenset[str]:
    """Every series that Tidal's models and its controllers publish, by its name in Prometheus."""
    found = set()
    for system in SYSTEMS:
        packages = [system, "triton", *(["tasks"] if system in ("pets", "otas", "flover") else [])]
        found |= {f"tidal_{system}_{name}" for package in packages for name in _registered(_LIBRARY / package)}
    # The runtimes of a cascade's levels are those of `arlo`, within the cascade.
    found |= {f"tidal_tabi_runtime_{name}" for name in _registered(_LIBRARY / "arlo" / "metrics.py")}
    for each in (ClusterMetrics(), NodeMetrics(lambda: NodeReport("", "away"))):
        for family in each.registry.collect():
            suffixes = {"counter": ("_total",), "histogram": _HISTOGRAM}.get(family.type, ("",))
            found |= {f"{family.name}{suffix}" for suffix in suffixes}
    return frozenset(found)


def _registered(where: Path) -> Iterator[str]:
    for file in [where] if where.is_file() else sorted(where.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                continue
            kind, name = node.func.attr, node.args[0]
            if kind in ("counter", "gauge", "histogram") and isinstance(name, ast.Constant):
                yield from (f"{name.value}{suffix}" for suffix in (_HISTOGRAM if kind == "histogram" else ("",)))
