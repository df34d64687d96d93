"""The page of metrics, from the calls that register them."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from buildtools.reference.pages import SYSTEMS, note, page, section, table

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_LIBRARY = Path(__file__).resolve().parents[2] / "backends" / "tidal"
_METRIC_KINDS = ("counter", "gauge", "histogram")


@dataclass(frozen=True)
class _Family:
    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


def metrics_page() -> str:
    """Every metric family of every backend, of the controllers and of the gateway."""
    from tidal.cluster.node_metrics import NodeMetrics
    from tidal.controller.metrics import ClusterMetrics
    from tidal.controller.reports import NodeReport

    node = NodeMetrics(lambda: NodeReport("", "away"))
    tables = [
        ("Every backend but engine", "`{system}` is `arlo`, `tabi`, `pets`, `otas`, `flover` or `nearest`.",
         _families(_LIBRARY / "triton", "{system}"), ""),
        ("Tasks", "Of `pets`, `otas` and `flover` models; updated every second.",
         _families(_LIBRARY / "tasks", "{system}"), ""),
        ("Tasks of encoders", "`{system}` is `arlo` or `pets`.", _families(_LIBRARY / "encoder_tasks", "{system}"),
         note("metrics encoders")),
        *((name, "", _families(_LIBRARY / name, name), note(f"metrics {name}")) for name in SYSTEMS),
        ("Controller", "On the `--metrics-port` of `tidal controller` and of `tidal cluster start`.",
         _registered_families(ClusterMetrics().registry), note("metrics cluster")),
        ("Agent of a node", "On the `--metrics-port` of `tidal cluster join`.",
         _registered_families(node.registry), note("metrics node")),
        ("tidal gateway", "On its own `--metrics-port`, of all workers together.", _gateway_families(), ""),
    ]  # fmt: skip
    parts = [section(title, before, _family_table(families), after) for title, before, families, after in tables]
    return page("Metrics", "Every metric family that Tidal publishes for Prometheus.", note("metrics"), *parts)


def _families(folder: Path, system: str) -> list[_Family]:
    """Families that the code below a folder registers with a constant name."""
    found: dict[str, _Family] = {}
    for file in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and len(node.args) > 1):
                continue
            name, text = node.args[0], node.args[1]
            if node.func.attr in _METRIC_KINDS and isinstance(name, ast.Constant) and isinstance(text, ast.Constant):
                labels = tuple(each.arg for each in node.keywords if each.arg not in (None, "buckets", "help"))
                full = f"tidal_{system}_{name.value}"
                found[full] = _Family(full, node.func.attr, tuple(map(str, labels)), str(text.value))
    return sorted(found.values(), key=lambda each: each.name)


def _registered_families(registry: CollectorRegistry) -> list[_Family]:
    labels = {
        getattr(each, "_name", ""): tuple(getattr(each, "_labelnames", ())) for each in registry._collector_to_names
    }
    return [
        _Family(
            f"{each.name}_total" if each.type == "counter" else each.name,
            each.type,
            # Families that are computed when they are read have their labels themselves.
            labels.get(each.name, getattr(each, "_labelnames", ())),
            each.documentation.rstrip("."),
        )
        for each in registry.collect()
    ]


def _gateway_families() -> list[_Family]:
    from prometheus_client.metrics import MetricWrapperBase

    from tidal_gateway.edge import metrics

    found = [each for each in vars(metrics).values() if isinstance(each, MetricWrapperBase)]
    return [
        _Family(
            f"{each._name}_total" if each._type == "counter" else each._name,
            each._type,
            tuple(each._labelnames),
            each._documentation,
        )
        for each in found
    ]


def _family_table(families: Sequence[_Family]) -> str:
    return table(
        ("family", "type", "labels", "meaning"),
        [(f"`{f.name}`", f.kind, ", ".join(f"`{label}`" for label in f.labels), f.help) for f in families],
    )
