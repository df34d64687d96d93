"""Boundary between Triton and one engine, which is synchronous: `execute` returns the responses.

This is what lets Triton change the number of instances of a loaded model: it waits until `execute` returns, but not
for answers that are sent later.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from tidal.access_log.record import RequestRecord
from tidal.access_log.writer import open_access_log
from tidal.engine_model.claims import CoreClaim, GpuClaim, claims_folder
from tidal.engine_model.manifest import EngineManifest, load_engine_manifest
from tidal.engine_model.model import Array, open_engine_model
from tidal.engine_model.parameters import EngineParameters
from tidal.errors import Internal, TidalError, Unsupported
from tidal.gpus import visible_gpus
from tidal.metrics import Counter
from tidal.options import FROM_MODEL, parse_options
from tidal.serving.endings import deadline_passed, failure
from tidal.tracing.tracing import open_tracing
from tidal.triton.errors import error_response
from tidal.triton.logs import model_logger
from tidal.triton.parameters import parse_own_parameters
from tidal.triton.raw_parameters import has_parameter, read_parameters, wants_coded_errors
from tidal.triton.trace_context import caller, parameter_traceparent

# Least time between two attempts of an instance to claim a core.
_CLAIM_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class _Request:
    """A request that was read.

    Attributes:
        inputs: Arrays by input name.
        latency_ms: Deadline in milliseconds after arrival; None for none.
        traceparent: Trace context of the caller; empty for none.
    """

    inputs: dict[str, Array]
    latency_ms: float | None
    traceparent: str


class EngineHost:
    """Runs one instance of an `engine` model inside Triton's Python stub.

    Args:
        args: Arguments of Triton's `initialize`.

    Raises:
        InvalidArgument: The config or the published version is not accepted; the model's load fails with this reason.
    """

    def __init__(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        parameters = parse_own_parameters(config.get("parameters", {}), EngineParameters)
        self._instance = args["model_instance_name"]
        name, version = args["model_name"], int(args["model_version"])
        self._log = model_logger(name, version)
        self._access_log = open_access_log(name, version, self._log, Counter())
        self._tracing = open_tracing("engine", name, version, self._log)
        self._outputs = tuple(each["name"] for each in config["output"])
        version_dir = Path(args["model_repository"]) / args["model_version"]
        manifest = load_engine_manifest(version_dir)
        self._core: CoreClaim | None = None
        self._gpu: GpuClaim | None = None
        self._claim_at = 0.0
        if parameters.pin:
            self._claim_device(manifest)
        self._model = open_engine_model(manifest, version_dir)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Return one response per request; an invalid one is answered alone, one past its deadline is not run."""
        arrival = time.monotonic()
        self._take_core()
        read = [self._read(raw) for raw in requests]
        accepted = [each for each in read if not isinstance(each, TidalError)]

        def overdue(place: int) -> TidalError | None:
            latency_ms, passed_ms = accepted[place].latency_ms, (time.monotonic() - arrival) * 1e3
            if latency_ms is None or passed_ms < latency_ms:
                return None
            return deadline_passed(latency_ms, "the request could run")

        ran = iter(self._model.run([each.inputs for each in accepted], overdue))
        answers = [each if isinstance(each, TidalError) else next(ran) for each in read]
        if self._access_log is not None or self._tracing is not None:
            self._record(requests, read, answers, arrival)
        return [self._response(raw, answer) for raw, answer in zip(requests, answers, strict=True)]

    def finalize(self) -> None:
        """Release the core or GPU now, rather than at the end of the process."""
        if self._access_log is not None:
            self._access_log.close()
        if self._tracing is not None:
            self._tracing.close()
        for claim in (self._core, self._gpu):
            if claim is not None:
                claim.release()

    def _read(self, raw: Any) -> _Request | TidalError:
        try:
            parameters = read_parameters(raw)
            options = parse_options(parameters)
            inputs = {tensor.name(): tensor.as_numpy() for tensor in raw.inputs()}
            return _Request(inputs, options.latency_ms, parameter_traceparent(parameters))
        except Exception as error:
            return failure(error, "the request could not be read")

    def _response(self, raw: Any, answer: dict[str, Array] | TidalError) -> Any:
        if isinstance(answer, TidalError):
            return error_response(answer, coded=wants_coded_errors(raw))
        wanted = raw.requested_output_names() or self._outputs
        missing = [name for name in wanted if name not in answer]
        if missing:
            return error_response(
                Internal(f"the output '{missing[0]}' is declared in config.pbtxt, but the engine does not give it")
            )
        return pb_utils.InferenceResponse(
            output_tensors=[pb_utils.Tensor(name, np.ascontiguousarray(answer[name])) for name in wanted]
        )

    def _record(
        self,
        requests: Sequence[Any],
        read: Sequence[_Request | TidalError],
        answers: Sequence[dict[str, Array] | TidalError],
        arrival: float,
    ) -> None:
        """Write the request log's lines and the spans of requests that ran from `arrival` until now."""
        now = time.monotonic()
        rows = [len(next(iter(each.inputs.values()), ())) if isinstance(each, _Request) else None for each in read]
        ran = sum(count or 0 for count, each in zip(rows, answers, strict=True) if not isinstance(each, TidalError))
        for raw, request, count, answer in zip(requests, read, rows, answers, strict=True):
            record = RequestRecord(raw.request_id(), arrival, rows=count, from_model=has_parameter(raw, FROM_MODEL))
            if self._tracing is not None:
                sent = request.traceparent if isinstance(request, _Request) else ""
                self._tracing.begin(record, caller(raw, sent))
            code = answer.code if isinstance(answer, TidalError) else "OK"
            if code == "OK":
                record.ran(arrival, now, ran)
            if self._access_log is not None:
                self._access_log.write(record, code, now)
            if self._tracing is not None:
                self._tracing.end(record, code, now)

    def _claim_device(self, manifest: EngineManifest) -> None:
        """Claim a core or a GPU before the engine is opened, because its threads and CUDA inherit the setting."""
        try:
            if manifest.device.kind == "gpu" and len(visible_gpus()) > 1:
                self._gpu = GpuClaim(claims_folder(), visible_gpus())
                gpu = self._gpu.acquire()
                self._log.info(f"{self._instance} runs on GPU {gpu}")
            elif manifest.device.kind == "cpu" and manifest.threads == 1:
                self._core = CoreClaim(claims_folder())
                self._take_core()
        except Unsupported as error:
            self._serve_unpinned(error)

    def _serve_unpinned(self, error: Unsupported) -> None:
        self._core = self._gpu = None
        self._log.warning(f"{self._instance} runs without a core or GPU of its own: {error}")

    def _take_core(self) -> None:
        if self._core is None or self._core.core is not None:
            return
        now = time.monotonic()
        if now < self._claim_at:
            return
        self._claim_at = now + _CLAIM_EVERY_S
        try:
            taken = self._core.acquire()
        except Unsupported as error:
            self._serve_unpinned(error)
            return
        if taken:
            self._log.info(f"{self._instance} runs on core {self._core.core}")
