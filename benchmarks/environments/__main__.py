"""`python -m benchmarks.environments [--torch-index URL]`: install the environments of all peers."""

from __future__ import annotations

from typing import Annotated

import typer

from benchmarks.environments import PACKAGES, install, why_not


def main(
    torch_index: Annotated[str, typer.Option(help="URL of a package index that has torch for CPUs.")] = "",
) -> None:
    """Install the environments of all peers; one that cannot be installed is left out of the benchmark."""
    for name in PACKAGES:
        install(name, torch_index)
        print(f"{name}: {why_not(name) or 'installed'}")


if __name__ == "__main__":
    typer.run(main)
