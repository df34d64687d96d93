"""Masks of allowed tokens, computed by a thread of their own while the model runs its next pass."""

from __future__ import annotations

import queue
import threading
from collections.abc import Collection

import numpy as np
from llguidance import LLMatcher

from tidal.flover.sampling import BoolArray

# A mask takes below a millisecond, and its limits of work end it after some tens. More means that the thread has ended.
_WAIT_S = 10.0


class MaskWorker:
    """Computes masks, one after the other, in the thread that calls `run`."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[GuidedConstraint, int] | None] = queue.SimpleQueue()

    def add(self, constraint: GuidedConstraint, token: int) -> None:
        """Queue the mask after a token."""
        self._jobs.put((constraint, token))

    def run(self) -> None:
        """Compute masks until `close`."""
        while (job := self._jobs.get()) is not None:
            constraint, token = job
            constraint.compute(token)

    def close(self) -> None:
        """Let `run` end once all queued masks are computed."""
        self._jobs.put(None)


class GuidedConstraint:
    """The tokens that keep one text within its grammar, see `tidal.flover.sampling.Constraint`.

    The mask of the first token is computed at once, later ones by the worker.

    Args:
        matcher: Matcher of the grammar, owned by the constraint.
        vocabulary: Size of the model's vocabulary.
        eos: Token ids that end a text.
        worker: Worker that computes the masks.
    """

    def __init__(self, matcher: LLMatcher, vocabulary: int, eos: Collection[int], worker: MaskWorker) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._eos = frozenset(eos)
        self._worker = worker
        self._ready = threading.Event()
        self._mask: BoolArray = np.zeros(vocabulary, np.bool_)
        #: Why no token is allowed; None while one is.
        self.problem: str | None = None
        self.compute(None)

    def allowed(self) -> BoolArray:
        """Whether each token may come next, [vocabulary]; waits for the mask."""
        if not self._ready.wait(_WAIT_S):
            self.problem = f"the mask was not computed within {_WAIT_S:.0f} s"
            return np.zeros(self._vocabulary, np.bool_)
        return self._mask

    def advance(self, token: int) -> None:
        """Record the next token, and queue the mask after it."""
        if token not in self._eos:  # nothing follows
            self._ready.clear()
            self._worker.add(self, token)

    def compute(self, token: int | None) -> None:
        """Compute the mask after a token; None: after the prompt."""
        try:
            if token is not None:
                self._matcher.consume_token(token)
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            mask = np.unpackbits(bits, bitorder="little")[: self._vocabulary].view(np.bool_)
            if self._matcher.is_error():
                raise ValueError(self._matcher.get_error())
            if not mask.any():
                raise ValueError("no token of the model continues the text")
            self._mask = mask
        except Exception as error:  # concerns this text only
            self.problem = " ".join(str(error).split())[:300]
            self._mask = np.zeros(self._vocabulary, np.bool_)
        finally:
            self._ready.set()
