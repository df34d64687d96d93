"""What slots need before chunks of prompts: memory that the operating system has cleared, and tokens to reuse."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from tidal.flover.engine.committing import CommittingRunner
from tidal.flover.engine.slots import GenerationSlots
from tidal.flover.generation import Generation
from tidal.flover.policies import Clearing, PrefillChunk

Failed = tuple[list[Generation], Exception]


class SlotPreparation:
    """Prepares slots of generations.

    Args:
        runner: Runner of the passes.
        slots: Slots of the generations.
    """

    def __init__(self, runner: CommittingRunner, slots: GenerationSlots) -> None:
        self._runner, self._slots = runner, slots

    def allocate(self, generation: Generation) -> None:
        """Allocate the slots of a generation, and record what has to be cleared of them."""
        self._slots.allocate(generation)
        generation.uncleared = sum(map(self._runner.memory.uncleared, self._slots.of(generation)))

    def prepare(
        self, clearing: Clearing[Generation] | None, chunks: Sequence[PrefillChunk[Generation]]
    ) -> Iterator[Failed]:
        """Clear memory, and copy the tokens before chunks that their slots lack.

        All are copied together: the memory that one copy commits may be what another one reads.

        Args:
            clearing: Memory to clear; None: none.
            chunks: Chunks of the iteration.

        Yields:
            Generations for which that failed, and the error.
        """
        if clearing is not None:
            try:
                self._clear(clearing)
            except Exception as error:
                yield [clearing.item], error
        lacking = [chunk for chunk in chunks if chunk.start > chunk.item.prefilled]
        if lacking:
            try:
                copies = [self._slots.reuse(chunk.item, chunk.start) for chunk in lacking]
                with self._runner.use() as runner:
                    runner.copy_slots(copies)
            except Exception as error:
                yield [chunk.item for chunk in lacking], error

    def _clear(self, clearing: Clearing[Generation]) -> None:
        """Clear a part of the memory at least, and no further one after the given time."""
        slots, until = self._slots.of(clearing.item), time.monotonic() + clearing.seconds
        with self._runner.use() as runner:
            while (left := runner.clear(slots)) and time.monotonic() < until:
                pass
        clearing.item.uncleared = left
