"""From the logits of a pass to the next token of each generation, or of each of its beams."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate

import torch

from tidal.errors import Internal, InvalidArgument
from tidal.flover.beams import BeamGroup
from tidal.flover.engine.batches import SlotOwner
from tidal.flover.engine.next_tokens import next_tokens, rows_on_host, some_rows
from tidal.flover.generation import Generation
from tidal.flover.memory.slots import SlotCopy
from tidal.flover.sampling import (
    UNDEFINED,
    IntArray,
    Sampler,
    TokenLogprobs,
    token_logprobs,
)

_UNDEFINED_LOGITS = "the model produced NaN or infinite logits for this request"
CopySlots = Callable[[Generation, Sequence[SlotCopy]], None]


def append_tokens(
    owners: Sequence[SlotOwner], logits: torch.Tensor, drafts: Mapping[Generation, Sequence[int]], copy_slots: CopySlots
) -> Iterator[tuple[Generation, Exception | None]]:
    """Append the next token to each generation or to each of its beams, then the accepted draft tokens.

    Args:
        owners: Owners of the slots of a pass; all slots of a generation, or its first slot alone after its prompt.
        logits: Logits on any device, float32 [rows, vocabulary]: of each owner's next token, and of those after each
            of its drafted tokens.
        drafts: Drafted tokens of generations that have some.
        copy_slots: Copies tokens between a generation's slots, where beams continue others.

    Yields:
        Each generation once per token, with the error that ended it; an error concerns no other generation.
    """
    firsts = [0, *accumulate(1 + len(drafts.get(owner.generation, ())) for owner in owners)]
    going_on, depth = list(zip(owners, firsts, strict=False)), 0
    while going_on:
        rows = [first + depth for _, first in going_on]
        yield from _append_next([owner for owner, _ in going_on], some_rows(logits, rows), copy_slots)
        going_on = [
            (owner, first) for owner, first in going_on
            if _is_drafted(owner.generation, drafts.get(owner.generation, ()), depth)
        ]  # fmt: skip
        depth += 1


def _is_drafted(generation: Generation, draft: Sequence[int], depth: int) -> bool:
    """Whether a generation's newest token is that of its draft at an index, so that the logits after it are known."""
    return depth < len(draft) and generation.admitted and generation.tokens[-1] == draft[depth]


def _append_next(
    owners: Sequence[SlotOwner], logits: torch.Tensor, copy_slots: CopySlots
) -> Iterator[tuple[Generation, Exception | None]]:
    """Give each generation one token, or its beams theirs; `logits` has a row for each owner."""
    sampled, samplers, rows = list[Generation](), list[Sampler](), list[int]()
    beams: dict[Generation, dict[int, int]] = {}
    for row, (generation, index) in enumerate(owners):
        if isinstance(generation.method, BeamGroup):
            beams.setdefault(generation, {})[index] = row
        else:
            sampled.append(generation)
            samplers.append(generation.method)
            rows.append(row)
    if sampled:
        yield from _sample(sampled, samplers, some_rows(logits, rows))
    for generation, row_of in beams.items():
        assert isinstance(generation.method, BeamGroup)
        order = generation.method.slots if generation.generated else (0,)
        beam_logits = some_rows(logits, [row_of[index] for index in order]).cpu()
        yield generation, _advance_beams(generation, generation.method, beam_logits, copy_slots)


def _sample(
    generations: Sequence[Generation], samplers: Sequence[Sampler], logits: torch.Tensor
) -> Iterator[tuple[Generation, Exception | None]]:
    try:
        tokens = next_tokens(logits, samplers)
        logprobs = _logprobs(generations, tokens, logits)
    except Exception as error:
        yield from ((generation, error) for generation in generations)
        return
    now = time.monotonic()
    for row, (generation, token) in enumerate(zip(generations, tokens.tolist(), strict=True)):
        failure: Exception | None = None
        if token == UNDEFINED:
            failure = _undefined(samplers[row])
        else:
            try:
                generation.append(token, now, logprobs.get(row))
            except Exception as error:  # a defect in one text must not stop the others
                failure = error
        yield generation, failure


def _logprobs(generations: Sequence[Generation], tokens: IntArray, logits: torch.Tensor) -> dict[int, TokenLogprobs]:
    """Log probabilities by row, of the generations that record them."""
    tops = {
        row: each.top_logprobs
        for row, each in enumerate(generations)
        if each.top_logprobs is not None and tokens[row] != UNDEFINED
    }
    if not tops:
        return {}
    rows = list(tops)
    return dict(zip(rows, token_logprobs(rows_on_host(logits, rows), tokens[rows], list(tops.values())), strict=True))


def _undefined(sampler: Sampler) -> Exception:
    if sampler.constraint is not None and sampler.constraint.problem is not None:
        return InvalidArgument(f"the grammar of the guided output cannot continue: {sampler.constraint.problem}")
    return Internal(_UNDEFINED_LOGITS)


def _advance_beams(
    generation: Generation, beams: BeamGroup, logits: torch.Tensor, copy_slots: CopySlots
) -> Exception | None:
    try:
        copies = generation.advance(beams, logits, time.monotonic())
        if copies:
            copy_slots(generation, copies)
    except ArithmeticError:
        return Internal(_UNDEFINED_LOGITS)
    except Exception as error:
        return error
    return None
