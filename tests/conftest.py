"""What holds for every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tidal.engine_model.claims import CLAIMS_VARIABLE


@pytest.fixture(scope="session", autouse=True)
def _own_claims(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Cores and GPUs that the tests' servers claim are theirs alone, whatever else serves on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CLAIMS_VARIABLE, str(tmp_path_factory.mktemp("claims")))
        yield
