"""Target of the request log: a file that processes append to, or an inherited file descriptor."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from tidal.errors import InvalidArgument

# Passed by `tidal serve` to the models' processes: the path of a file, or `fd:NUMBER`.
ACCESS_LOG_VARIABLE = "TIDAL_ACCESS_LOG"
_DESCRIPTOR = "fd:"
# A longer write to a pipe may be interleaved with those of other processes (pipe(7)).
_PIPE_BUF = 4096
_FILE_BYTES = 1 << 16


def descriptor_target(number: int) -> str:
    """Return the target for an open file descriptor that child processes inherit."""
    return f"{_DESCRIPTOR}{number}"


def inherited(target: str | None) -> tuple[int, ...]:
    """Return the file descriptors that a child process has to inherit to write to a target."""
    return (int(target.removeprefix(_DESCRIPTOR)),) if target is not None and target.startswith(_DESCRIPTOR) else ()


def check_file(path: Path) -> Path:
    """Check that a request log can be appended to, create it if needed, and return its absolute path.

    Raises:
        InvalidArgument: The file cannot be opened, or is not a regular file.
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


class LogTarget:
    """Appends whole lines; for use by one thread.

    A file is reopened when its path names another file, so that it may be renamed or removed at any time.

    Args:
        text: Absolute path of a file, or a result of `descriptor_target`.
    """

    def __init__(self, text: str) -> None:
        self._path: Path | None = None
        self._number = -1
        if text.startswith(_DESCRIPTOR):
            self._number = int(text.removeprefix(_DESCRIPTOR))
        else:
            self._path = Path(text)
        self._torn = False  # whether the last write ended inside a line

    @property
    def max_bytes(self) -> int:
        """Maximum size of one `write` that is not interleaved with lines of other processes."""
        return _FILE_BYTES if self._path is not None else _PIPE_BUF

    def write(self, lines: bytes) -> None:
        """Append whole lines with one system call.

        Raises:
            OSError: Not all of the lines were written.
        """
        number = self._opened()
        left = memoryview(b"\n" + lines if self._torn else lines)
        while left:
            written = os.write(number, left)
            left = left[written:]
            self._torn = bool(left)

    def close(self) -> None:
        """Close the file; an inherited descriptor stays open."""
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
