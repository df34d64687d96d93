"""What free slots hold for later prompts, compared with a slow count."""

from __future__ import annotations

from itertools import takewhile

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from tidal.flover.memory.contents import SlotContents
from tidal.flover.policies.prefixes import LEAST_REUSED, start_of

IDS = st.lists(st.integers(0, 1), min_size=1, max_size=2 * LEAST_REUSED)


@given(IDS, IDS, st.integers(0, 2 * LEAST_REUSED))
@example([1] * LEAST_REUSED, [1] * LEAST_REUSED, 0)
@example([1] * (LEAST_REUSED + 1), [1] * LEAST_REUSED + [0], 0)
@example([1, 0], [1, 0, 1], 0)
def test_common_tokens_equal_a_slow_count_where_they_can_be_reused(
    held: list[int], prompt: list[int], shared: int
) -> None:
    prompt = held[:shared] + prompt
    contents = SlotContents(1)
    contents.keep(0, np.array(held, np.int64), None)
    kept, ids = contents.of(0), np.array(prompt, np.int64)
    assert kept is not None
    found = kept.common(ids, start_of(ids), None)
    slow = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(held, prompt, strict=False))))
    # Too few tokens for a copy count as none, unless a prompt continues all that the slot holds.
    assert found == slow or (found == 0 and slow < min(LEAST_REUSED, len(held)))
