"""Reads the servers once a second while the console has viewers: one sampler per worker, shared by all of them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

from tidal_client.live.recorder import Recorder
from tidal_gateway.errors import Refusal
from tidal_gateway.live.frames import Frame, frame
from tidal_gateway.live.sources import read_servers
from tidal_gateway.upstream.server import Server

#: Seconds between two readings.
INTERVAL_S: Final = 1.0
#: Readings take at most this share of a processor: those of many models are taken less often.
MAX_SHARE: Final = 0.05
#: Number of frames that a new viewer is shown of the time before.
HISTORY: Final = 120

_log = logging.getLogger("tidal_gateway")


class Sampler:
    """Frames for the viewers of the console.

    Args:
        servers: Servers behind the gateway.
        max_viewers: Maximum number of concurrent viewers.
        interval_s: Seconds between two readings.
    """

    def __init__(self, servers: Sequence[Server], max_viewers: int, interval_s: float = INTERVAL_S) -> None:
        self._servers, self._max_viewers, self._interval_s = servers, max_viewers, interval_s
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self.history: deque[Frame] = deque(maxlen=HISTORY)
        self.viewers = 0
        self._number = 0

    @asynccontextmanager
    async def viewer(self) -> AsyncGenerator[None, None]:
        """Count a viewer until the block ends; the servers are read while there is one.

        Raises:
            Refusal: There are too many viewers.
        """
        if self.viewers >= self._max_viewers:
            raise Refusal(
                429,
                f"the console has {self.viewers} viewers in this worker; accepted are up to console_viewers, "
                f"{self._max_viewers}: close another one, or use `tidal top`",
                code="too_many_viewers",
                retry_after_s=10,
            )
        self.viewers += 1
        if self._task is None:
            self.history.clear()
            self._task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            self.viewers -= 1
            if not self.viewers:
                await self._stop()

    async def newer(self, seen: int, timeout_s: float) -> Frame | None:
        """Return the newest frame if it is newer than one seen; a slow viewer misses some.

        Args:
            seen: Field `number` of the frame seen last; 0 for none.
            timeout_s: Longest time to wait, in seconds.

        Returns:
            The frame; None where there is none in time.
        """
        if not self.history or self.history[-1]["number"] <= seen:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._changed.wait()
        found = self.history[-1] if self.history else None
        return found if found is not None and found["number"] > seen else None

    async def _stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        recorder = Recorder()
        while True:
            began, cpu_s = time.monotonic(), 0.0
            try:
                cpu_s = await self._sample(recorder)
            except Exception:  # a page of metrics of another form must not end the console
                _log.exception("the servers could not be read for the console")
            else:
                # Wakes those who wait now.
                changed, self._changed = self._changed, asyncio.Event()
                changed.set()
            await asyncio.sleep(pause_s(time.monotonic() - began, cpu_s, self._interval_s))

    async def _sample(self, recorder: Recorder) -> float:
        """Add a frame, and return the processor time that it took, in seconds."""
        readings = await read_servers([(each.address, each.status) for each in self._servers])
        began = time.thread_time()
        for each in readings:
            if each.scrape is None:
                recorder.drop(each.address)
            else:
                recorder.add(each.address, each.scrape)
        self._number += 1
        self.history.append({"number": self._number, **frame(recorder, readings, self._servers)})
        return time.thread_time() - began + sum(each.cpu_s for each in readings)


def pause_s(took_s: float, cpu_s: float, interval_s: float) -> float:
    """Return the seconds from the end of a reading to the next one.

    Args:
        took_s: Duration of the reading, in seconds.
        cpu_s: Processor time that it took, in seconds.
        interval_s: Seconds between two readings, where they do not take more than `MAX_SHARE` of a processor.
    """
    return max(0.0, max(interval_s, cpu_s / MAX_SHARE) - took_s)
