"""Choice of one of several addresses for each call; one that failed is left out for a time. Pure but for its clock."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from tidal_client.errors import (
    Cancelled,
    ConnectionFailed,
    DeadlineExceeded,
    InvalidArgument,
    RequestError,
    Unavailable,
    is_not_loaded,
)
from tidal_client.retrying import pause_s

#: What is left out: an address, or with a name one model at it.
_Key = tuple[int, str | None]

# An `Unavailable` with such a message is an answer of a model that runs: the request missed its deadline, or is one too
# many. Leaving such an address out would send all requests to the others, which are as busy.
_BUSY: Final = re.compile(r"deadline|queue|\bfull\b|timeout expired|too many|rate limit|outstanding", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Sent:
    """A call that was sent to an address.

    Attributes:
        address: Index of the address.
        model: Model that it calls; None: the server as a whole.
        number: Number of calls sent to any address so far, this one included.
        answers: Number of calls that the address had answered by then.
    """

    address: int
    model: str | None
    number: int
    answers: int


@dataclass(slots=True)
class _Outage:
    """Something that is left out.

    Attributes:
        failures: Number of failures in a row, apart from those of calls that were in flight together.
        until: Time of the next call, which tries it.
        noted: Number of the last call sent before the failure; the ends of calls up to it say nothing new.
    """

    failures: int
    until: float
    noted: int


class Balance:
    """Outstanding calls and outages of several addresses; not safe between threads.

    A call goes to the address with the fewest outstanding ones of this client, in turn among equal ones. After a
    failure an address is left out for 0.2 s, doubled with each further failure up to 5 s, minus a random part of up to
    half. Then one call tries it, and until that is answered one call more after each further pause. A model that its
    server does not serve for the moment is left out in the same way, alone.

    Args:
        addresses: Number of addresses.
        clock: Returns the current time in seconds.
        uniform: Returns a random number in [0, 1).
    """

    def __init__(self, addresses: int, clock: Callable[[], float], uniform: Callable[[], float]) -> None:
        self._clock, self._uniform = clock, uniform
        self._outstanding = [0] * addresses
        self._answers = [0] * addresses
        self._outages: dict[_Key, _Outage] = {}
        self._sent = 0
        # Clients that start together do not all begin at the same address.
        self._next = int(uniform() * addresses)

    @property
    def outstanding(self) -> tuple[int, ...]:
        """Number of outstanding calls of each address."""
        return tuple(self._outstanding)

    def out_until(self, address: int, model: str | None) -> float:
        """Time until which an address is left out for a model; minus infinity if it is not."""
        keys = ((address, None), (address, model))
        return max((self._outages[key].until for key in keys if key in self._outages), default=-float("inf"))

    def is_out(self, address: int, model: str | None) -> bool:
        """Whether an address is left out for a model at this time."""
        return bool(self._outages) and self.out_until(address, model) > self._clock()

    def choose(self, model: str | None, tried: Collection[int] = ()) -> Sent:
        """Choose an address and count the call as outstanding there.

        Args:
            model: Model to call; None: the server as a whole.
            tried: Addresses that this call has tried: another one is preferred, unless it is left out and one of them
                is not. If all are left out, the one that is tried again soonest is chosen.
        """
        count = len(self._outstanding)
        order = [(self._next + step) % count for step in range(count)]
        usable = [address for address in order if not self.is_out(address, model)]
        if usable:
            others = [address for address in usable if address not in tried]
            chosen = min(others or usable, key=self._outstanding.__getitem__)
        else:
            others = [address for address in order if address not in tried]
            chosen = min(others or order, key=lambda address: self.out_until(address, model))
        self._next = (chosen + 1) % count
        return self.send(chosen, model)

    def send(self, address: int, model: str | None) -> Sent:
        """Count a call as outstanding at an address; if that was left out, the call tries it."""
        for key in {(address, None), (address, model)} & self._outages.keys():
            outage = self._outages[key]
            outage.until = self._clock() + pause_s(outage.failures, self._uniform())
        self._outstanding[address] += 1
        self._sent += 1
        return Sent(address, model, self._sent, self._answers[address])

    def ended(self, sent: Sent) -> None:
        """Count a call as no longer outstanding, once, however it ended."""
        self._outstanding[sent.address] -= 1

    def answered(self, sent: Sent) -> bool:
        """Note that a call was answered, or its stream has begun; return whether this ends an outage of its address."""
        self._answers[sent.address] += 1
        if not self._outages:
            return False
        self._restore((sent.address, sent.model), sent)
        return self._restore((sent.address, None), sent)

    def failed(self, sent: Sent, error: RequestError) -> bool:
        """Note the error of a call; return whether the error is an answer that ends an outage of its address."""
        if isinstance(error, ConnectionFailed):
            self._leave_out((sent.address, None), sent)
        elif isinstance(error, DeadlineExceeded):
            # A server that answered nothing in all that time hangs; the request of one that did is a long one.
            if self._answers[sent.address] == sent.answers:
                self._leave_out((sent.address, None), sent)
        elif is_not_loaded(error) or (isinstance(error, Unavailable) and not _BUSY.search(str(error))):
            self._answers[sent.address] += 1
            restored = self._restore((sent.address, None), sent)
            self._leave_out((sent.address, sent.model), sent)
            return restored
        elif not isinstance(error, Cancelled | InvalidArgument):  # which the client itself may have raised
            return self.answered(sent)
        return False

    def _leave_out(self, key: _Key, sent: Sent) -> None:
        known = self._outages.get(key)
        if known is not None and sent.number <= known.noted:
            return
        failures = 0 if known is None else known.failures + 1
        self._outages[key] = _Outage(failures, self._clock() + pause_s(failures, self._uniform()), self._sent)

    def _restore(self, key: _Key, sent: Sent) -> bool:
        known = self._outages.get(key)
        if known is None or sent.number <= known.noted:
            return False
        del self._outages[key]
        return True
