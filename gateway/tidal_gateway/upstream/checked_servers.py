"""The servers that a pool uses, with the tasks that check them, while the list of servers changes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from tidal_gateway.upstream.server import Server

# Time between two looks at whether a server that is no longer listed has answered its requests.
_RETIRE_S: Final = 0.2


class CheckedServers:
    """Servers that are checked all the time.

    Args:
        servers: Servers at the start.

    Attributes:
        listed: Servers that get requests if they are up; the list stays the same object.
    """

    def __init__(self, servers: Sequence[Server]) -> None:
        self.listed = list(servers)
        self._checks: dict[Server, asyncio.Task[None]] = {}
        self._retiring: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Check every server once and keep checking them."""
        await asyncio.gather(*(server.check() for server in self.listed))
        self._checks = {server: asyncio.create_task(server.run()) for server in self.listed}

    async def replace(self, servers: Sequence[Server]) -> None:
        """List these servers instead, after a first check of the new ones.

        Those that are left out get no further requests, and are closed when they have answered those that they have.
        """
        new = [server for server in servers if server not in self._checks]
        self._checks.update({server: asyncio.create_task(server.run()) for server in new})
        await asyncio.gather(*(server.check() for server in new))
        left = [server for server in self.listed if server not in servers]
        self.listed[:] = servers
        for server in left:
            task = asyncio.create_task(self._retire(server))
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)

    async def close(self) -> None:
        """Stop the checks and close the connections; requests in flight are cancelled."""
        tasks = [*self._checks.values(), *self._retiring]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(server.close() for server in self._checks))

    async def _retire(self, server: Server) -> None:
        while server.calls:  # its checks go on: they notice calls whose process has died
            await asyncio.sleep(_RETIRE_S)
        self._checks.pop(server).cancel()
        await server.close()
