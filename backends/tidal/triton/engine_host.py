"""Between Triton and one engine, synchronously: `execute` returns the responses.

Only so may Triton change the number of instances in place: it waits for an `execute` that runs, but not for answers
that are sent later.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from tidal.engine_model.cores import CoreClaim, claims_folder
from tidal.engine_model.model import Array, open_engine_model
from tidal.engine_model.parameters import EngineParameters
from tidal.errors import Internal, TidalError, Unsupported
from tidal.manifest import load_engine_manifest
from tidal.options import parse_options
from tidal.triton.errors import error_response
from tidal.triton.logs import model_logger
from tidal.triton.parameters import parse_own_parameters

# An instance that found no free core looks again at most this often.
_CLAIM_EVERY_S = 1.0


class EngineHost:
    """Runs one instance of an `engine` model inside Triton's Python stub.

    Args:
        args: what Triton passes to `initialize`.

    Raises:
        InvalidArgument: the config or the published version is not acceptable, so that the load fails with the reason.
    """

    def __init__(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        parameters = parse_own_parameters(config.get("parameters", {}), EngineParameters)
        self._instance = args["model_instance_name"]
        self._log = model_logger(args["model_name"], int(args["model_version"]))
        self._outputs = tuple(each["name"] for each in config["output"])
        version_dir = Path(args["model_repository"]) / args["model_version"]
        manifest = load_engine_manifest(version_dir)
        self._claim: CoreClaim | None = None
        if parameters.pin and manifest.threads == 1 and manifest.device.kind == "cpu":
            self._claim = self._new_claim()
        self._claim_at = 0.0
        self._try_claim()  # before the engine starts threads, which inherit it
        self._model = open_engine_model(manifest, version_dir)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """One response a request; a bad request is answered alone."""
        self._try_claim()
        read = [self._read(raw) for raw in requests]
        answers = iter(self._model.run([inputs for inputs in read if not isinstance(inputs, TidalError)]))
        return [
            self._response(raw, inputs if isinstance(inputs, TidalError) else next(answers))
            for raw, inputs in zip(requests, read, strict=True)
        ]

    def finalize(self) -> None:
        """Free the core at once; the kernel does it at the process's end otherwise."""
        if self._claim is not None:
            self._claim.release()

    def _read(self, raw: Any) -> dict[str, Array] | TidalError:
        try:
            parameters = raw.parameters()
            parse_options(json.loads(parameters) if parameters else None)
            return {tensor.name(): tensor.as_numpy() for tensor in raw.inputs()}
        except TidalError as error:
            return error
        except Exception as error:
            return Internal(f"the request could not be read: {error}")

    def _response(self, raw: Any, answer: dict[str, Array] | TidalError) -> Any:
        if isinstance(answer, TidalError):
            return error_response(answer)
        wanted = raw.requested_output_names() or self._outputs
        missing = [name for name in wanted if name not in answer]
        if missing:
            return error_response(
                Internal(f"the output '{missing[0]}' is declared in config.pbtxt, but the engine does not give it")
            )
        return pb_utils.InferenceResponse(
            output_tensors=[pb_utils.Tensor(name, np.ascontiguousarray(answer[name])) for name in wanted]
        )

    def _new_claim(self) -> CoreClaim | None:
        try:
            return CoreClaim(claims_folder(), os.sched_getaffinity(0))
        except Unsupported as error:
            self._log.warning(f"{self._instance} runs on any core: {error}")
            return None

    def _try_claim(self) -> None:
        if self._claim is None or self._claim.core is not None:
            return
        now = time.monotonic()
        if now < self._claim_at:
            return
        self._claim_at = now + _CLAIM_EVERY_S
        if self._claim.claim():
            self._log.info(f"{self._instance} has core {self._claim.core} to itself")
