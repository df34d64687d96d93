"""Which slot each beam of a prompt lies in, and what has to be copied when beams go on from others."""

from __future__ import annotations

from collections.abc import Sequence

from tidal.flover.memory.slots import Copy


class Places:
    """The seats of a prompt's beams: its slots, numbered from 0, wherever these are.

    A beam that goes on stays in its seat. Only where several go on from the same one, all but the first of them get
    seats of beams that have ended, and then only what these seats do not hold already is copied: not the prompt, and
    not the tokens that both beams have in common.

    At first, seat 0 holds the prompt and the others nothing.

    Attributes:
        seats: of each beam, best beam first.

    Args:
        beams: their number.
    """

    def __init__(self, beams: int) -> None:
        self.seats = list(range(beams))
        # Tokens, from the first on, in which what two seats hold is the same; of a seat with itself without meaning.
        self._common = [[0] * beams for _ in range(beams)]

    def follow(self, sources: Sequence[int], held: int) -> tuple[Copy, ...]:
        """Let new beams go on from old ones, in the fewest copied tokens.

        Args:
            sources: for each new beam the old one that it goes on from.
            held: tokens that every old beam holds, the prompt included.

        Returns:
            Copies from seat to seat; no target is a source of another.
        """
        origins = [self.seats[source] for source in sources]
        first = {seat: beam for beam, seat in reversed(list(enumerate(origins)))}
        seats = {beam: seat for seat, beam in first.items()}
        left = set(range(len(origins))) - set(first)
        # Whatever goes together best first is the least in all: texts that begin alike form a tree, and in each of its
        # branches as many seats as possible are filled from the same branch.
        pairs = [(beam, seat) for beam in range(len(origins)) if beam not in seats for seat in sorted(left)]
        pairs.sort(key=lambda pair: -self._common[origins[pair[0]]][pair[1]])
        copies = []
        for beam, seat in pairs:
            if beam not in seats and seat in left:
                seats[beam] = seat
                left.remove(seat)
                copies.append(Copy(origins[beam], seat, self._common[origins[beam]][seat], held))
        origin = {seat: origins[beam] for beam, seat in seats.items()}
        self._common = [
            [
                held if origin[one] == origin[other] else self._common[origin[one]][origin[other]]
                for other in sorted(seats)
            ]
            for one in sorted(seats)
        ]
        self.seats = [seats[beam] for beam in range(len(origins))]
        return tuple(copies)
