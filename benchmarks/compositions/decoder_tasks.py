"""`python -m benchmarks.compositions.decoder_tasks [--quick] [--json FILE]`: generations of many tasks in one step.

LoRA tasks of one decoder, whose generations share every step, against a decoder for each task, with the LoRA merged
into its weights, in a process of its own. The others' threads are tried: one each, and all cores each.
"""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.compositions.decoder_prepare import (
    BASE,
    LONGEST,
    TASK,
    Artefacts,
    prepare,
    threads_tried,
    write_own,
    write_shared,
)
from benchmarks.compositions.plot import plot_sharing
from benchmarks.compositions.sharing import Asking, Size, System, add_sharing, compare
from benchmarks.report import Report
from tidal_client import AsyncClient

SHARED = "tasks"
#: What the figure shows.
TITLE = "LoRA tasks of one decoder against a decoder for each task"
FULL = Size(count=8, rounds=3, seconds=12, loads=(0.4, 0.7), in_flight=2)
QUICK = Size(count=4, rounds=1, seconds=6, loads=(0.5,), in_flight=2)
#: A prompt's tokens, and how many more are wanted.
Query = tuple[list[int], int]
_PROMPT, _WANTED, _VOCABULARY = 16, (16, 64), 50_000


def own(threads: int) -> str:
    """Name of the system with a process for each task."""
    return f"a model each, {threads} thread{'s' if threads > 1 else ''}"


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer tasks, one round: some minutes.")] = False,
    json: Annotated[
        Path | None, typer.Option(help="Write results here, tables (.txt) and plot (.png) beside it.")
    ] = None,
) -> None:
    """Measure what many tasks gain by sharing a decoder's steps (random weights of GPT-2 small's size)."""
    size = QUICK if quick else FULL
    report = Report("decoder_tasks", quick)
    artefacts = prepare()
    print(f"artefacts {artefacts.digest}; prompts of {_PROMPT} tokens, {_WANTED[0]} to {_WANTED[1]} new ones")
    systems = _systems(artefacts, size.count)
    found, rate = compare(systems, size)
    add_sharing(report, systems, found, rate, shared=SHARED, prefix="tasks")
    report.finish(json)
    if json is not None:
        plot_sharing(report.document(), json.with_suffix(".png"), shared=SHARED, title=TITLE)


def _systems(artefacts: Artefacts, count: int) -> dict[str, System]:
    names = [f"{TASK}_{number}" for number in range(count)]
    found = {
        own(threads): System(
            "a decoder for each task, its LoRA merged into the weights",
            partial(write_own, artefacts=artefacts, count=count, threads=threads), names, names,
            Asking(_query, partial(_ask, task=False)),
        )
        for threads in threads_tried()
    }  # fmt: skip
    shared = System(
        "LoRA tasks of one decoder: generations of all tasks share its steps",
        partial(write_shared, artefacts=artefacts, count=count), [BASE], names,
        Asking(_query, partial(_ask, task=True)),
    )  # fmt: skip
    return {**found, SHARED: shared}


def _query(draw: random.Random, _number: int) -> Query:
    """A prompt, and how many tokens are wanted."""
    return [draw.randrange(_VOCABULARY) for _ in range(_PROMPT)], draw.randint(*_WANTED)


async def _ask(client: AsyncClient, name: str, query: Query, request_id: str, *, task: bool) -> list[int]:
    """The tokens that a task generates, whether it is one of the base or a model."""
    prompt, wanted = query
    assert len(prompt) + wanted <= LONGEST
    options = {"task": name} if task else {}
    answer = await client.generate(BASE if task else name, prompt, max_tokens=wanted, request_id=request_id, **options)
    if len(answer.tokens) != wanted:
        raise RuntimeError(f"{name} gave {len(answer.tokens)} tokens where {wanted} were asked for")
    return list(answer.tokens)


if __name__ == "__main__":
    typer.run(main)
