"""From the logits of a pass to the tokens of its streams: one each, or one for each beam."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import torch

from tidal.errors import Internal
from tidal.flover.beams import BeamGroup
from tidal.flover.fusion import Seat
from tidal.flover.memory.slots import Copy
from tidal.flover.sampling import UNDEFINED, Sampler, choose
from tidal.flover.sampling.choose import FloatArray
from tidal.flover.streams import Stream

_NO_NUMBERS = "the model's logits are no numbers for this text"


def take(
    seats: Sequence[Seat], logits: FloatArray, copy: Callable[[Stream, Sequence[Copy]], None]
) -> Iterator[tuple[Stream, Exception | None]]:
    """Give each stream the tokens that its rows of logits say.

    Args:
        seats: all of a stream's; behind its prompt its first alone.
        logits: [seats, vocabulary].
        copy: called where a stream's seats are to hold what others of them held.

    Yields:
        Each stream once, with what went wrong with it, which harms no other.
    """
    streams, samplers, rows = list[Stream](), list[Sampler](), list[int]()
    beams: dict[Stream, dict[int, int]] = {}
    for row, (stream, number) in enumerate(seats):
        if isinstance(stream.taker, BeamGroup):
            beams.setdefault(stream, {})[number] = row
        else:
            streams.append(stream)
            samplers.append(stream.taker)
            rows.append(row)
    if streams:
        yield from _one_each(streams, samplers, logits if len(rows) == len(logits) else logits[rows])
    for stream, row_of in beams.items():
        assert isinstance(stream.taker, BeamGroup)
        order = stream.taker.seats if stream.generated else (0,)
        found = torch.from_numpy(logits[[row_of[seat] for seat in order]])
        yield stream, _for_each_beam(stream, stream.taker, found, copy)


def _one_each(
    streams: Sequence[Stream], samplers: Sequence[Sampler], logits: FloatArray
) -> Iterator[tuple[Stream, Exception | None]]:
    try:
        tokens = choose(logits, samplers).tolist()
    except Exception as error:
        yield from ((stream, error) for stream in streams)
        return
    now = time.monotonic()
    for stream, token in zip(streams, tokens, strict=True):
        failure: Exception | None = None
        if token == UNDEFINED:
            failure = Internal(_NO_NUMBERS)
        else:
            try:
                stream.take(token, now)
            except Exception as error:  # one text must not cost the others their service
                failure = error
        yield stream, failure


def _for_each_beam(
    stream: Stream, beams: BeamGroup, logits: torch.Tensor, copy: Callable[[Stream, Sequence[Copy]], None]
) -> Exception | None:
    try:
        copies = stream.advance(beams, logits, time.monotonic())
        if copies:
            copy(stream, copies)
    except ArithmeticError:
        return Internal(_NO_NUMBERS)
    except Exception as error:
        return error
    return None
