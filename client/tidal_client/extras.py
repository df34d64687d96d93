"""The command that installs an optional dependency group ("extra") of Tidal.

No package index has Tidal: the command names the checkout or the wheel that this installation came from.
"""

from __future__ import annotations

import json
from importlib.metadata import distributions
from pathlib import Path
from urllib.parse import unquote, urlsplit

_UNKNOWN_SOURCE = "PATH_OF_TIDAL_CHECKOUT_OR_WHEEL"


def install_command(extra: str) -> str:
    """Shell command that adds an extra to this installation of Tidal.

    Args:
        extra: Name of an extra in pyproject.toml, such as `serve`.

    Returns:
        A `pip install` command. It names the checkout or wheel of this installation where that still exists, otherwise
        a placeholder for its path.
    """
    source, editable = _source()
    return f"pip install {'--editable ' if editable else ''}'{source}[{extra}]'"


def _source() -> tuple[str, bool]:
    """Path that Tidal was installed from, and whether as an editable checkout (PEP 610)."""
    # A checkout that was built in place shows as a second, unrecorded distribution of the same name.
    texts = [text for found in distributions(name="tidal") if (text := found.read_text("direct_url.json"))]
    try:
        recorded = json.loads(texts[0]) if texts else {}
    except ValueError:
        recorded = {}
    path = Path(unquote(urlsplit(recorded.get("url", "")).path))
    if not path.is_absolute() or not path.exists():
        return _UNKNOWN_SOURCE, False
    return str(path), bool(recorded.get("dir_info", {}).get("editable"))
