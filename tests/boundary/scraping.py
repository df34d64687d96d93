"""Reading a server's /metrics."""

from __future__ import annotations

import re

from testing.servers import RunningServer

_SAMPLE = re.compile(r"^(\w+)\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def values(server: RunningServer, family: str, model: str) -> dict[tuple[tuple[str, str], ...], float]:
    """Values of a family's series for a model, by their labels without model and version."""
    found = {}
    for name, labels, value in _SAMPLE.findall(server.metrics_text()):
        pairs = dict(_LABEL.findall(labels))
        if name == family and pairs.pop("model", None) == model:
            pairs.pop("version")
            found[tuple(sorted(pairs.items()))] = float(value)
    return found


def value(server: RunningServer, family: str, model: str, **labels: str) -> float:
    """The value of one series; NaN if it does not exist."""
    return values(server, family, model).get(tuple(sorted(labels.items())), float("nan"))
