"""Exit codes that the subcommands of `tidal` share."""

from __future__ import annotations

from typing import Final

OK: Final = 0
# A request or an operation failed, or a check did not pass.
FAILED: Final = 1
# Wrong usage or a missing extra; nothing was done.
USAGE: Final = 2
