"""Exit codes that the subcommands of `tidal` share, so that scripts can tell what happened."""

from __future__ import annotations

from typing import Final

OK: Final = 0
# The thing asked for is not so, or was not done: a request failed, a check found something stale.
FAILED: Final = 1
# Nothing was tried: wrong arguments, or an extra that is not installed.
USAGE: Final = 2
