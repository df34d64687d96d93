"""FastAPI around OpenVINO's AsyncInferQueue: each text is an inference of its own."""

from __future__ import annotations

import asyncio
import json
import os
import sys

import numpy as np
import uvicorn
from fastapi import FastAPI, Request, Response
from openvino import AsyncInferQueue
from openvino_encoder import Encoder

_SETTINGS = "PEER_SETTINGS"


def make_app() -> FastAPI:
    """Return the application of a worker process."""
    settings = json.loads(os.environ[_SETTINGS])
    encoder = Encoder(settings, settings["threads"], settings["streams"])
    jobs = AsyncInferQueue(encoder.compiled, settings["jobs"])
    # `start_async` blocks the event loop while all jobs are busy: wait for a free one before.
    free = asyncio.Semaphore(settings["jobs"])

    def ended(request: object, started: tuple) -> None:
        loop, future = started
        loop.call_soon_threadsafe(future.set_result, encoder.output(request.results))

    jobs.set_callback(ended)
    app = FastAPI()

    async def infer(row: object) -> np.ndarray:
        inputs = encoder.tokenize([row])
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        async with free:
            jobs.start_async(inputs, (loop, future))
            return await future

    @app.post("/encode")
    async def encode(request: Request) -> Response:
        rows = json.loads(await request.body())["rows"]
        found = await asyncio.gather(*map(infer, rows))
        return Response(np.concatenate(found).tobytes(), media_type="application/octet-stream")

    @app.get("/health")
    async def health() -> Response:
        return Response()

    return app


if __name__ == "__main__":
    os.environ[_SETTINGS] = sys.argv[1]
    given = json.loads(sys.argv[1])
    uvicorn.run(
        "fastapi_server:make_app",
        factory=True,
        host="127.0.0.1",
        port=given["port"],
        workers=given["workers"],
        access_log=False,
        log_level="warning",
    )
