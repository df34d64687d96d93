"""Streams in slots: reading prompts into them, and steps that all running ones share (Flover §V-C, Algorithm 2)."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, cast

import numpy as np
import torch

from tidal.errors import Internal
from tidal.flover.memory.slots import Copy, Move, Slots
from tidal.flover.policies import Chunk
from tidal.flover.runner import Reading
from tidal.flover.sampling.choose import FloatArray
from tidal.flover.sampling.sampler import IntArray
from tidal.flover.streams import Stream
from tidal.flover.tasks.adapter import Adapter


class Decoder(Protocol):
    """Passes over slots, from one thread at a time; see `tidal.flover.runner.FloverRunner`."""

    slots: int
    fuses: bool

    def prefill(
        self, slot: int, token_ids: IntArray, start: int, *, last: bool = True, task: Adapter | None = None
    ) -> torch.Tensor | None:
        """Read a chunk of a prompt."""

    def step(
        self, begin: int, end: int, token_ids: IntArray, positions: IntArray, tasks: Sequence[Adapter | None] = ()
    ) -> torch.Tensor:
        """One token for every slot of a window."""

    def fused(
        self, slots: IntArray, token_ids: IntArray, positions: IntArray, readings: Sequence[Reading]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Both in one pass."""

    def move(self, moves: Iterable[Move], tokens: Sequence[int]) -> int:
        """Move what slots hold; bytes copied."""

    def copy(self, copies: Iterable[Copy]) -> int:
        """Copy tokens from slot to slot; bytes copied."""

    def check(self) -> tuple[int, ...]:
        """Slots that held what is no finite number."""


class Seat(NamedTuple):
    """One of a stream's slots, wherever it is now: its only one, or one for each of its beams."""

    stream: Stream
    number: int


@dataclass(frozen=True, slots=True)
class Step:
    """What a step came to.

    Attributes:
        seats: that took part.
        logits: of their next tokens, [seats, vocabulary]; good until the next step.
        window: slots that it covered, holes included.
    """

    seats: list[Seat]
    logits: FloatArray
    window: int


@dataclass(frozen=True, slots=True)
class Shuffle:
    """How many slots were moved, and the bytes that this copied."""

    moves: int
    moved_bytes: int


@dataclass(frozen=True, slots=True)
class Copied:
    """How many slots beams were copied to, and the bytes that this copied."""

    slots: int
    bytes: int


