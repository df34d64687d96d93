"""Refusals of unknown paths, and of methods that a path does not have, in the shape of the path's API."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from starlette.routing import compile_path

from tidal.errors import did_you_mean
from tidal_gateway.api.answers import HttpAnswer
from tidal_gateway.api.routes import RouteEntry
from tidal_gateway.api.shapes import Shape, error_answer, openai
from tidal_gateway.errors import Refusal

_MAX_SHOWN: Final = 200


class UnknownRoutes:
    """Answers requests that no route answers.

    Args:
        routes: All routes.
    """

    def __init__(self, routes: Sequence[RouteEntry]) -> None:
        self._routes = [(each, compile_path(each.path)[0]) for each in routes]
        self._paths = tuple(dict.fromkeys(each.path for each in routes))

    def refusal(self, method: str, path: str) -> Refusal:
        """Return the refusal of a request.

        Args:
            method: HTTP method.
            path: Path of the URL.
        """
        shown = path[:_MAX_SHOWN]
        accepted = self.methods(path)
        if accepted:
            return Refusal(
                405,
                f"{shown} does not accept {method[:_MAX_SHOWN]}; accepted: {', '.join(accepted)}",
                code="method_not_allowed",
            )
        near = did_you_mean(shown, self._paths).partition("? ")
        hint = f"{near[0]}? " if near[1] else ""
        return Refusal(404, f"unknown path {shown}: {hint}GET /openapi.json lists all paths", code="unknown_path")

    def answer(self, refusal: Refusal, path: str) -> HttpAnswer:
        """Return the answer to a request that no route answers, in the shape of its path's API."""
        found = error_answer(refusal, self.shape(path))
        allow = [(b"allow", ", ".join(self.methods(path)).encode())] if refusal.status == 405 else []
        return HttpAnswer(found.content, found.status, headers=[*found.headers, *allow])

    def methods(self, path: str) -> list[str]:
        """Methods of a path; empty for an unknown path."""
        return sorted({each.method for each, pattern in self._routes if pattern.fullmatch(path)})

    def shape(self, path: str) -> Shape:
        """Shape of a path's errors: of its route, else the one that most paths with the same beginning have."""
        wanted = path.rstrip("/")
        for each, pattern in self._routes:
            if pattern.fullmatch(wanted):
                return each.shape
        near = Counter(each.shape for each, _ in self._routes if _first(each.path) == _first(path))
        return near.most_common(1)[0][0] if near else openai


def _first(path: str) -> str:
    return path.split("/", 2)[1] if path.startswith("/") else ""
