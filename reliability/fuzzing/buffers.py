"""Bodies of any size from a few shared memory buffers, which are cheap to send."""

from __future__ import annotations

import mmap
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

MIB = 1 << 20
#: Repeated patterns of large bodies. A form of many fields costs tritonserver 33 bytes of memory per byte, see
#: `hostile_http`.
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
class RequestBody:
    """A request body as a sequence of memory views, which are sent without copies.

    Attributes:
        parts: Parts of the body, in order.
    """

    parts: tuple[memoryview, ...]

    @property
    def size(self) -> int:
        """Size of the body, bytes."""
        return sum(map(len, self.parts))

    def halves(self) -> tuple[RequestBody, RequestBody]:
        """Split the body into two parts of about the same size."""
        middle = self.size // 2
        return RequestBody(tuple(_slice(self.parts, 0, middle))), RequestBody(
            tuple(_slice(self.parts, middle, self.size))
        )


def whole(content: bytes) -> RequestBody:
    """Return existing content as a body."""
    return RequestBody((memoryview(content),))


def repeated(pattern: str, size: int, before: bytes = b"", after: bytes = b"") -> RequestBody:
    """Return a body that repeats a pattern.

    Args:
        pattern: Name of the pattern, a key of `PATTERNS`.
        size: Bytes of the repeated pattern.
        before: Content before the pattern.
        after: Content after the pattern.
    """
    view = _shared(PATTERNS[pattern])
    full, rest = divmod(size, len(view))
    parts = [memoryview(before), *[view] * full, view[:rest], memoryview(after)]
    return RequestBody(tuple(part for part in parts if len(part)))


def noise(draw: random.Random, size: int) -> RequestBody:
    """Return a body of random bytes.

    Args:
        draw: Random generator.
        size: Size of the body, bytes.
    """
    view = _random_bytes()
    begin = draw.randrange(len(view))
    return RequestBody(tuple(_slice([view] * (size // len(view) + 2), begin, begin + size)))


def _slice(parts: tuple[memoryview, ...] | list[memoryview], begin: int, end: int) -> Iterator[memoryview]:
    at = 0
    for part in parts:
        first, last = max(begin - at, 0), min(end - at, len(part))
        if first < last:
            yield part[first:last]
        at += len(part)


@cache
def _shared(pattern: bytes) -> memoryview:
    """Return about 1 MiB of whole repetitions of a pattern."""
    return _in_shared_memory(pattern * (MIB // len(pattern)))


@cache
def _random_bytes() -> memoryview:
    return _in_shared_memory(random.Random(0).randbytes(MIB))


def _in_shared_memory(content: bytes) -> memoryview:
    shared = mmap.mmap(-1, len(content))
    shared.write(content)
    return memoryview(shared)
