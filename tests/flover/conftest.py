"""What tests of the native library share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tidal.flover.native import build, library


@pytest.fixture(scope="module")
def native_library() -> Iterator[None]:
    """Build and load the library; afterwards kernels and threads are those of before."""
    build.build()
    library.library.cache_clear()
    threads = torch.get_num_threads()
    yield
    library.choose_kernels("auto")
    torch.set_num_threads(threads)
