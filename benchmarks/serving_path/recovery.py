"""Time from killing a model's Python process until the model answers again."""

from __future__ import annotations

import asyncio
import time

import psutil

from benchmarks.texts import TextMaker
from tidal.server.child import RunningServer
from tidal.server.stubs import live_stubs
from tidal_client import AsyncClient, RequestError

_EVERY_S = 0.1
_GIVE_UP_S = 60.0


def measure(server: RunningServer, model: str, maker: TextMaker) -> float:
    """Kill a model's idle stub and send a query every 0.1 s; return the seconds from the kill to the first answer.

    Raises:
        RuntimeError: No query was answered within a minute.
    """
    for stub in live_stubs(server.state.server_pid):
        if stub.model == model:
            psutil.Process(stub.pid).kill()
    return asyncio.run(_first_answer(server.grpc, model, maker, time.monotonic()))


async def _first_answer(url: str, model: str, maker: TextMaker, killed: float) -> float:
    answered: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    async with AsyncClient(url, timeout_s=5) as client:

        async def one() -> None:
            try:
                await client.classify(model, maker.text(25), outputs=["label"])
            except RequestError:
                return
            if not answered.done():
                answered.set_result(time.monotonic() - killed)

        asked = []
        while not answered.done():
            if time.monotonic() > killed + _GIVE_UP_S:
                raise RuntimeError(f"model '{model}' has not answered within {_GIVE_UP_S:.0f} s of the kill")
            asked.append(asyncio.create_task(one()))
            await asyncio.sleep(_EVERY_S)
        await asyncio.gather(*asked)
    return answered.result()
