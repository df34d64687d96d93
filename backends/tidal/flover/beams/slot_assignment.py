"""Assignment of beams to slots, with the fewest copied tokens when beams continue others."""

from __future__ import annotations

from collections.abc import Sequence

from tidal.flover.memory.slots import SlotCopy


class BeamSlots:
    """The slot of each beam of a prompt; slots are numbered from 0 within the prompt.

    A beam that continues keeps its slot. If several beams continue the same one, all but the first get slots of beams
    that have ended. Only tokens that these slots do not hold already are copied: not the prompt, and not the tokens
    that both beams have in common.

    At first, slot 0 holds the prompt and the others nothing.

    Attributes:
        of_beams: Slot of each beam, best beam first.

    Args:
        beams: Number of beams.
    """

    def __init__(self, beams: int) -> None:
        self.of_beams = list(range(beams))
        # Number of leading tokens that two slots have in common; the diagonal is not used.
        self._common = [[0] * beams for _ in range(beams)]

    def reorder(self, parents: Sequence[int], held: int) -> tuple[SlotCopy, ...]:
        """Assign slots to new beams that continue old ones, with the fewest copied tokens.

        Args:
            parents: Old beam that each new beam continues.
            held: Number of tokens held by every old beam, the prompt included.

        Returns:
            Copies between slots; no target is the source of another.
        """
        origins = [self.of_beams[parent] for parent in parents]
        first = {slot: beam for beam, slot in reversed(list(enumerate(origins)))}
        slots = {beam: slot for slot, beam in first.items()}
        free = set(range(len(origins))) - set(first)
        # Pairing the longest common prefixes first is optimal: the texts form a tree of prefixes, and in each of its
        # branches as many slots as possible are filled from the same branch.
        pairs = [(beam, slot) for beam in range(len(origins)) if beam not in slots for slot in sorted(free)]
        pairs.sort(key=lambda pair: -self._common[origins[pair[0]]][pair[1]])
        copies = []
        for beam, slot in pairs:
            if beam not in slots and slot in free:
                slots[beam] = slot
                free.remove(slot)
                copies.append(SlotCopy(origins[beam], slot, self._common[origins[beam]][slot], held))
        origin = {slot: origins[beam] for beam, slot in slots.items()}
        self._common = [
            [
                held if origin[one] == origin[other] else self._common[origin[one]][origin[other]]
                for other in sorted(slots)
            ]
            for one in sorted(slots)
        ]
        self.of_beams = [slots[beam] for beam in range(len(origins))]
        return tuple(copies)
