"""A draft model: a smaller decoder that drafts tokens for the generations of another one, all in shared passes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch.nn import functional

from tidal.flover.engine.draft_slots import DraftSlots, sequence
from tidal.flover.engine.next_tokens import next_tokens
from tidal.flover.engine.runners import PassRunner, SharedRunner
from tidal.flover.generation import Generation
from tidal.flover.policies.committed import CommittedMemory
from tidal.flover.policies.drafting import Drafting
from tidal.flover.runner import PrefillInput
from tidal.flover.sampling import UNDEFINED, IntArray, Sampler


@dataclass(eq=False, slots=True)
class _Fed:
    """A generation in one call.

    Attributes:
        generation: The generation.
        slot: Its slot.
        start: Number of its tokens that the slot holds.
        ids: Tokens to prefill, at least one.
        depth: Number of tokens to draft.
        sampler: Sampler of the draft; None without one.
        draft: Tokens drafted so far.
    """

    generation: Generation
    slot: int
    start: int
    ids: list[int]
    depth: int
    sampler: Sampler | None
    draft: list[int] = field(default_factory=list)

    @property
    def position(self) -> int:
        """Position of the latest token."""
        return self.start + len(self.ids) + len(self.draft) - 1


class DraftModel:
    """Drafts the tokens that the generations' own samplers would select from the logits of a smaller decoder.

    A copy of a generation's sampler draws the random numbers that the generation itself will draw. So where both
    models have the same distribution a sampled token is drafted as surely as a greedy one, and a generation's tokens
    do not depend on what is drafted.

    Args:
        shared: Runner of the draft model, which it takes over.
        max_length: Number of tokens of its slots.
        vocabulary: Size of its vocabulary.
        target_vocabulary: Size of the vocabulary of the model that it drafts for.
    """

    def __init__(self, shared: SharedRunner, *, max_length: int, vocabulary: int, target_vocabulary: int) -> None:
        self._shared = shared
        self._slots = DraftSlots(shared.slots, shared.memory)
        self._max_length = max_length
        self._vocabulary, self._target_vocabulary = vocabulary, target_vocabulary
        self._unknown: set[Generation] = set()  # with a token that the model does not have
        shared.take_over(self)

    @property
    def memory(self) -> CommittedMemory:
        """Memory committed to its slots."""
        return self._slots.memory

    def follow(self, running: Collection[Generation]) -> None:
        """Free what other generations than those that run have."""
        self._slots.follow(running)
        self._unknown.intersection_update(running)

    def uncached(self, generation: Generation) -> int:
        """Number of tokens of a generation that the model has no keys and values of, its latest one included."""
        return generation.prompt_tokens + len(generation.tokens) - self._slots.cached(generation)

    def room(self, generation: Generation) -> int:
        """Most tokens that it can draft for a generation."""
        if generation in self._unknown:
            return 0
        # A draft's last token is no input.
        room = self._max_length - generation.prompt_tokens - len(generation.tokens) + 1
        return max(0, min(room, generation.max_tokens - len(generation.tokens) - 1))

    def draft(self, wanted: Mapping[Generation, Drafting]) -> dict[Generation, list[int]]:
        """Prefill tokens of generations, and draft; one pass for each token of the longest draft.

        Args:
            wanted: Tokens to prefill and to draft, by generation.

        Returns:
            Drafts of the generations that have one; not of those for which no slot or memory is left.

        Raises:
            Exception: A pass failed; what the slots of these generations hold is forgotten.
        """
        with self._shared.use(self) as runner:
            fed = self._admit(runner, wanted)
            try:
                if fed:
                    self._run(runner, fed)
            except BaseException:
                self._slots.forget(each.slot for each in fed)
                raise
        return {each.generation: each.draft for each in fed if each.draft}

    def repair(self) -> tuple[int, ...]:
        """Clear slots with NaN or infinite values, and return them; for idle moments."""
        with self._shared.use(self) as runner:
            broken = runner.repair(self.memory.written)
        self._slots.forget(broken)
        return broken

    def _admit(self, runner: PassRunner, wanted: Mapping[Generation, Drafting]) -> list[_Fed]:
        """Give slots and memory to generations, as far as there are some."""
        fed, writes = list[_Fed](), dict[int, int]()
        for generation, (tokens, depth) in wanted.items():
            if not self._slots.has(generation) and not self._allocate(runner, generation, writes):
                continue
            start, slot = self._slots.cached(generation), self._slots.slot(generation)
            length = generation.prompt_tokens + len(generation.tokens)
            ids = sequence(generation, start, min(start + tokens, length))
            if max(ids) >= self._vocabulary:  # its embedding does not exist
                self._unknown.add(generation)
                continue
            depth = depth if start + len(ids) == length else 0
            more = writes | {slot: start + len(ids) + max(depth - 1, 0)}
            if self._commit(runner, more):
                writes = more
                assert isinstance(generation.method, Sampler)
                sampler = generation.method.for_drafts() if depth else None
                fed.append(_Fed(generation, slot, start, ids, depth, sampler))
        return fed

    def _allocate(self, runner: PassRunner, generation: Generation, writes: Mapping[int, int]) -> bool:
        """Give a generation a slot with what another one holds of its tokens; False if none is free."""
        try:
            copy = self._slots.allocate(generation)
        except LookupError:
            return False
        if copy is not None and self._commit(runner, {**writes, copy.target: copy.end}):
            runner.copy_slots([copy])
            self._slots.copied(copy)
        return True

    def _commit(self, runner: PassRunner, writes: Mapping[int, int]) -> bool:
        kept, fits = self._slots.commit(writes)
        if kept:
            runner.release(kept)
        return fits

    def _run(self, runner: PassRunner, fed: Sequence[_Fed]) -> None:
        """Prefill the tokens in one pass, and draft."""
        # Rows that are decoded together are faster than chunks of one token where kernels are those of torch.
        rows = [each for each in fed if each.depth and len(each.ids) == 1]
        chunks = [each for each in fed if each not in rows]
        inputs = [PrefillInput(each.slot, np.array(each.ids, np.int64), each.start, each.depth > 0) for each in chunks]
        decoded, ended = runner.mixed(*_inputs((each.slot, each.ids[0], each.start) for each in rows), inputs)
        for each in fed:
            self._slots.hold(each.slot, each.start, each.ids)
        self._take(rows, decoded)
        self._take([each for each in chunks if each.depth], ended)
        while going := [each for each in fed if len(each.draft) < each.depth]:
            logits, _ = runner.mixed(*_inputs((each.slot, each.draft[-1], each.position) for each in going), ())
            for each in going:
                self._slots.hold(each.slot, each.position, each.draft[-1:])
            self._take(going, logits)

    def _take(self, fed: Sequence[_Fed], logits: torch.Tensor) -> None:
        """Append the next token to each draft; `logits` has a row for each."""
        if not fed:
            return
        if missing := self._target_vocabulary - logits.shape[1]:  # models of one family are padded differently
            logits = functional.pad(logits, (0, missing), value=-torch.inf)
        samplers = [each.sampler for each in fed if each.sampler is not None]
        for each, token in zip(fed, next_tokens(logits, samplers).tolist(), strict=True):
            if token == UNDEFINED:
                each.depth = len(each.draft)
            else:
                each.draft.append(token)


def _inputs(rows: Iterable[tuple[int, int, int]]) -> tuple[IntArray, IntArray, IntArray]:
    """Slots, token ids and positions of rows, [rows] int64 each."""
    slots, ids, positions = np.array(list(rows), np.int64).reshape(-1, 3).T.copy()
    return slots, ids, positions
