"""Bodies of any size out of a few buffers in shared memory, so that sending them costs the sender almost nothing."""

from __future__ import annotations

import mmap
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

MIB = 1 << 20
#: What large bodies repeat. A form of many fields takes tritonserver 33 bytes of memory a byte, see `hostile_http`.
PATTERNS: dict[str, bytes] = {
    "letters": b"a",
    "zeros": b"\x00",
    "brackets": b"[",
    "objects": b'{"a":',
    "fields": b"a=b&",
    "escapes": b"%41",
    "numbers": b"1,",
    "emoji": "😀".encode(),
    "lines": b"\r\n",
}


@dataclass(frozen=True, slots=True)
class Body:
    """A body as the views it is sent in, one after the other; nothing is copied.

    Attributes:
        parts: of the body, in order.
    """

    parts: tuple[memoryview, ...]

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return sum(map(len, self.parts))

    def halves(self) -> tuple[Body, Body]:
        """The body in two pieces of about the same size."""
        middle = self.size // 2
        return Body(tuple(_slice(self.parts, 0, middle))), Body(tuple(_slice(self.parts, middle, self.size)))


def whole(content: bytes) -> Body:
    """A body that exists already."""
    return Body((memoryview(content),))


def repeated(pattern: str, size: int, before: bytes = b"", after: bytes = b"") -> Body:
    """A body of `size` bytes of a pattern, between `before` and `after`."""
    view = _shared(PATTERNS[pattern])
    full, rest = divmod(size, len(view))
    parts = [memoryview(before), *[view] * full, view[:rest], memoryview(after)]
    return Body(tuple(part for part in parts if len(part)))


def noise(draw: random.Random, size: int) -> Body:
    """A body of bytes that follow no format."""
    view = _random_bytes()
    begin = draw.randrange(len(view))
    return Body(tuple(_slice([view] * (size // len(view) + 2), begin, begin + size)))


def _slice(parts: tuple[memoryview, ...] | list[memoryview], begin: int, end: int) -> Iterator[memoryview]:
    at = 0
    for part in parts:
        first, last = max(begin - at, 0), min(end - at, len(part))
        if first < last:
            yield part[first:last]
        at += len(part)


@cache
def _shared(pattern: bytes) -> memoryview:
    """About 1 MiB of a pattern, whole repetitions of it."""
    return _in_shared_memory(pattern * (MIB // len(pattern)))


@cache
def _random_bytes() -> memoryview:
    return _in_shared_memory(random.Random(0).randbytes(MIB))


def _in_shared_memory(content: bytes) -> memoryview:
    shared = mmap.mmap(-1, len(content))
    shared.write(content)
    return memoryview(shared)
