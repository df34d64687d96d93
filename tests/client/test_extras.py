"""The command that installs an extra: it names the origin of this installation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidal_client import extras


class _Recorded:
    """An installed distribution with its origin (PEP 610) only."""

    def __init__(self, origin: str | None) -> None:
        self._origin = origin

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return self._origin


def _command(monkeypatch: pytest.MonkeyPatch, origin: object) -> str:
    text = None if origin is None else origin if isinstance(origin, str) else json.dumps(origin)
    monkeypatch.setattr(extras, "distributions", lambda name: [_Recorded(None), _Recorded(text)])
    return extras.install_command("serve")


def test_an_editable_checkout_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    place = tmp_path / "a checkout"
    place.mkdir()
    origin = {"dir_info": {"editable": True}, "url": place.as_uri()}
    assert _command(monkeypatch, origin) == f"pip install --editable '{place}[serve]'"


def test_a_wheel_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wheel = tmp_path / "tidal-0.1.0-py3-none-linux_x86_64.whl"
    wheel.touch()
    assert _command(monkeypatch, {"archive_info": {}, "url": wheel.as_uri()}) == f"pip install '{wheel}[serve]'"


@pytest.mark.parametrize("origin", [None, "{}", "no JSON", {"url": "file:///is/not/there.whl"}, {"url": "https://x/y"}])
def test_an_unknown_origin_has_a_placeholder(monkeypatch: pytest.MonkeyPatch, origin: object) -> None:
    assert _command(monkeypatch, origin) == "pip install 'PATH_OF_TIDAL_CHECKOUT_OR_WHEEL[serve]'"
