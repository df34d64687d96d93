"""The lengths of a model's runtimes, and which of them pad to their length."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from tidal.arlo.manifest import Form

# A fixed length, or the inclusive bounds of a dynamic one.
Bound = int | tuple[int, int]


class Ladder(BaseModel):
    """The lengths of a model's runtimes.

    Attributes:
        lengths: Lengths in tokens, ascending; the last is the longest input.
        static_upto: Longest length of a static runtime; all longer ones share one dynamic engine. 0: none is static.
    """

    model_config = ConfigDict(frozen=True)

    lengths: tuple[int, ...]
    static_upto: int

    @property
    def static(self) -> tuple[int, ...]:
        """Lengths of the static runtimes."""
        return tuple(length for length in self.lengths if length <= self.static_upto)

    @property
    def form(self) -> Form:
        """Form of the runtimes."""
        if not self.static_upto:
            return "dynamic"
        return "static" if self.static_upto >= self.lengths[-1] else "mixed"

    @property
    def bounds(self) -> list[Bound]:
        """What engines are opened for: each static length, then all lengths if some runtime is dynamic."""
        return [*self.static, *([] if self.form == "static" else [(1, self.lengths[-1])])]
