"""Where the demo prints."""

import sys

from rich.console import Console

CONSOLE = Console(width=None if sys.stdout.isatty() else 120)
