"""Renders and checks Helm charts with Helm's own library.

    python -m testing.helm CHART < CALLS

It is loaded in a process of its own: the runtime of Go in it replaces signal handlers.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

INSTALLED = importlib.util.find_spec("helm_python") is not None


@dataclass(frozen=True, slots=True)
class Rendered:
    """What Helm makes of a chart with some values.

    Attributes:
        templates: Text of each template by its path in the chart.
        messages: Messages of `helm lint` by severity: 1 for information, 2 for a warning, 3 for an error.
        error: Why nothing was rendered; empty otherwise.
    """

    templates: Mapping[str, str] = field(default_factory=dict)
    messages: Sequence[tuple[int, str]] = ()
    error: str = ""


def helm(chart: Path, calls: Sequence[tuple[str, Mapping[str, Any]]], namespace: str = "tidal") -> list[Rendered]:
    """Run `helm lint` and `helm template` for each pair of a release's name and its values.

    Args:
        chart: Folder of the chart.
        calls: Name of the release, and values that replace the chart's.
        namespace: Namespace of the releases.

    Raises:
        RuntimeError: Helm ended without an answer.
    """
    outcome = subprocess.run(
        [sys.executable, "-m", "testing.helm", str(chart), namespace],
        input=json.dumps(calls),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if outcome.returncode:
        raise RuntimeError(f"Helm ended with exit code {outcome.returncode}: {outcome.stderr}")
    return [Rendered(**each) for each in json.loads(outcome.stdout.splitlines()[-1])]


def _main(chart: str, namespace: str) -> None:
    library: Any = importlib.import_module("helm_python")
    found = []
    with library.Chart.load(chart) as loaded:
        for release, values in json.load(sys.stdin):
            linted = library.lint(chart, values, strict=True, namespace=namespace)
            messages = [(each["severity"], f"{each['path']}: {each['error']}") for each in linted["messages"]]
            try:
                loaded.validate_schema(values)
                templates = loaded.render(values, name=release, namespace=namespace)
                found.append({"templates": templates, "messages": messages})
            except library.HelmError as error:
                found.append({"error": str(error), "messages": messages})
    print(json.dumps(found))


if __name__ == "__main__":
    _main(*sys.argv[1:])
