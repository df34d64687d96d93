"""Polling a running tritonserver and recording which of its models answer."""

from __future__ import annotations

import logging
import threading

from tidal.errors import TidalError
from tidal.server.control import ServerControl
from tidal.server.readiness import ModelReadiness, ReadinessObservation, WantedModels, evaluate
from tidal.server.status import ServeStatus
from tidal.server.supervision import Supervisor

POLL_S = 0.5
# A hung tritonserver must not delay the next poll for long.
_ANSWER_S = 5.0

_log = logging.getLogger("tidal.serve")


class ReadinessWatch:
    """Evaluates the readiness of a server's models every `POLL_S` seconds."""

    def __init__(
        self, control: ServerControl, supervisor: Supervisor, status: ServeStatus, wanted: WantedModels
    ) -> None:
        """Create a watch; `run` starts it.

        Args:
            control: Admin API of the server.
            supervisor: Supervisor of the server, for the models that it is restarting.
            status: Receiver of the results.
            wanted: Models that were wanted before.
        """
        self._control = control
        self._supervisor = supervisor
        self._status = status
        self.wanted = wanted

    def run(self, stop: threading.Event) -> None:
        """Poll until `stop` is set."""
        while True:
            try:
                report = self.poll()
                if report is not None:
                    self._status.observed(report)
            except TidalError:  # it ends, or hangs: the status measures since when it has not answered
                pass
            except Exception:
                _log.exception("readiness could not be evaluated; trying again")
            if stop.wait(POLL_S):
                return

    def poll(self) -> dict[str, ModelReadiness] | None:
        """Poll once.

        Returns:
            Readiness by model name; None where a restart ended during the poll, so that the answer may be out of date.

        Raises:
            Unavailable: The server does not answer.
        """
        before = self._supervisor.failing_models()
        index = self._control.index(_ANSWER_S)
        after = self._supervisor.failing_models()
        # A restart that began or ended while the server answered explains the answer, too.
        interrupted = {**before.interrupted, **after.interrupted}
        unrecovered = {**before.unrecovered, **after.unrecovered}
        if before.interrupted.keys() - after.interrupted.keys():
            return None
        report, self.wanted = evaluate(self.wanted, ReadinessObservation(index, interrupted, unrecovered))
        return report
