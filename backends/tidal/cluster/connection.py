"""Connecting a process to a cluster's Ray, with the cluster's secret, and without leaving the loopback interface."""

from __future__ import annotations

import importlib.util
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tidal.cluster.handles import CONTROLLER, NAMESPACE, first_line
from tidal.errors import TidalError, Unavailable, Unsupported

LOOPBACK = "127.0.0.1"
_REACH_S = 5.0


def check_installed() -> None:
    """Check that Ray is installed.

    Raises:
        Unsupported: It is not; the message has the extra.
    """
    if importlib.util.find_spec("ray") is None:
        raise Unsupported("Ray is not installed: install the extra ray, pip install 'tidal[ray]'")


def environment(token: Path | None) -> dict[str, str]:
    """Return what Ray reads from the environment of each process of a cluster.

    Args:
        token: File with the cluster's secret; None for a cluster without one.
    """
    settings = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",
        # No query passes through Ray, so its processes have nothing to finish before they end.
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
        "RAY_BACKEND_LOG_LEVEL": "warning",
    }
    return settings if token is None else {**settings, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}


def stay_on_loopback() -> None:
    """Keep Ray from replacing 127.0.0.1 by the address of the default route in this process."""
    from ray._private import services

    services.get_node_ip_address = lambda address=None: LOOPBACK


def check_reachable(address: str, what: str = "head") -> None:
    """Check that something listens at the address of a head, or of what else.

    Raises:
        Unavailable: Nothing does.
    """
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _REACH_S).close()
    except OSError as error:
        hint = "; start one with tidal cluster start" if what == "head" else ""
        raise Unavailable(f"no {what} answers at {address}: {error.strerror or error}{hint}") from None


@contextmanager
def connected(address: str, host: str, token: Path | None) -> Iterator[Any]:
    """Connect this process to a cluster for the length of a block; yields the module `ray`.

    Args:
        address: `host:port` of the head.
        host: Address of this machine, on which a process of the cluster has to run.
        token: File with the cluster's secret.

    Raises:
        Unsupported: Ray is not installed.
        Unavailable: The head does not answer, or refuses the secret.
    """
    check_installed()
    check_reachable(address)
    os.environ.update({**environment(token), "RAY_BACKEND_LOG_LEVEL": "error"})  # before Ray is imported
    import ray
    from ray._private import worker
    from ray._raylet import AuthenticationTokenLoader  # type: ignore[attr-defined]

    AuthenticationTokenLoader.instance().reset_cache()  # it keeps the secret of the first cluster of a process
    # Ray prints events of the cluster, such as the loss of a node, on standard output: they would break --json.
    worker.print_to_stdstream = lambda data, ignore_prefix: None
    if host == LOOPBACK:
        stay_on_loopback()
    try:
        ray.init(
            address=address,
            namespace=NAMESPACE,
            _node_ip_address=host,
            logging_level=logging.ERROR,
            log_to_driver=False,
        )
    except Exception as error:  # Ray raises RuntimeError, ConnectionError, its own and gRPC's for the same causes
        ray.shutdown()
        hint = "add its secret with --token-file" if token is None else f"check that its secret is in {token}"
        raise Unavailable(f"the head at {address} does not accept this machine: {first_line(error)}; {hint}") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def call_controller(method: str, *arguments: Any, timeout_s: float = 60.0) -> Any:
    """Call the cluster's controller.

    Args:
        method: Name of the method.
        arguments: Its arguments.
        timeout_s: Longest time for the answer, in seconds; a controller that is being restarted answers late.

    Raises:
        Unavailable: There is no controller, or it does not answer.
        TidalError: What the method raised.
    """
    import ray

    try:
        controller = ray.get_actor(CONTROLLER, namespace=NAMESPACE)
        return ray.get(getattr(controller, method).remote(*arguments), timeout=timeout_s)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, TidalError):
            raise error.cause from None
        raise Unavailable(f"the controller failed: {first_line(error)}") from None
    except (ValueError, ray.exceptions.RayError) as error:
        raise Unavailable(f"the controller does not answer: {first_line(error)}") from None
