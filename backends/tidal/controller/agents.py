"""Calls of the agents of nodes, and agents in this process."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Any, Protocol

from tidal.controller.reports import of_node
from tidal.errors import Internal, TidalError, Unavailable


class Agents(Protocol):
    """The agents of all nodes: `LocalAgents`, and `tidal.cluster.handles.RayAgents`."""

    def names(self) -> list[str]:
        """Return the names of the nodes that have an agent, sorted; also of those that do not answer now."""

    def call(self, requests: Mapping[str, tuple[Any, ...]], timeout_s: float) -> dict[str, Any]:
        """Call a method of several agents at the same time.

        Args:
            requests: Name of a method and its arguments, by node.
            timeout_s: Longest time for all answers, in seconds.

        Returns:
            The answer of each node, or the error: a TidalError.
        """


class LocalAgents:
    """Agents in this process, called one after the other without a limit of time.

    Args:
        agents: The agents by the names of their nodes.
    """

    def __init__(self, agents: Mapping[str, Any]) -> None:
        self.agents = dict(agents)

    def names(self) -> list[str]:
        """Return the names of the nodes, sorted."""
        return sorted(self.agents)

    def call(self, requests: Mapping[str, tuple[Any, ...]], timeout_s: float) -> dict[str, Any]:
        """Call a method of several agents; see `Agents`."""
        answers: dict[str, Any] = {}
        for name, (method, *arguments) in requests.items():
            try:
                answers[name] = getattr(self.agents[name], method)(*arguments)
            except TidalError as error:
                answers[name] = error
            except Exception as error:  # a defect, as one of an agent in another process, ends no control
                traceback.print_exc()
                answers[name] = Internal(of_node(name, f"the agent failed: {error!r}"))
        return answers


def check_answers(answers: Mapping[str, Any]) -> None:
    """Raise the errors among the answers of nodes.

    Raises:
        Unavailable: A call failed.
    """
    failures = [of_node(name, str(answer)) for name, answer in answers.items() if isinstance(answer, TidalError)]
    if failures:
        raise Unavailable("; ".join(failures))
