"""Streams in slots: reading prompts into them, and steps that all running ones share (Flover §V-C, Algorithm 2)."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

from tidal.errors import Internal
from tidal.flover.memory.slots import Move, Slots
from tidal.flover.policies import Chunk
from tidal.flover.sampling.choose import FloatArray
from tidal.flover.sampling.sampler import IntArray
from tidal.flover.streams import Stream


class Decoder(Protocol):
    """Passes over slots, from one thread at a time; see `tidal.flover.runner.FloverRunner`."""

    slots: int

    def prefill(self, slot: int, token_ids: IntArray, start: int, *, last: bool = True) -> torch.Tensor | None:
        """Read a chunk of a prompt."""

    def step(self, begin: int, end: int, token_ids: IntArray, positions: IntArray) -> torch.Tensor:
        """One token for every slot of a window."""

    def move(self, moves: Iterable[Move], tokens: Sequence[int]) -> int:
        """Move what slots hold; bytes copied."""

    def check(self) -> tuple[int, ...]:
        """Slots that held what is no finite number."""


@dataclass(frozen=True, slots=True)
class Step:
    """What a step came to.

    Attributes:
        streams: that took part.
        logits: of their next tokens, [streams, vocabulary]; good until the next step.
        window: slots that it covered, holes included.
    """

    streams: list[Stream]
    logits: FloatArray
    window: int


@dataclass(frozen=True, slots=True)
class Shuffle:
    """How many slots were moved, and the bytes that this copied."""

    moves: int
    moved_bytes: int


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
        self._slots: Slots[Stream] = Slots(decoder.slots)
        self._streams: set[Stream] = set()

    @property
    def taken(self) -> int:
        """Slots that somebody has."""
        return self._slots.count - self._slots.free

    @property
    def running(self) -> int:
        """Streams that a step is made of."""
        return self._slots.running

    def admit(self, stream: Stream) -> None:
        """Give a stream a slot."""
        self._slots.reserve(stream)
        self._streams.add(stream)
        stream.admitted = True

    def read(self, chunk: Chunk, stream: Stream) -> FloatArray | None:
        """Read a chunk of a stream's prompt; the logits [1, vocabulary] of its first token where the prompt ends."""
        slot, ids = self._slots.slot(stream), stream.ids[chunk.start : chunk.end]
        with self._passing() as decoder:
            logits = decoder.prefill(slot, ids, chunk.start, last=chunk.last)
        stream.read = chunk.end
        return None if logits is None else logits.cpu().numpy()[None]

    def join(self, stream: Stream) -> None:
        """Let a stream that has its first token take part in steps."""
        self._slots.join(stream)

    def release(self, stream: Stream) -> None:
        """Free a stream's slot, if it has one."""
        if stream in self._streams:
            self._slots.release(stream)
            self._streams.remove(stream)

    def settle(self) -> Shuffle | None:
        """Bring running streams together, unless they are or are not to be.

        Where it raises, who has which slot is not known: all streams with slots are to be released.
        """
        if not self._shuffle:
            return None
        before = self._held()
        moves = self._slots.settle({stream: stream.held for stream in self._streams})
        if not moves:
            return None
        with self._passing() as decoder:
            return Shuffle(len(moves), decoder.move(moves, before))

    def step(self) -> Step:
        """Make a step of all running streams, of which there is at least one."""
        window, rows = self._slots.window, self._slots.rows()
        ids = np.array([stream.tokens[-1] if stream is not None else 0 for stream in rows], np.int64)
        positions = np.array(self._held()[window.begin : window.end], np.int64)
        with self._passing() as decoder:
            logits = decoder.step(window.begin, window.end, ids, positions).cpu().numpy()
        streams = [stream for stream in rows if stream is not None]
        if len(streams) < len(rows):
            logits = logits[[place for place, stream in enumerate(rows) if stream is not None]]
        return Step(streams, logits, len(window))

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

    @contextmanager
    def _passing(self) -> Iterator[Decoder]:
        with self._turn.lock:
            if self._turn.owner is not self:
                raise Internal("another service has the decoder")
            yield self._decoder

    def _held(self) -> list[int]:
        """Tokens that each slot holds."""
        held = [0] * self._slots.count
        for stream in self._streams:
            held[self._slots.slot(stream)] = stream.held
        return held