@dataclass(eq=False, slots=True)
class Turn:
    """Whose a decoder is: a last pass of a service that failed may still run, or be about to, when another begins.

    Attributes:
        lock: held while a pass runs.
        owner: makes passes; others are refused.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    owner: object = None


class Fusion:
    """The slots of one decoder, and who has them.

    Args:
        decoder: runs passes.
        turn: at this decoder, which this object takes over.
        shuffle: bring running slots together before each step; else holes are computed until somebody joins there.
    """

    def __init__(self, decoder: Decoder, turn: Turn, *, shuffle: bool) -> None:
        self._decoder = decoder
        self._turn = turn
        turn.owner = self
        self._shuffle = shuffle
        self._slots: Slots[Seat] = Slots(decoder.slots)
        self._streams: set[Stream] = set()

    @property
    def taken(self) -> int:
        """Slots that somebody has."""
        return self._slots.count - self._slots.free

    @property
    def running(self) -> int:
        """Slots that a step is made of."""
        return self._slots.running

    def admit(self, stream: Stream) -> None:
        """Give a stream its slots."""
        for seat in _seats(stream):
            self._slots.reserve(seat)
        self._streams.add(stream)
        stream.admitted = True

    def read(self, chunk: Chunk, stream: Stream) -> FloatArray | None:
        """Read a chunk of a stream's prompt; the logits [1, vocabulary] of its first token where the prompt ends."""
        slot, ids = self._slots.slot(Seat(stream, 0)), stream.ids[chunk.start : chunk.end]
        with self._passing() as decoder:
            logits = decoder.prefill(slot, ids, chunk.start, last=chunk.last, task=stream.task)
        stream.read = chunk.end
        return None if logits is None else logits.cpu().numpy()[None]

    def join(self, stream: Stream) -> None:
        """Let a stream that has its first token take part in steps."""
        for seat in _seats(stream):
            self._slots.join(seat)

    def copy(self, stream: Stream, copies: Sequence[Copy]) -> Copied:
        """Copy tokens between a stream's seats."""
        slots = [self._slots.slot(seat) for seat in _seats(stream)]
        placed = [Copy(slots[each.source], slots[each.target], each.begin, each.end) for each in copies]
        with self._passing() as decoder:
            return Copied(len(placed), decoder.copy(placed))

    def release(self, stream: Stream) -> None:
        """Free a stream's slots, if it has any."""
        if stream in self._streams:
            for seat in _seats(stream):
                self._slots.release(seat)
            self._streams.remove(stream)
            stream.admitted = False

    def settle(self) -> Shuffle | None:
        """Bring running streams together, unless they are or are not to be.

        Where it raises, who has which slot is not known: all streams with slots are to be released.
        """
        if not self._shuffle:
            return None
        before = self._held()
        moves = self._slots.settle({seat: seat.stream.held(seat.number) for seat in self._seats()})
        if not moves:
            return None
        with self._passing() as decoder:
            return Shuffle(len(moves), decoder.move(moves, before))

    def step(self) -> Step:
        """Make a step of all running streams, of which there is at least one."""
        window, rows = self._slots.window, self._slots.rows()
        ids = np.array([seat.stream.last(seat.number) if seat is not None else 0 for seat in rows], np.int64)
        positions = np.array(self._held()[window.begin : window.end], np.int64)
        tasks = [None if seat is None else seat.stream.task for seat in rows]
        with self._passing() as decoder:
            logits = decoder.step(window.begin, window.end, ids, positions, tasks).cpu().numpy()
        seats = [seat for seat in rows if seat is not None]
        if len(seats) < len(rows):
            logits = logits[[place for place, seat in enumerate(rows) if seat is not None]]
        return Step(seats, logits, len(window))

    def fuses(self, chunks: Sequence[Chunk]) -> bool:
        """Whether these chunks, and a step where somebody runs, can be one pass that is worth it."""
        if not self._decoder.fuses or len(chunks) + bool(self.running) < 2:
            return False
        streams = [
            *(cast(Stream, each.generation) for each in chunks),
            *(seat.stream for seat in self._running_seats()),
        ]
        return all(stream.task is None for stream in streams)

    def read_and_step(self, chunks: Sequence[Chunk]) -> tuple[list[FloatArray | None], Step]:
        """Read chunks of prompts and make a step of all running streams, if there is one, in a single pass.

        Returns:
            For each chunk the logits [1, vocabulary] of its text's first token where the prompt ends, and the step.
        """
        seats, streams = self._running_seats(), [cast(Stream, each.generation) for each in chunks]
        readings = [
            Reading(self._slots.slot(Seat(stream, 0)), stream.ids[each.start : each.end], each.start, each.last)
            for each, stream in zip(chunks, streams, strict=True)
        ]
        slots = np.array([self._slots.slot(seat) for seat in seats], np.int64)
        ids = np.array([seat.stream.last(seat.number) for seat in seats], np.int64)
        positions = np.array([seat.stream.held(seat.number) for seat in seats], np.int64)
        with self._passing() as decoder:
            stepped, ended = (each.numpy() for each in decoder.fused(slots, ids, positions, readings))
        for chunk, stream in zip(chunks, streams, strict=True):
            stream.read = chunk.end
        behind = iter(ended)
        first = [next(behind)[None] if each.last else None for each in chunks]
        return first, Step(seats, stepped, len(seats))

    def check_slots(self) -> None:
        """Hold the table of slots to itself.

        Raises:
            Internal: it contradicts itself.
        """
        self._slots.check()

    def check_memory(self) -> tuple[int, ...]:
        """Repair slots that hold what is no finite number, and return them; takes long."""
        with self._passing() as decoder:
            return decoder.check()

    def _running_seats(self) -> list[Seat]:
        return [seat for seat in self._slots.rows() if seat is not None]

    @contextmanager
    def _passing(self) -> Iterator[Decoder]:
        with self._turn.lock:
            if self._turn.owner is not self:
                raise Internal("another service has the decoder")
            yield self._decoder

    def _held(self) -> list[int]:
        """Tokens that each slot holds."""
        held = [0] * self._slots.count
        for seat in self._seats():
            held[self._slots.slot(seat)] = seat.stream.held(seat.number)
        return held

    def _seats(self) -> Iterator[Seat]:
        for stream in self._streams:
            yield from _seats(stream)


def _seats(stream: Stream) -> list[Seat]:
    return [Seat(stream, number) for number in range(stream.slots)]
