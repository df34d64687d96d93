"""What pyproject.toml cannot say: a wheel with compiled parts is for one platform, and for any Python 3."""

import os
from typing import Any

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel


class NativeDistribution(Distribution):
    """A distribution for one platform where buildtools/native_wheel.py compiled parts of it."""

    def has_ext_modules(self) -> bool:
        """Whether the wheel is for one platform."""
        return bool(os.environ.get("TIDAL_PLATFORM_WHEEL"))

    def parse_config_files(self, *args: Any, **options: Any) -> None:
        """Read pyproject.toml; compiled parts of an earlier build are no part of a wheel for any platform."""
        super().parse_config_files(*args, **options)
        if not self.has_ext_modules():
            self.data_files = [(folder, files) for folder, files in self.data_files if not folder.endswith("/build")]


class NativeWheel(bdist_wheel):
    """A wheel whose shared objects are loaded through C interfaces, so its tag has no Python ABI."""

    def get_tag(self) -> tuple[str, str, str]:
        """Python, ABI and platform that the wheel is for."""
        platform = super().get_tag()[2]
        return "py3", "none", platform


setup(cmdclass={"bdist_wheel": NativeWheel}, distclass=NativeDistribution)
