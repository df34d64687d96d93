"""A fake control interface of a server for the tests of OTAS's live benchmark."""

from __future__ import annotations

from collections.abc import Callable

from tidal.server.control import ModelState


class FakeControl:
    """Loads when the test calls it."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.loading: Callable[[], None] = lambda: None
        self._present = {"middle"}

    def unload(self, model: str) -> None:
        self.calls.append(("unload", model))
        self._present.remove(model)

    def load(self, model: str, _config: None) -> None:
        self.calls.append(("load", model))
        self.loading()
        self._present.add(model)

    def index(self) -> list[ModelState]:
        return [ModelState(model, 1, "READY", "") for model in self._present]
