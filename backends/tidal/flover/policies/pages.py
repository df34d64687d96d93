"""Pages of memory that the tokens of a slot take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenRuns:
    """Runs of memory that hold a slot's tokens one after another, committed in whole pages.

    Attributes:
        count: Number of runs of a slot: one for the keys and one for the values of each head of each layer, or fewer
            that are committed as a whole.
        token_bytes: Bytes of a token in a run.
        page_bytes: Bytes that are committed at once.
    """

    count: int
    token_bytes: int
    page_bytes: int

    def bytes(self, tokens: int) -> int:
        """Return the committed bytes of a slot that holds some tokens."""
        return self.count * -(-tokens * self.token_bytes // self.page_bytes) * self.page_bytes

    def covered(self, tokens: int) -> int:
        """Return the number of tokens that fit into the pages of some tokens."""
        return -(-tokens * self.token_bytes // self.page_bytes) * self.page_bytes // self.token_bytes


@dataclass(frozen=True, slots=True)
class SlotPages:
    """Memory of a slot, by the number of its tokens.

    Attributes:
        runs: Runs of keys and values, and those of their scales if there are some.
        at_once: Whether the operating system clears all of a slot's memory for its first token.
    """

    runs: tuple[TokenRuns, ...]
    at_once: bool = False

    def bytes(self, tokens: int) -> int:
        """Return the committed bytes of a slot that holds some tokens."""
        return sum(each.bytes(tokens) for each in self.runs)

    def covered(self, tokens: int) -> int:
        """Return the number of tokens that fit into the pages of some tokens."""
        return min(each.covered(tokens) for each in self.runs) if tokens else 0

    def within(self, size: int, most: int) -> int:
        """Return the largest number of tokens, at most `most`, whose pages take at most `size` bytes."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.bytes(middle) <= size else (low, middle - 1)
        return low
