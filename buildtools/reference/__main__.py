"""`python -m buildtools.reference [--check]`: write the generated reference pages, or name those that are not current.

The pages are in git, so that they can be read without an installation.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from buildtools.reference.cli import cli_page
from buildtools.reference.errors import errors_page
from buildtools.reference.metrics import metrics_page
from buildtools.reference.schemas import options_page, parameters_page, spec_page

ROOT = Path(__file__).resolve().parents[2]
_FOLDER = ROOT / "docs" / "reference"
PAGES: dict[str, Callable[[], str]] = {
    "cli.md": cli_page,
    "spec.md": spec_page,
    "request-options.md": options_page,
    "parameters.md": parameters_page,
    "metrics.md": metrics_page,
    "errors.md": errors_page,
}


def main(arguments: Sequence[str]) -> int:
    """Write the pages, or with `--check` name those that are not current; the exit code is 1 if there are any."""
    if arguments == ["--check"]:
        stale = stale_pages()
        for path in stale:
            print(f"{path.relative_to(ROOT)} is not current: run `python -m buildtools.reference`")
        return 1 if stale else 0
    for name, make in PAGES.items():
        (_FOLDER / name).write_text(make(), encoding="utf-8")
    return 0


def stale_pages() -> list[Path]:
    """Pages whose committed text differs from what the code gives."""
    paths = {_FOLDER / name: make for name, make in PAGES.items()}
    return [p for p, make in paths.items() if not p.is_file() or p.read_text(encoding="utf-8") != make()]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
