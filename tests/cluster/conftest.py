"""The partitioned model of the tests of `arlo`."""

from tests.arlo.conftest import partitioned, source

__all__ = ["partitioned", "source"]
