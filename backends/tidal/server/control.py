"""Client of a server's admin API: over HTTP, except for loads.

It uses urllib: tritonclient's gevent loop would interfere with the signals and child processes of its users.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidal.errors import Internal, NotFound, Unavailable
from tidal.server.local_http import open_url

# `tidal serve` restricts the admin endpoints by this header, over gRPC by this metadata entry.
ADMIN_HEADER = "tidal-admin-key"
ADMIN_GRPC_METADATA = f"triton-grpc-protocol-{ADMIN_HEADER}"
ADMIN_APIS = ("model-repository", "shared-memory", "logging", "trace")
_QUICK_S = 10.0
# A load returns when the model serves; compiling and warming up a large one takes minutes.
_LOAD_S = 3600.0


@dataclass(frozen=True, slots=True)
class ModelState:
    """A version of a model in the server's repository index.

    Attributes:
        name: Name of the model.
        version: Number of the version.
        state: State by Triton, such as `READY` or `UNAVAILABLE`.
        reason: Reason of the state; may be empty.
    """

    name: str
    version: int
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class ServerControl:
    """Admin API of one server.

    Attributes:
        address: `host:port` of its HTTP endpoint.
        key: Admin key; None where the endpoints are not restricted.
        grpc: `host:port` of its gRPC endpoint, for loads: over HTTP they would block inference of other HTTP clients.
            None sends loads over HTTP.
    """

    address: str
    key: str | None = None
    grpc: str | None = None

    def live(self) -> bool:
        """Whether the server answers at all; it may before all models are ready."""
        try:
            self._call("GET", "/v2/health/live", None, 2.0)
        except (Unavailable, Internal):
            return False
        return True

    def version(self) -> str:
        """Version of the server."""
        return str(self._call("GET", "/v2", None, _QUICK_S)["version"])

    def index(self, timeout_s: float = _QUICK_S) -> list[ModelState]:
        """Every version of every model that the server has tried to load."""
        rows = self._call("POST", "/v2/repository/index", {}, timeout_s)
        return [
            ModelState(r["name"], int(r["version"]), r["state"], r.get("reason", ""))
            for r in rows
            if r.get("state") and str(r.get("version", "")).isdigit()
        ]

    def config(self, model: str, version: int) -> dict[str, Any]:
        """The active config of a READY version.

        Raises:
            NotFound: The version does not serve.
        """
        return dict(self._call("GET", f"/v2/models/{model}/versions/{version}/config", None, _QUICK_S))

    def load(self, model: str, config: Mapping[str, Any] | None) -> None:
        """Load or reload a model and wait until it serves.

        Args:
            model: Name of the model.
            config: Complete config that replaces config.pbtxt; None for config.pbtxt.

        Raises:
            Internal: Triton's reason; the version that served before keeps serving.
        """
        if self.grpc is not None:
            # Imported at the first load: most users of this class load no model.
            from tidal.server.loading import load_over_grpc

            metadata = {} if self.key is None else {ADMIN_GRPC_METADATA: self.key}
            load_over_grpc(self.grpc, model, config, metadata, _LOAD_S)
            return
        body = {"parameters": {"config": json.dumps(config)}} if config is not None else {}
        self._call("POST", f"/v2/repository/models/{model}/load", body, _LOAD_S)

    def unload(self, model: str) -> None:
        """Take a model out of service; returns before its requests in flight are answered."""
        self._call("POST", f"/v2/repository/models/{model}/unload", {}, _QUICK_S)

    def _call(self, method: str, path: str, body: object, timeout_s: float) -> Any:
        request = urllib.request.Request(f"http://{self.address}{path}", method=method)
        if body is not None:
            request.data = json.dumps(body).encode()
        if self.key is not None:
            request.add_header(ADMIN_HEADER, self.key)
        try:
            with open_url(request, timeout_s) as response:
                content = response.read()
        except urllib.error.HTTPError as error:
            raise self._refused(error) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise Unavailable(f"no server answers at {self.address}: {reason}") from None
        return json.loads(content) if content else None

    def _refused(self, error: urllib.error.HTTPError) -> Internal | NotFound | Unavailable:
        content = error.read().decode(errors="replace")
        try:
            message = str(json.loads(content)["error"])
        except (ValueError, KeyError, TypeError):
            message = content.strip() or f"HTTP status {error.code}"
        if error.code == 403:
            return Unavailable(
                f"the server at {self.address} requires its admin key: set TIDAL_ADMIN_KEY, or run this as the user "
                "who started it"
            )
        return NotFound(message) if error.code == 404 else Internal(message)
