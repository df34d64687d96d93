"""Looking at a running tritonserver regularly and recording which of its models answer."""

from __future__ import annotations

import logging
import threading

from tidal.errors import TidalError
from tidal.server.control import ServerControl
from tidal.server.readiness import ModelReadiness, ReadinessObservation, WantedModels, evaluate
from tidal.server.status import ServeStatus
from tidal.server.supervision import Supervisor

POLL_S = 0.5
# A hung tritonserver must not keep the next look for long.
_ANSWER_S = 5.0

_log = logging.getLogger("tidal.serve")


class ReadinessWatch:
    """Judges the readiness of a server's models every `POLL_S` seconds."""

    def __init__(
        self, control: ServerControl, supervisor: Supervisor, status: ServeStatus, wanted: WantedModels
    ) -> None:
        """Watch a server.

        Args:
            control: its admin side.
            supervisor: says which models are being restarted.
            status: where the result goes.
            wanted: what was wanted before.
        """
        self._control = control
        self._supervisor = supervisor
        self._status = status
        self.wanted = wanted

    def run(self, stop: threading.Event) -> None:
        """Look until `stop` is set."""
        while True:
            try:
                report = self.look()
                if report is not None:
                    self._status.observed(report)
            except TidalError:  # it ends, or hangs: the status knows since when it has not answered
                pass
            except Exception:
                _log.exception("readiness could not be judged; trying again")
            if stop.wait(POLL_S):
                return

    def look(self) -> dict[str, ModelReadiness] | None:
        """Look once.

        Returns:
            Readiness by model name; None where a restart ended meanwhile, so that the answer may be out of date.

        Raises:
            Unavailable: the server does not answer.
        """
        before = self._supervisor.failing_models()
        index = self._control.index(_ANSWER_S)
        after = self._supervisor.failing_models()
        # A restart that began or ended while the server answered explains what the answer shows, too.
        interrupted = {**before.interrupted, **after.interrupted}
        unrecovered = {**before.unrecovered, **after.unrecovered}
        if before.interrupted.keys() - after.interrupted.keys():
            return None
        report, self.wanted = evaluate(self.wanted, ReadinessObservation(index, interrupted, unrecovered))
        return report
