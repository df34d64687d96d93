"""Ray Serve around the OpenVINO model, with its own batching."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys

import numpy as np
import ray
from openvino_encoder import Encoder
from ray import serve
from starlette.requests import Request
from starlette.responses import Response


class EncoderReplica:
    """A replica.

    Args:
        settings: Settings of the server.
    """

    def __init__(self, settings: dict) -> None:
        self._encoder = Encoder(settings, settings["threads"])
        self._batched.set_max_batch_size(settings["max_batch"])
        self._batched.set_batch_wait_timeout_s(settings["wait_s"])

    @serve.batch
    async def _batched(self, requests: list) -> list:
        # On a thread, so that the event loop receives further requests.
        found = await asyncio.to_thread(self._encoder.infer, [row for rows in requests for row in rows])
        return np.split(found, np.cumsum([len(rows) for rows in requests])[:-1])

    async def __call__(self, request: Request) -> Response:
        """Return the bytes of a request's values."""
        if request.method == "GET":
            return Response()
        values = await self._batched(json.loads(await request.body())["rows"])
        return Response(values.tobytes(), media_type="application/octet-stream")


def main(settings: dict) -> None:
    """Serve until a signal arrives."""
    path = os.pathsep.join(sys.path)
    ray.init(
        num_cpus=8,  # logical: its own actors need some
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        object_store_memory=200_000_000,
        log_to_driver=False,
        logging_level="warning",
        runtime_env={"env_vars": {"PYTHONPATH": path}},
    )
    serve.start(
        http_options={"host": "127.0.0.1", "port": settings["port"]},
        logging_config={"enable_access_log": False, "log_level": "WARNING"},
    )
    deployment = serve.deployment(
        EncoderReplica, num_replicas=settings["workers"], max_ongoing_requests=256, ray_actor_options={"num_cpus": 1}
    )
    serve.run(deployment.bind(settings), name="encoder", route_prefix="/")
    print("ready", flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, ())
    main(json.loads(sys.argv[1]))
