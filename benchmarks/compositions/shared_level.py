"""`python -m benchmarks.compositions.shared_level [--quick] [--json FILE]`: many cascades over one small model.

Each cascade's small level is a task of one shared encoder, against cascades that each run a copy of the small model in
their own process. Their answers and the cost of their large levels are the same.
"""

from __future__ import annotations

import random
from functools import cache, partial
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.compositions.artefacts import BuiltArtefacts
from benchmarks.compositions.plot import plot_sharing
from benchmarks.compositions.shared_prepare import OWN, SHARED, model, prepare, write_system
from benchmarks.compositions.sharing import SharingSize, SharingSystem, SharingWorkload, add_sharing, compare
from benchmarks.report import Report
from demo.texts import make_examples
from tidal_client import AsyncClient

DESCRIPTIONS = {OWN: "a small model in each cascade's process", SHARED: "a task of one shared encoder for each cascade"}
#: Title of the figure.
TITLE = "Cascades over one shared small model against one small model per cascade"
FULL = SharingSize(count=8, rounds=3, seconds=20, loads=(0.4, 0.7), in_flight=4)
QUICK = SharingSize(count=4, rounds=1, seconds=5, loads=(0.5,), in_flight=4)


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer cascades, one round: some minutes.")] = False,
    json: Annotated[
        Path | None, typer.Option(help="Write results here, tables (.txt) and plot (.png) beside it.")
    ] = None,
) -> None:
    """Measure what many cascades gain by sharing one small model."""
    size = QUICK if quick else FULL
    report = Report("shared_level", quick)
    artefacts = prepare()
    print(f"artefacts {artefacts.digest}; caches are off")
    systems = _systems(artefacts, size.count)
    found, rate = compare(systems, size)
    add_sharing(report, systems, found, rate, shared=SHARED, prefix="shared", least_same=0.99)
    report.finish(json)
    if json is not None:
        plot_sharing(report.document(), json.with_suffix(".png"), shared=SHARED, title=TITLE)


def _systems(artefacts: BuiltArtefacts, count: int) -> dict[str, SharingSystem]:
    names = [model(number) for number in range(count)]
    workload = SharingWorkload(_text, _send)
    return {
        name: SharingSystem(
            description, partial(write_system, artefacts=artefacts, system=name, count=count), names, names, workload
        )
        for name, description in DESCRIPTIONS.items()
    }


def _text(draw: random.Random, number: int) -> str:
    return draw.choice(_texts(number))


@cache
def _texts(number: int) -> list[str]:
    return [text for text, _ in make_examples(400, number)]


async def _send(client: AsyncClient, name: str, text: str, request_id: str) -> tuple[str, int]:
    """Return label and level."""
    answer = await client.classify(name, text, outputs=["label", "level"], request_id=request_id)
    assert answer.label is not None
    return answer.label, int(answer.other["level"].item())


if __name__ == "__main__":
    typer.run(main)
