"""What a task may be called, and what is said of a name that is no task's."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection

from tidal.errors import InvalidArgument

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
# Close matches take a comparison a name: among so many at most.
_MOST_COMPARED = 2_000


def check_task_name(name: str) -> str:
    """A task's name, as it came: it names a folder, and requests name it.

    Raises:
        InvalidArgument: it is none; says what is accepted.
    """
    if not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"'{name[:140]}' is no name of a task: accepted are up to 128 letters, digits, '_', '-' and '.', "
            "the first no '-' or '.'"
        )
    return name


def is_task_name(name: str) -> bool:
    """Whether a folder of this name is a task's; those that are being written are not."""
    return _NAME.fullmatch(name) is not None


def unknown_task(name: str, known: Collection[str]) -> InvalidArgument:
    """The error for a name that is no task's: it names the nearest that are."""
    names = sorted(known)[:_MOST_COMPARED]
    shown = name[:128]
    near = difflib.get_close_matches(shown, names, n=3, cutoff=0.6)
    if near:
        hint = f"did you mean {' or '.join(repr(each) for each in near)}?"
    elif not names:
        hint = "the model has no tasks"
    else:
        few = ", ".join(names[:5])
        hint = f"accepted: {few}" if len(known) <= 5 else f"accepted: {few} and {len(known) - 5} more"
    return InvalidArgument(f"unknown task '{shown}': {hint}")
