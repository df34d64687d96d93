"""Tidal installed from its wheel, away from the checkout: the commands work, and Triton finds the backends."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import tidal
from tests.arlo.conftest import Built
from tests.serve.served import environment_in, serving
from tidal_client import Client

CHECKOUT = Path(tidal.__file__).resolve().parents[2]
SOURCES = ("backends", "builders", "client")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    # A build leaves files beside its sources, so it gets a copy of them.
    for name in SOURCES:
        shutil.copytree(CHECKOUT / name, folder / "source" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(CHECKOUT / name, folder / "source")
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(folder / "source"))
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel in it; what it depends on is that of this interpreter."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    pip("--python", str(python), "install", "--no-deps", "--no-index", str(wheel))
    here = {"base": str(folder), "platbase": str(folder)}
    packages = Path(sysconfig.get_path("purelib", "venv", here))
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    subprocess.run(command, check=True, timeout=120)


def test_every_backend_is_in_the_wheel(wheel: Path) -> None:
    wanted = {
        path.relative_to(CHECKOUT / "backends").as_posix()
        for pattern in ("*/model.py", "*/native/*.?pp", "batcher/*.?pp", "batcher/*.h", "http_guard/*.?pp")
        for path in CHECKOUT.glob(f"backends/{pattern}")
    }
    names = zipfile.ZipFile(wheel).namelist()
    assert wanted == {path for name in names if (path := name.partition("/data/share/tidal/backends/")[2])}
    assert wanted


def test_every_module_is_in_the_wheel(wheel: Path) -> None:
    wanted = {
        path.relative_to(CHECKOUT / root).as_posix()
        for root in SOURCES
        for path in CHECKOUT.glob(f"{root}/tidal*/**/*.py")
    }
    assert wanted <= set(zipfile.ZipFile(wheel).namelist())


@pytest.mark.server
def test_the_commands_work(environment: Path, built: Built, tmp_path: Path) -> None:
    command = [str(environment / "bin" / "tidal")]
    # From a folder of its own: the checkout's packages must not be found by chance.
    clean = {name: value for name, value in environment_in(tmp_path).items() if name != "PYTHONPATH"}

    def run(*arguments: str) -> str:
        answer = subprocess.run(
            [*command, *arguments], env=clean, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    python = [environment / "bin" / "python", "-c", "import tidal; print(tidal.__file__)"]
    imported = subprocess.run(python, env=clean, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert Path(imported.strip()).is_relative_to(environment)
    assert json.loads(run("doctor", "--json"))["can_serve"] is True
    assert "--assemble" in run("serve", "--help")
    assert json.loads(run("build", "--schema"))
    built.copy(tmp_path / "models", "tiny")
    isolated = ["env", "-u", "PYTHONPATH", f"--chdir={tmp_path}", *command]
    with serving(tmp_path / "models", tmp_path / "runtime", command=isolated) as served:
        with Client(f"grpc://{served.report['grpc']}") as client:
            assert client.classify("tiny", "good").label
        (stub,) = served.stubs("tiny")
        assert stub.environ()["PATH"].startswith(f"{environment / 'bin'}{os.pathsep}")
        answer = run("infer", "tiny", "--text", "good", "--url", f"grpc://{served.report['grpc']}", "--json")
        assert json.loads(answer)["label"]
