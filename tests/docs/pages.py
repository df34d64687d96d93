"""Which pages of the documentation there are, and why some of their blocks are not run."""

from __future__ import annotations

from pathlib import Path

from tests.docs.blocks import Block, blocks_of

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
#: Pages whose examples are run; reference/cli.md repeats the help of commands, whose examples other tests parse.
PAGES = [
    README,
    ROOT / "CONTRIBUTING.md",
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if page.name != "cli.md"),
]
#: Accepted reasons of blocks that are not run.
REASONS = frozenset(
    {
        "downloads packages",
        "installs and downloads 1 GB",
        "installs into /opt",
        "installs packages",
        "installs the checkout",
        "needs Docker",
        "needs Docker and Kubernetes",
        "needs Kubernetes",
        "needs a GPU",
        "needs a LoRA of the decoder",
        "needs a chat model",
        "needs a masked language model",
        "needs several servers",
        "needs a server with tracing",
        "needs prompts that were trained elsewhere",
        "starts a server that stays",
        "takes minutes",
        "writes to /srv",
    }
)


def blocks() -> list[Block]:
    """Blocks of all pages."""
    return [block for page in PAGES for block in blocks_of(page)]
