"""Redis for the state of Ray's head, with which nodes stay in their cluster while a lost head is started again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

from tidal.errors import InvalidArgument, Unavailable
from tidal.repository.cluster_table import check_address

_FORGET_S = 30.0
# Ray's function may end the process that calls it, as without a connection.
_FORGET = (
    "import sys; from ray._private.gcs_utils import cleanup_redis_storage as forget; "
    "sys.exit(not forget(sys.argv[1], int(sys.argv[2]), '', False, sys.argv[3]))"
)


def check_redis(address: str, port: int, *, kept_secret: bool) -> None:
    """Check that a head with its state in Redis can be started again as the same one.

    Args:
        address: `host:port` of Redis.
        port: Port of the head.
        kept_secret: Whether the head has the same secret when it is started again.

    Raises:
        InvalidArgument: The address is not valid, or the head would have another port or secret.
    """
    try:
        check_address(address)
    except ValueError as error:
        raise InvalidArgument(f"--redis: {error}") from None
    if not port:
        raise InvalidArgument("--redis needs a fixed --port: nodes look for a restarted head where it was")
    if not kept_secret:
        raise InvalidArgument(
            "--redis needs --token-file: nodes have the secret of the lost head, so a restarted one needs the same; "
            "write one with `openssl rand -hex 32`"
        )


def redis_variables(address: str, head: str) -> Mapping[str, str]:
    """Return what Ray's processes of a head read from their environment.

    Args:
        address: `host:port` of Redis.
        head: `host:port` of the head.
    """
    return {"RAY_REDIS_ADDRESS": address, "RAY_external_storage_namespace": _namespace(head)}


def forget_head(address: str, head: str) -> None:
    """Remove the state of a head, so that the next one begins a new cluster.

    Args:
        address: `host:port` of Redis.
        head: `host:port` of the head.

    Raises:
        Unavailable: Redis does not answer.
    """
    host, _, port = address.rpartition(":")
    command = [sys.executable, "-c", _FORGET, host.strip("[]"), port, _namespace(head)]
    try:
        ended = subprocess.run(command, capture_output=True, timeout=_FORGET_S, check=False)
    except subprocess.TimeoutExpired:
        ended = None
    if ended is None or ended.returncode:
        raise Unavailable(
            f"the state of the head at {head} is still in Redis at {address}, which does not answer: a head that is "
            "started there again continues that cluster"
        )


def _namespace(head: str) -> str:
    """Return the prefix of a head's keys; a head that is started again has the same."""
    return f"tidal_{head.replace(':', '_')}"
