"""`python -m benchmarks.redraw`: draw the figures of the committed results again, from their JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.arlo import plot as arlo
from benchmarks.batcher import plot as batcher
from benchmarks.client_cost import plot as client_cost
from benchmarks.cluster import inflation
from benchmarks.cluster import plot as cluster
from benchmarks.cluster.emulated import plot as emulated
from benchmarks.cluster.entrances import plot as entrances
from benchmarks.cluster.many_nodes import plot as many_nodes
from benchmarks.cluster.serve_routers import plot as serve_routers
from benchmarks.cluster.simulated import plot as simulated
from benchmarks.compositions import decoder_tasks, shared_level, shared_prepare
from benchmarks.compositions import plot as compositions
from benchmarks.encoders import plot as encoders
from benchmarks.flover import plot as flover
from benchmarks.flover.peers import plot as flover_peers
from benchmarks.gateway import plot as gateway
from benchmarks.otas import plot as otas
from benchmarks.pets import plot as pets
from benchmarks.plots import headlines
from benchmarks.report import RESULTS
from benchmarks.request_path import plot as request_path
from benchmarks.serving_path import plot as serving_path
from benchmarks.tabi import plot as tabi

Draw = Callable[[Mapping[str, Any], Path], None]
#: What draws the figure of each result, by its path without ending; results of other processors are in folders.
FIGURES: dict[str, Draw] = {
    "arlo": arlo.save,
    "arlo_cluster": simulated.plot,
    "batcher": batcher.plot,
    "client_cost": client_cost.plot,
    "gateway": gateway.plot,
    "compositions": compositions.plot,
    "decoder_tasks": partial(compositions.plot_sharing, shared=decoder_tasks.SHARED, title=decoder_tasks.TITLE),
    "pets": pets.save,
    "otas": otas.plot,
    "entrances": entrances.plot,
    "many_nodes": many_nodes.plot,
    "flover": flover.save,
    "tabi": tabi.save,
    "amd-epyc-avx2/encoders": encoders.save,
    "amd-epyc-avx2/gateway": gateway.plot,
    "intel-xeon-amx/arlo": arlo.save,
    "intel-xeon-amx/cluster": cluster.plot,
    "intel-xeon-amx/emulated": emulated.plot,
    "intel-xeon-amx/encoders": encoders.save,
    "intel-xeon-amx/flover_peers": flover_peers.plot,
    "intel-xeon-amx/inflation": inflation.plot,
    "intel-xeon-amx/replan": cluster.plot_replan,
    "intel-xeon-amx/request_path": request_path.save,
    "intel-xeon-amx/serve_routers": serve_routers.plot,
    "intel-xeon-avx512/serve_routers": serve_routers.plot,
    "intel-xeon-amx/tabi": tabi.save,
    "intel-xeon-amx/serving_path": serving_path.save,
    "intel-xeon-amx/shared_level": partial(
        compositions.plot_sharing, shared=shared_prepare.SHARED, title=shared_level.TITLE
    ),
}


def main() -> int:
    """Draw every figure and headline; return exit code 0."""
    for name, draw in FIGURES.items():
        draw(document(name), RESULTS / f"{name}.png")
        print(RESULTS / f"{name}.png")
    for path in headlines.write(RESULTS / "headlines"):
        print(path)
    return 0


def document(name: str) -> dict[str, Any]:
    """Return the committed results of a benchmark."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


if __name__ == "__main__":
    sys.exit(main())
