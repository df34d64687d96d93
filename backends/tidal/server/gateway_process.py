"""The gateway of `tidal serve --gateway-port`: a process beside tritonserver, restarted where it ends by itself."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidal.errors import Internal, InvalidArgument
from tidal.server.backoff import Restarts
from tidal.server.process import end_with_parent

_USAGE = 2
_READ_BYTES = 1 << 16

_log = logging.getLogger("tidal.serve")


@dataclass(frozen=True, slots=True)
class GatewayLaunch:
    """Everything that the gateway is started with.

    Attributes:
        port: Port to listen on; 0 for a free one.
        config: YAML file of `tidal gateway --config`; None for none.
        server: Server as `tidal gateway --server` accepts it.
        log: File for its log; None for stderr.
        exit_timeout_s: Time in seconds for requests in flight at shutdown, after the drain time of its settings.
        environment: Further settings, as environment variables.
    """

    port: int
    config: Path | None
    server: str
    log: Path | None
    exit_timeout_s: int
    environment: Mapping[str, str] = field(default_factory=dict)

    def command(self, port: int) -> list[str]:
        """Words of the command.

        Args:
            port: Port to listen on.
        """
        words = [sys.executable, "-m", "tidal_client.main", "gateway", "--json", "--port", str(port)]
        words += ["--server", self.server, "--exit-timeout-s", str(self.exit_timeout_s)]
        if self.port == 0:
            words += ["--metrics-port", "0"]
        return words if self.config is None else [*words, "--config", str(self.config)]


class GatewayProcess:
    """A running gateway.

    Args:
        launch: Everything that it is started with.

    Raises:
        InvalidArgument: A setting is not accepted.
        Internal: It does not start; the message has the last line of its log.
    """

    def __init__(self, launch: GatewayLaunch) -> None:
        self._launch = launch
        self._stopping = threading.Event()
        self._begins = 0 if launch.log is None or not launch.log.exists() else launch.log.stat().st_size
        self._process = self._start(launch.port)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._failure(self._process.wait())
        report: dict[str, Any] = json.loads(line)
        self.url, self.metrics = str(report["url"]), str(report["metrics"])
        threading.Thread(target=self._watch, name="gateway", daemon=True).start()

    @property
    def log(self) -> Path | None:
        """File with its log; None where it goes to stderr."""
        return self._launch.log

    def stop(self, now: threading.Event) -> None:
        """Stop it: drain requests in flight, then kill it after the timeout.

        Args:
            now: Event that kills it at once.
        """
        if self._stopping.is_set():
            return
        self._stopping.set()
        process = self._process
        process.terminate()
        # It drains before its exit timeout begins, for a time that its own settings say.
        while process.poll() is None and not now.is_set():
            time.sleep(0.05)
        if process.poll() is None:
            process.kill()
            process.wait()

    def _start(self, port: int) -> subprocess.Popen[str]:
        environment = {name: value for name, value in os.environ.items() if name != "TIDAL_ADMIN_KEY"}
        environment |= self._launch.environment
        log = None if self._launch.log is None else self._launch.log.open("ab")
        try:
            return subprocess.Popen(
                self._launch.command(port),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log or sys.stderr,
                text=True,
                # Ctrl-C at a terminal is for this process, which stops it first.
                start_new_session=True,
                preexec_fn=end_with_parent,  # noqa: PLW1509  (it acquires no lock)
            )
        finally:
            if log is not None:
                log.close()

    def _watch(self) -> None:
        """Pass on what it prints, and start it again where it ends by itself."""
        restarts = Restarts()
        while True:
            process = self._process
            assert process.stdout is not None
            for line in process.stdout:  # its access log, where that goes to standard output
                sys.stdout.write(line)
                sys.stdout.flush()
            status = process.wait()
            if self._stopping.is_set():
                return
            restarts = Restarts() if restarts.stable(time.monotonic()) else restarts
            _log.error("the gateway ended by itself (exit status %d): starting it again", status)
            if self._stopping.wait(restarts.pause_s(time.monotonic())):
                return
            restarts = restarts.restarted(time.monotonic())
            self._process = self._start(int(self.url.rpartition(":")[2]))
            if self._stopping.is_set():  # `stop` may have ended the one before
                self._process.terminate()
            assert self._process.stdout is not None
            self._process.stdout.readline()

    def _failure(self, status: int) -> Exception:
        reason = "its log is above"
        if self._launch.log is not None:
            with self._launch.log.open("rb") as file:
                file.seek(max(self._begins, self._launch.log.stat().st_size - _READ_BYTES))
                lines = file.read().decode(errors="replace").strip().splitlines()
            reason = lines[-1].removeprefix("error: ") if lines else "it wrote no log"
        message = f"the gateway does not start: {reason}"
        return InvalidArgument(message) if status == _USAGE else Internal(message)


@contextmanager
def gateway_process(launch: GatewayLaunch | None, now: threading.Event) -> Iterator[GatewayProcess | None]:
    """Run the gateway until the block ends, or its `stop` is called.

    Args:
        launch: Everything that it is started with; None for no gateway.
        now: Event that kills it at once.

    Raises:
        TidalError: It does not start.
    """
    if launch is None:
        yield None
        return
    gateway = GatewayProcess(launch)
    try:
        yield gateway
    finally:
        gateway.stop(now)
