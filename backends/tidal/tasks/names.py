"""Valid names of tasks, and the error for an unknown name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection

from tidal.errors import InvalidArgument

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
# Similar names are searched among at most this many, since each costs a comparison.
_MAX_COMPARED = 2_000


def check_task_name(name: str) -> str:
    """Check a task's name, which is also the name of its folder, and return it.

    Raises:
        InvalidArgument: The name is not valid; the message says what is accepted.
    """
    if not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"'{name[:140]}' is not a valid task name; accepted: up to 128 letters, digits, '_', '-' and '.', not "
            "beginning with '-' or '.'"
        )
    return name


def is_task_name(name: str) -> bool:
    """Whether a name is valid for a task; those of staging folders are not."""
    return _NAME.fullmatch(name) is not None


def unknown_task(name: str, known: Collection[str]) -> InvalidArgument:
    """Return the error for an unknown task, with similar names.

    Args:
        name: Name that was requested.
        known: Names of all tasks.
    """
    names = sorted(known)[:_MAX_COMPARED]
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
