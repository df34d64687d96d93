"""Where the request log goes: a file that processes append to, or a descriptor that they have inherited."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from tidal.errors import InvalidArgument

# What `tidal serve` passes on to the models' processes: a file's path, or `fd:NUMBER`.
ACCESS_LOG_VARIABLE = "TIDAL_ACCESS_LOG"
_DESCRIPTOR = "fd:"
# A pipe takes so many bytes in one piece; a longer write may be interleaved with those of other processes (pipe(7)).
_PIPE_BUF = 4096
_FILE_BYTES = 1 << 16


def descriptor_target(number: int) -> str:
    """The target that is an open descriptor of this process and its children."""
    return f"{_DESCRIPTOR}{number}"


def inherited(target: str | None) -> tuple[int, ...]:
    """Descriptors that a child process needs to write to a target."""
    return (int(target.removeprefix(_DESCRIPTOR)),) if target is not None and target.startswith(_DESCRIPTOR) else ()


def check_file(path: Path) -> Path:
    """The absolute path of a request log that can be appended to; makes the file where there is none.

    Raises:
        InvalidArgument: It cannot be opened, or is no regular file.
    """
    path = path.absolute()
    accepted = "accepted: a file that can be written, or - for standard output"
    try:
        if path.exists() and not path.is_file():
            raise InvalidArgument(f"access log '{path}' is not a regular file; {accepted}")
        os.close(_open(path))
    except OSError as error:
        raise InvalidArgument(f"access log '{path}' cannot be opened: {error.strerror}; {accepted}") from None
    return path


class Target:
    """Appends whole lines; from one thread.

    A file is opened again when its path leads elsewhere, so that it may be renamed or removed at any time.

    Args:
        text: A file's absolute path, or what `descriptor_target` gives.
    """

    def __init__(self, text: str) -> None:
        self._path: Path | None = None
        self._number = -1
        if text.startswith(_DESCRIPTOR):
            self._number = int(text.removeprefix(_DESCRIPTOR))
        else:
            self._path = Path(text)
        self._torn = False  # the last write ended inside a line

    @property
    def most_bytes(self) -> int:
        """Bytes that one `write` appends without lines of other processes in between."""
        return _FILE_BYTES if self._path is not None else _PIPE_BUF

    def write(self, lines: bytes) -> None:
        """Append whole lines by one system call.

        Raises:
            OSError: Not all of them were written.
        """
        number = self._opened()
        left = memoryview(b"\n" + lines if self._torn else lines)
        while left:
            written = os.write(number, left)
            left = left[written:]
            self._torn = bool(left)

    def close(self) -> None:
        """Close the file; a descriptor is left to its owner."""
        if self._path is not None and self._number >= 0:
            os.close(self._number)
            self._number = -1

    def _opened(self) -> int:
        if self._path is None:
            return self._number
        if self._number >= 0 and not _is_same(self._path, self._number):
            self.close()
        if self._number < 0:
            self._number = _open(self._path)
            self._torn = False
        return self._number


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)


def _is_same(path: Path, number: int) -> bool:
    try:
        there, here = path.stat(), os.fstat(number)
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino) and stat.S_ISREG(there.st_mode)
