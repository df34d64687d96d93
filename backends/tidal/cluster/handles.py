"""Calls of Ray actors: agents by the names of their nodes, the controller by its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tidal.errors import Internal, TidalError, Unavailable

NAMESPACE = "tidal"
CONTROLLER = "controller"
_AGENT = "node:"


def agent_name(node: str) -> str:
    """Return the name of the actor that is the agent of a node."""
    return f"{_AGENT}{node}"


class RayAgents:
    """The agents that Ray knows: it removes those of nodes that it has declared dead."""

    def names(self) -> list[str]:
        """Return the names of the nodes that have an agent, sorted."""
        import ray
        from ray.util import list_named_actors

        try:
            names: Iterable[Any] = list_named_actors()
        except ray.exceptions.RayError as error:
            raise Unavailable(f"the head does not answer: {first_line(error)}") from None
        return sorted(str(name).removeprefix(_AGENT) for name in names if str(name).startswith(_AGENT))

    def call(self, requests: Mapping[str, tuple[Any, ...]], timeout_s: float) -> dict[str, Any]:
        """Call a method of several agents at the same time; see `tidal.controller.agents.Agents`."""
        import ray

        answers: dict[str, Any] = {}
        pending: dict[Any, str] = {}
        for node, (method, *arguments) in requests.items():
            try:
                actor = ray.get_actor(agent_name(node), namespace=NAMESPACE)
                pending[getattr(actor, method).remote(*arguments)] = node
            except (ValueError, ray.exceptions.RayError) as error:
                answers[node] = Unavailable(f"node '{node}' has no agent: {first_line(error)}")
        done, late = ray.wait(list(pending), num_returns=len(pending), timeout=timeout_s) if pending else ([], [])
        for reference in done:
            answers[pending[reference]] = answer_of(reference, pending[reference])
        for reference in late:
            node = pending[reference]
            answers[node] = Unavailable(f"the agent of node '{node}' did not answer within {timeout_s:g} s")
        return answers


def answer_of(reference: Any, node: str) -> Any:
    """Return the answer of a finished call, or its error as a TidalError."""
    import ray

    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        return cause if isinstance(cause, TidalError) else Internal(f"the agent of node '{node}' failed: {cause!r}")
    except ray.exceptions.ActorUnavailableError:
        return Unavailable(f"the agent of node '{node}' is being restarted, or its node is lost")
    except ray.exceptions.RayError as error:
        return Unavailable(f"the agent of node '{node}' does not answer: {first_line(error)}")


def first_line(error: BaseException) -> str:
    """Return the first line of an error of Ray, which adds stack traces."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
