"""Greedy generation of several prompts in one runner, with arrivals, chunks and moves given by a test."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tidal.flover.memory.slots import SlotMove, SlotTable
from tidal.flover.runner import FloverRunner
from tidal.flover.tasks.adapter import LoraAdapter

Ids = npt.NDArray[np.int64]


@dataclass
class Generation:
    """The generation from one prompt.

    Attributes:
        prompt: Token ids of the prompt.
        wanted: Number of tokens to generate.
        arrives: Iteration in which it arrives.
        stays: Number of iterations with a slot after which its client cancels.
        task: Adapter that it uses; None for the base model.
        prefilled: Number of the prompt's tokens that are in its slot.
        tokens: Tokens generated so far.
    """

    prompt: Ids
    wanted: int
    arrives: int
    stays: float = math.inf
    task: LoraAdapter | None = None
    prefilled: int = 0
    tokens: list[int] = field(default_factory=list)

    @property
    def held(self) -> int:
        """Number of tokens whose keys and values are in the slot."""
        return self.prefilled + max(0, len(self.tokens) - 1)


def generate_together(runner: FloverRunner, sequences: Sequence[Generation], draw: np.random.Generator) -> None:
    """Generate until every sequence has its tokens or was cancelled.

    Every iteration prefills a chunk of random size of one waiting prompt and runs a decode step. Before the step one
    sequence is moved to a free slot, if there is one, and then the running slots are made contiguous.
    """
    slots = SlotTable[int](runner.slots)
    waiting = list(range(len(sequences)))
    prefilling: list[int] = []
    iteration = 0

    def move(moves: Sequence[SlotMove]) -> None:
        held = [0] * runner.slots
        for number, each in enumerate(sequences):
            if number in taken:
                held[before[number]] = each.held
        runner.move_slots(moves, held)

    while waiting or slots.free_count < slots.count:
        while waiting and slots.free_count and sequences[waiting[0]].arrives <= iteration:
            prefilling.append(waiting.pop(0))
            slots.allocate(prefilling[-1])
        if prefilling:
            number = prefilling[int(draw.integers(len(prefilling)))]
            each = sequences[number]
            end = min(len(each.prompt), each.prefilled + int(draw.integers(1, 12)))
            last = end == len(each.prompt)
            logits = runner.prefill(
                slots.slot(number), each.prompt[each.prefilled : end], each.prefilled, last=last, task=each.task
            )
            each.prefilled = end
            if last:
                assert logits is not None
                each.tokens.append(int(logits.argmax()))
                prefilling.remove(number)
                slots.activate(number)
        for number in [number for number in range(len(sequences)) if _has(slots, number)]:
            each = sequences[number]
            each.stays -= 1
            if len(each.tokens) == each.wanted or each.stays < 0:
                slots.free(number)
                prefilling = [other for other in prefilling if other != number]
        taken = [number for number in range(len(sequences)) if _has(slots, number)]
        before = {number: slots.slot(number) for number in taken}
        if taken and slots.free_count:
            source = slots.slot(int(draw.choice(taken)))
            free = sorted(set(range(slots.count)) - set(before.values()))
            away = [SlotMove(source, int(draw.choice(free)))]
            slots.apply(away)
            move(away)
            before = {number: slots.slot(number) for number in taken}
        move(slots.compact({number: sequences[number].held for number in taken}))
        window = slots.window
        if len(window):
            rows = [sequences[number] for number in slots.rows() if number is not None]
            assert len(rows) == len(window)
            logits = runner.decode(
                window.begin,
                window.end,
                np.array([each.tokens[-1] for each in rows]),
                np.array([each.held for each in rows]),
                [each.task for each in rows],
            )
            for each, row in zip(rows, logits, strict=True):
                each.tokens.append(int(row.argmax()))
        iteration += 1


def generated_by_transformers(model: Any, prompt: Ids, count: int) -> list[int]:
    """Return the tokens that `transformers` generates greedily, not stopping at the end-of-text token."""
    ids = torch.from_numpy(prompt)[None]
    model.generation_config.eos_token_id = None
    with torch.no_grad():
        found = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count, pad_token_id=0
        )
    return [int(token) for token in found[0, len(prompt) :]]


def searched_by_transformers(
    model: Any, prompt: Sequence[int], count: int, eos: int | None, **settings: Any
) -> list[int]:
    """Return the tokens that `transformers` finds by beam search, including the end-of-text token."""
    ids = torch.tensor([list(prompt)])
    model.generation_config.eos_token_id = eos
    with torch.no_grad():
        found = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count, pad_token_id=0,
            return_dict_in_generate=True, **settings
        )  # fmt: skip
    return [int(token) for token in found.sequences[0, len(prompt) :]]


def random_sequences(draw: np.random.Generator, count: int, vocabulary: int, longest: int = 40) -> list[Generation]:
    """Return prompts of 1 to `longest` tokens, in order of arrival, that want 1 to 16 tokens; 30 % are cancelled."""
    arrivals = np.cumsum(draw.integers(0, 5, count))
    return [
        Generation(
            draw.integers(0, vocabulary, int(draw.integers(1, longest))),
            int(draw.integers(1, 17)),
            int(arrives),
            math.inf if draw.random() < 0.7 else int(draw.integers(0, 12)),
        )
        for arrives in arrivals
    ]


def _has(slots: SlotTable[int], number: int) -> bool:
    try:
        slots.slot(number)
    except KeyError:
        return False
    return True
