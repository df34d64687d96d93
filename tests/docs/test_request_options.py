"""The page of request options names the backends that use an option."""

from __future__ import annotations

import pytest

from buildtools.reference.schemas import options_page
from tidal.encoder_tasks.entries import TASKS


def used_by() -> dict[str, str]:
    """The third column of the table by option."""
    rows = [line.split("|") for line in options_page().splitlines() if line.startswith("| `")]
    return {row[1].strip(" `"): row[-3].strip() for row in rows}


@pytest.mark.parametrize(
    ("option", "systems"),
    [
        ("prompt", "`arlo`, `pets`"),
        ("dimensions", "`arlo`, `pets`"),
        ("threshold", "`arlo`, `pets`"),
        ("aggregation", "`arlo`, `pets`"),
        ("top_k", "`arlo`, `pets`, `flover`, `nearest`"),
        ("utility", "`pets`, `otas`"),
        ("seed", "`flover`"),
    ],
)
def test_options_of_tasks_are_used_by_every_backend_with_the_task(option: str, systems: str) -> None:
    assert used_by()[option] == systems


def test_every_option_that_a_task_reads_is_registered() -> None:
    from buildtools.reference.schemas import _LIBRARY, _options_read

    read = _options_read(_LIBRARY / "encoder_tasks")
    assert read == {option for task in TASKS.values() for option in task.options}
