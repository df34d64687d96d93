from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidal.flover.text import StopMatcher

TEXT = st.text("abc", max_size=40)


@given(st.lists(st.text("abc", max_size=6), max_size=12), st.lists(st.text("abc", min_size=1, max_size=5), max_size=3))
def test_the_text_ends_before_the_first_stop_string(pieces: list[str], stops: list[str]) -> None:
    """Compared with a search of the whole text after every piece; text that was sent never changes."""
    matcher, passed, text = StopMatcher(stops), "", ""
    for piece in pieces:
        text += piece
        visible, stopped = matcher.push(piece)
        passed += visible
        starts = [start for stop in stops if (start := text.find(stop)) >= 0]
        assert stopped is bool(starts)
        if starts:
            assert passed == text[: min(starts)]
            return
        assert text.startswith(passed)
        # Only text that may be the beginning of a stop string is held back.
        held = text[len(passed) :]
        assert not held or any(stop.startswith(held) for stop in stops)
    assert passed + matcher.finish() == text


@given(
    st.lists(st.text("abc", max_size=6), max_size=12),
    st.lists(st.text("abc", min_size=1, max_size=5), max_size=3),
    st.integers(0, 6),
)
def test_stops_that_end_in_the_first_pieces_are_passed_over(pieces: list[str], stops: list[str], first: int) -> None:
    """A stop that begins in the first pieces and ends behind them ends the text."""
    matcher, passed, text = StopMatcher(stops), "", ""
    for number, piece in enumerate(pieces):
        before = len(text)
        text += piece
        if number < first:
            passed += matcher.pass_over(piece)
            continue
        visible, stopped = matcher.push(piece)
        passed += visible
        # Stops that end within this piece; earlier ones were passed over or have ended the text.
        starts = [
            at for stop in stops for at in range(len(text)) if text.startswith(stop, at) and at + len(stop) > before
        ]
        assert stopped is bool(starts)
        if starts:
            assert passed == text[: min(starts)]
            return
        assert text.startswith(passed)
    assert passed + matcher.finish() == text


def test_a_stop_across_pieces() -> None:
    matcher = StopMatcher(["\n\nQ:", "END"])
    assert matcher.push("one\n") == ("one", False)
    assert matcher.push("\nE") == ("\n\n", False)
    assert matcher.push("Nough") == ("ENough", False)
    assert matcher.push("\n\n") == ("", False)
    assert matcher.push("Q: more") == ("", True)
