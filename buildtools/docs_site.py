"""Hooks of mkdocs: pages and pictures of the checkout that are outside of docs/ become parts of the site."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
#: Files of the checkout by their place in the site.
PAGES = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
_FOLDERS = (
    "benchmarks/results",
    "benchmarks/results/headlines",
    "benchmarks/results/amd-epyc-avx2",
    "benchmarks/results/amd-epyc-avx512",
    "benchmarks/results/intel-xeon-amx",
    "benchmarks/results/intel-xeon-avx512",
)
RELIABILITY = (
    "benchmarks/results/reliability.md",
    "benchmarks/results/amd-epyc-avx2/reliability.md",
    "benchmarks/results/amd-epyc-avx512/reliability.md",
    "benchmarks/results/intel-xeon-avx512/reliability.md",
)
_LINK = re.compile(r"(\]\(|\b(?:src|srcset)=\")([^)#\s\"]+)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages, and every file of the folders that pages link to."""
    from mkdocs.structure.files import File

    for place, name in PAGES.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / name)))
    for folder in _FOLDERS:
        for path in sorted((ROOT / folder).iterdir()):
            if path.is_file() and path.suffix != ".md":
                files.append(File.generated(config, f"{folder}/{path.name}", abs_src_path=str(path)))
    for place in RELIABILITY:
        files.append(File.generated(config, place, abs_src_path=str(ROOT / place)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Let links lead to where the files are in the site."""
    place = page.file.src_uri
    here = PAGES.get(place) or (place if place.startswith(_FOLDERS) else f"docs/{place}")

    def moved(found: re.Match[str]) -> str:
        target = found[2]
        if re.match(r"[a-z]+:", target):
            return found[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
        return found[1] + posixpath.relpath(site_path(path), posixpath.dirname(place) or ".")

    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else _LINK.sub(moved, part) for part in parts)


def site_path(path: str) -> str:
    """Place in the site of a path of the checkout."""
    own = {name: place for place, name in PAGES.items()}
    return own.get(path, path.removeprefix("docs/"))
