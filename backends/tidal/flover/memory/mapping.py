"""Tensors in memory that the operating system commits page by page, when it is first written, and takes back."""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Sequence

import torch

from tidal.errors import InvalidArgument

# Linux's value; Python 3.11 does not name it.
_MAP_NORESERVE = 0x4000
PAGE_BYTES = mmap.PAGESIZE


class MappedTensor:
    """A tensor of zeros in an anonymous private mapping of its own.

    Reading memory that was never written gives zeros and commits nothing.

    Attributes:
        tensor: The tensor, contiguous.

    Args:
        shape: Shape of the tensor.
        dtype: Type of its values.
        large_pages: Whether to commit pages of 2 MB, where the operating system has them: they are read faster, and
            one has hundreds of tokens.

    Raises:
        InvalidArgument: The operating system refuses the address space; states the size.
    """

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, *, large_pages: bool) -> None:
        count = math.prod(shape)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        try:
            self._memory = mmap.mmap(-1, count * dtype.itemsize, flags=flags)
        except OSError as error:
            raise InvalidArgument(
                f"keys and values of a layer need {count * dtype.itemsize:,} bytes of address space, and the operating "
                f"system refuses them ({error.strerror}): raise its limits (vm.overcommit_memory, ulimit -v), or lower "
                "max_concurrency or max_length"
            ) from error
        with contextlib.suppress(OSError):  # a kernel without large pages
            self._memory.madvise(mmap.MADV_HUGEPAGE if large_pages else mmap.MADV_NOHUGEPAGE)
        self.tensor = torch.frombuffer(self._memory, dtype=dtype).view(*shape)

    def release(self, begin: int, end: int) -> None:
        """Give whole pages to the operating system; their values become zeros.

        Args:
            begin: First byte, a multiple of the size of a page.
            end: Byte after the last.
        """
        self._memory.madvise(mmap.MADV_DONTNEED, begin, end - begin)
