"""Reads calls of tools from a model's text as it arrives."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from tidal_gateway.tools.formats import ToolFormat

# The usual beginning of a call, behind which the arguments can be passed on as they arrive.
_HEAD = r'\s*\{{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"{arguments}"\s*:\s*(?=\{{)'


@dataclass(frozen=True, slots=True)
class CallPart:
    """A part of a call.

    Attributes:
        index: Number of the call in the answer, from 0.
        name: Name of the function, in the first part of a call; None in the others.
        arguments: Arguments since the part before, as JSON text.
    """

    index: int
    name: str | None
    arguments: str


class CallParser:
    """Splits an answer into text and calls; a call that is no valid JSON stays text.

    Args:
        form: Format of the calls.
        names: Names of the functions.
        several: Whether calls after the first are wanted.
        whole: Whether the text is complete: arguments are then checked before they are passed on.
    """

    def __init__(self, form: ToolFormat, names: Collection[str], *, several: bool = True, whole: bool = False) -> None:
        self._form, self._names, self._several, self._whole = form, names, several, whole
        self._before = form.opening
        self._head = re.compile(_HEAD.format(arguments=form.arguments))
        self._buffer = ""
        self._state = self._text if form.opening else self._start
        self._scanner = ObjectScanner()
        self.calls = 0

    def feed(self, text: str) -> list[str | CallPart]:
        """Return the texts and parts of calls that are certain after more text has arrived."""
        self._buffer += text
        return self._run(last=False)

    def finish(self) -> list[str | CallPart]:
        """Return the rest once no text follows."""
        return self._run(last=True)

    def _run(self, *, last: bool) -> list[str | CallPart]:
        found: list[str | CallPart] = []
        state = None
        while state != self._state:
            state = self._state
            found += self._state(last)
        wanted = [each for each in found if self._several or isinstance(each, str) or not each.index]
        return [each for each in wanted if each != ""]

    def _start(self, last: bool) -> list[str | CallPart]:
        """At the beginning of an answer without an opening text: decide whether it is calls."""
        rest = self._buffer.lstrip()
        for each in self._form.skipped:
            if rest.startswith(each):
                self._buffer = rest = rest.removeprefix(each).lstrip()
            elif each.startswith(rest) and not last:
                return []
        if self._form.array:
            inner = rest[1:].lstrip()
            if rest.startswith("[") and not inner and not last:
                return []
            if rest.startswith("[") and inner.startswith("{"):
                self._before, self._buffer, self._state = rest[: len(rest) - len(inner)], inner, self._call
            elif rest:
                self._state = self._plain
        elif rest.startswith("{"):
            self._buffer, self._state = rest, self._call
        elif rest:
            self._state = self._plain
        return []

    def _plain(self, last: bool) -> list[str | CallPart]:
        text, self._buffer = self._buffer, ""
        return [text]

    def _text(self, last: bool) -> list[str | CallPart]:
        opening = self._form.opening
        before, mark, after = self._buffer.partition(opening)
        if mark:
            self._buffer, self._state = after, self._call
            return [before.rstrip()]
        # The rest may be blanks before a call, and the beginning of its opening text.
        cut = len(before)
        if not last:
            most = min(len(opening) - 1, len(before))
            cut -= next((size for size in range(most, 0, -1) if before.endswith(opening[:size])), 0)
            cut = len(before[:cut].rstrip())
        elif self.calls:
            before = before.rstrip()
        self._buffer = before[cut:]
        return [before[:cut]]

    def _call(self, last: bool) -> list[str | CallPart]:
        head = self._head.match(self._buffer)
        if head is not None and not self._whole:
            name = _name(head.group(1))
            if name is not None and self._accepts(name):
                self._buffer, self._state = self._buffer[head.end() :], self._arguments
                self._scanner = ObjectScanner()
                return [self._begin(name, "")]
        end = _object_end(self._buffer)
        if end is None:
            if not last:
                return []
            return self._no_call(len(self._buffer))
        try:
            document = json.loads(self._buffer[:end])
        except ValueError:
            return self._no_call(end)
        name, arguments = document.get("name"), _arguments_text(document.get(self._form.arguments))
        if not isinstance(name, str) or not self._accepts(name) or arguments is None:
            return self._no_call(end)
        self._buffer, self._state = self._buffer[end:], self._behind
        return [self._begin(name, arguments)]

    def _arguments(self, last: bool) -> list[str | CallPart]:
        end = self._scanner.feed(self._buffer)
        part = self._buffer if end is None else self._buffer[:end]
        self._buffer = self._buffer[len(part) :]
        if end is not None:
            self._state = self._tail
        return [CallPart(self.calls - 1, None, part)] if part else []

    def _tail(self, last: bool) -> list[str | CallPart]:
        """The end of a call's object after its arguments."""
        place = self._buffer.find("}")
        if place >= 0:
            self._buffer, self._state = self._buffer[place + 1 :], self._behind
        return []

    def _behind(self, last: bool) -> list[str | CallPart]:
        """Behind a call: its closing text, and another call or text."""
        closing = self._form.closing
        rest = self._buffer.lstrip()
        if self._form.array:
            if rest.startswith("]"):
                self._buffer, self._state = rest.removeprefix("]"), self._plain
            elif rest.rstrip() == ",":
                self._buffer = "" if last else rest
            elif rest.startswith(","):
                self._buffer, self._before, self._state = rest[1:].lstrip(), ",", self._call
            elif rest:
                self._state = self._plain
            return []
        if not closing:
            rest = rest.removeprefix(";").lstrip()
            if rest:
                self._buffer, self._state = rest, self._call if rest.startswith("{") else self._plain
            return []
        if rest.startswith(closing):
            self._buffer, self._state = rest.removeprefix(closing), self._text
        elif last or not closing.startswith(rest):
            self._state = self._text
        return []

    def _accepts(self, name: str) -> bool:
        """Whether a name is of a call: of a text that only looks like one it is not."""
        return bool(self._form.opening) or name in self._names

    def _begin(self, name: str, arguments: str) -> CallPart:
        self.calls += 1
        return CallPart(self.calls - 1, name, arguments)

    def _no_call(self, end: int) -> list[str | CallPart]:
        text, self._buffer = self._before + self._buffer[:end], self._buffer[end:]
        self._state = self._text if self._form.opening else self._plain
        return [text]


class ObjectScanner:
    """Detects the end of a JSON object whose text arrives in parts."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._escaped = False

    def feed(self, text: str) -> int | None:
        """Return the index after the object's end in this part; None if it goes on."""
        for place, sign in enumerate(text):
            if self._escaped:
                self._escaped = False
            elif self._in_string:
                self._escaped = sign == "\\"
                self._in_string = sign != '"'
            elif sign == '"':
                self._in_string = True
            elif sign in "{[":
                self._depth += 1
            elif sign in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    return place + 1
        return None


def _object_end(text: str) -> int | None:
    """Index after the object at the beginning of a text; None if it is not complete."""
    return ObjectScanner().feed(text)


def _arguments_text(found: Any) -> str | None:
    """Arguments as the text of an object, of one or of its text; None if they are something else."""
    if isinstance(found, str):
        try:
            return found if isinstance(json.loads(found), dict) else None
        except ValueError:
            return None
    return json.dumps({} if found is None else found) if isinstance(found, dict | None) else None


def _name(literal: str) -> str | None:
    try:
        found: Any = json.loads(literal)
    except ValueError:
        return None
    return str(found)
