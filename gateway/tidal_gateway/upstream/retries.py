"""Whether a request is sent again after an outage cut it off."""

from __future__ import annotations

import time
from typing import Final

from tidal_gateway.upstream.calls import Outgoing
from tidal_gateway.upstream.outages import Outage
from tidal_gateway.upstream.policies import RetryBudget

#: Maximum number of processes that may die with one request, which may be what ends them.
MAX_ATTEMPTS: Final = 4


class Retries:
    """Decides on retries.

    The first retry of a request after each outage is always allowed. All other retries are at most a share of the
    requests to the same model in a window, so that no storm arises and no model uses the share of another one.

    Args:
        ratio: Maximum number of other retries per request.
    """

    def __init__(self, ratio: float) -> None:
        self._ratio = ratio
        self._budgets: dict[str, RetryBudget] = {}
        self.counts = {"died": 0, "budget": 0, "refused": 0}

    def began(self, model: str) -> None:
        """Record a request to a model."""
        budget = self._budgets.get(model)
        if budget is None:
            budget = self._budgets[model] = RetryBudget(self._ratio)
        budget.sent(time.monotonic())

    def allows(self, request: Outgoing, outage: Outage, begun: bool) -> bool:
        """Record a retry and return True; False, and nothing recorded, if it is not allowed.

        Args:
            request: Request that was cut off.
            outage: Outage that did so.
            begun: Whether the process may have begun the request, so that the request may be what ended it.
        """
        lost = request.lost + begun
        if lost >= MAX_ATTEMPTS:
            return False
        reason = "died"
        if outage.number in request.outages:
            reason = "budget"
            if not self._budgets[request.model].allow(time.monotonic()):
                self.counts["refused"] += 1
                return False
        request.outages.add(outage.number)
        request.lost, request.retries = lost, request.retries + 1
        self.counts[reason] += 1
        return True
