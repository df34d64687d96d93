"""An emulated device as a replica of Ray Serve; copied next to `emulated_device.py`, where all nodes import it."""

from __future__ import annotations

import asyncio
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
from emulated_device import EmulatedDevice
from google.protobuf.wrappers_pb2 import BytesValue
from ray import serve
from starlette.requests import Request
from starlette.responses import Response

# Names of Triton's service, so that one sender serves both.
SERVICE, METHOD = "inference.GRPCInferenceService", "ModelInfer"


class Device:
    """A replica, which runs one query at a time.

    Args:
        profile: Path of the device's profile.
    """

    def __init__(self, profile: str) -> None:
        self._device = EmulatedDevice(Path(profile))
        self._thread = ThreadPoolExecutor(1)
        self._threaded = False

    def reconfigure(self, config: dict) -> None:
        """Set whether the device waits on a thread of its own, or on the event loop's."""
        self._threaded = config["threaded"]

    async def infer(self, content: bytes) -> bytes:
        """Return the logits of one query, given its token ids."""
        if self._threaded:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._run, content)
        return self._run(content)

    async def __call__(self, request: Request) -> Response:
        """Answer over HTTP."""
        return Response(await self.infer(await request.body()), media_type="application/octet-stream")

    async def ModelInfer(self, message: BytesValue) -> BytesValue:
        """Answer over gRPC."""
        return BytesValue(value=await self.infer(message.value))

    def _run(self, content: bytes) -> bytes:
        began = time.perf_counter()
        tokens = len(np.frombuffer(content, np.int64))
        logits = self._device.zeros(1).tobytes()
        self._device.wait(tokens, began)
        return logits


def add_to_server(servicer: object, server: grpc.Server) -> None:
    """Add the service to a proxy, which routes its calls to replicas."""
    handler = grpc.unary_unary_rpc_method_handler(lambda *_: None, BytesValue.FromString, BytesValue.SerializeToString)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))


app = serve.deployment(Device).bind(os.environ.get("DEVICE_PROFILE", ""))
