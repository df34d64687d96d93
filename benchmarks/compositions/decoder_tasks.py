"""`python -m benchmarks.compositions.decoder_tasks [--quick] [--json FILE]`: many tasks in one decode step.

LoRA tasks of one decoder, whose generations share every decode step, against one decoder per task, with the LoRA
merged into its weights, in a process of its own. The latter is tried with one thread and with all cores per process.
"""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.compositions.artefacts import BuiltArtefacts
from benchmarks.compositions.decoder_prepare import (
    BASE,
    LONGEST,
    TASK,
    prepare,
    threads_tried,
    write_own,
    write_shared,
)
from benchmarks.compositions.plot import plot_sharing
from benchmarks.compositions.sharing import SharingSize, SharingSystem, SharingWorkload, add_sharing, compare
from benchmarks.report import Report
from tidal_client import AsyncClient

SHARED = "tasks"
#: Title of the figure.
TITLE = "LoRA tasks of one decoder against one decoder per task"
FULL = SharingSize(count=8, rounds=3, seconds=12, loads=(0.4, 0.7), in_flight=2)
QUICK = SharingSize(count=4, rounds=1, seconds=6, loads=(0.5,), in_flight=2)
#: Tokens of the prompt, and number of tokens to generate.
DecoderQuery = tuple[list[int], int]
_PROMPT, _NEW_TOKENS, _VOCABULARY = 16, (16, 64), 50_000


def own(threads: int) -> str:
    """Return the name of the system with one process per task.

    Args:
        threads: Threads of each process.
    """
    return f"one model per task, {threads} thread{'s' if threads > 1 else ''}"


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer tasks, one round: some minutes.")] = False,
    json: Annotated[
        Path | None, typer.Option(help="Write results here, tables (.txt) and plot (.png) beside it.")
    ] = None,
) -> None:
    """Measure what many tasks gain by sharing one decoder's steps (random weights of GPT-2 small's size)."""
    size = QUICK if quick else FULL
    report = Report("decoder_tasks", quick)
    artefacts = prepare()
    print(f"artefacts {artefacts.digest}; prompts of {_PROMPT} tokens, {_NEW_TOKENS[0]} to {_NEW_TOKENS[1]} new ones")
    systems = _systems(artefacts, size.count)
    found, rate = compare(systems, size)
    add_sharing(report, systems, found, rate, shared=SHARED, prefix="tasks")
    report.finish(json)
    if json is not None:
        plot_sharing(report.document(), json.with_suffix(".png"), shared=SHARED, title=TITLE)


def _systems(artefacts: BuiltArtefacts, count: int) -> dict[str, SharingSystem]:
    names = [f"{TASK}_{number}" for number in range(count)]
    found = {
        own(threads): SharingSystem(
            "one decoder per task, its LoRA merged into the weights",
            partial(write_own, artefacts=artefacts, count=count, threads=threads), names, names,
            SharingWorkload(_query, partial(_send, task=False)),
        )
        for threads in threads_tried()
    }  # fmt: skip
    shared = SharingSystem(
        "LoRA tasks of one decoder: generations of all tasks share its decode steps",
        partial(write_shared, artefacts=artefacts, count=count), [BASE], names,
        SharingWorkload(_query, partial(_send, task=True)),
    )  # fmt: skip
    return {**found, SHARED: shared}


def _query(draw: random.Random, _number: int) -> DecoderQuery:
    """Draw a prompt and the number of tokens to generate."""
    return [draw.randrange(_VOCABULARY) for _ in range(_PROMPT)], draw.randint(*_NEW_TOKENS)


async def _send(client: AsyncClient, name: str, query: DecoderQuery, request_id: str, *, task: bool) -> list[int]:
    """Return the tokens that a task generates, as a task of the base or as a model."""
    prompt, max_tokens = query
    assert len(prompt) + max_tokens <= LONGEST
    answer = await client.generate(
        BASE if task else name, prompt, max_tokens=max_tokens, request_id=request_id, task=name if task else None
    )
    if len(answer.tokens) != max_tokens:
        raise RuntimeError(f"{name} generated {len(answer.tokens)} tokens; expected {max_tokens}")
    return list(answer.tokens)


if __name__ == "__main__":
    typer.run(main)
