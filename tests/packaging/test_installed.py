"""Tidal installed from its wheel, away from the checkout: commands work, and Triton serves with the native parts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

import tidal
from testing.classifiers import build_classifier
from testing.decoders import build_decoder, write_decoder
from testing.models import make_tiny_classifier
from testing.pets import tiny_base
from testing.serving import environment_in, serving
from tidal_client import Client

pytestmark = pytest.mark.slow

CHECKOUT = Path(tidal.__file__).resolve().parents[2]
SOURCES = ("backends", "builders", "client", "gateway", "buildtools")
NATIVE = (
    "answers/build/tidal_answers-",
    "batcher/build/tidal_batcher.so",
    "flover/native/build/libtidal_flover-",
    "http_guard/build/tidal_http_guard.so",
    "pets/native/build/libtidal_pets-",
)
PLACE = "/data/share/tidal/backends/"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pack(copy_sources(folder / "source"), folder)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier `tiny`, a decoder `writer`, and an encoder `base` with a task `lora_1`: all of random weights."""
    folder = tmp_path_factory.mktemp("repository")
    source = make_tiny_classifier(folder / "source", max_position=64)
    build_classifier(folder / "repository", source, lengths=[16, 64])
    base = tiny_base(tmp_path_factory)
    base.add(base.copy(folder / "repository", "base"), "lora", 1)
    build_decoder(folder, "writer", write_decoder(folder / "decoder", "gpt2"), slots=2)
    return folder / "repository"


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


def copy_sources(target: Path) -> Path:
    """A copy of what a wheel is packed from: a build leaves files beside its sources."""
    for name in SOURCES:
        shutil.copytree(CHECKOUT / name, target / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy2(CHECKOUT / name, target)
    return target


def pack(source: Path, target: Path, *options: str) -> None:
    pip("wheel", "--no-deps", "--no-build-isolation", *options, "--wheel-dir", str(target), str(source))


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    subprocess.run(command, check=True, timeout=240, capture_output=True, text=True)


def test_every_backend_is_in_the_wheel(wheel: Path) -> None:
    wanted = {
        path.relative_to(CHECKOUT / "backends").as_posix()
        for pattern in (
            "*/model.py",
            "native/*.hpp",
            "*/native/*.?pp",
            "answers/*.cpp",
            "batcher/*.?pp",
            "batcher/*.h",
            "http_guard/*.?pp",
        )
        for path in CHECKOUT.glob(f"backends/{pattern}")
    }
    names = zipfile.ZipFile(wheel).namelist()
    packed = {path for name in names if (path := name.partition(PLACE)[2])}
    assert {path for path in packed if not path.endswith(".so")} == wanted
    assert wanted


def test_native_parts_are_in_a_wheel_for_one_platform(wheel: Path) -> None:
    packed = [path for name in zipfile.ZipFile(wheel).namelist() if (path := name.partition(PLACE)[2]).endswith(".so")]
    assert len(packed) == len(NATIVE)
    assert all(path.startswith(known) for path, known in zip(sorted(packed), NATIVE, strict=True))
    assert wheel.name.endswith(f"-py3-none-{sysconfig.get_platform().replace('-', '_')}.whl")


def test_a_wheel_without_native_parts_is_for_any_platform(tmp_path: Path) -> None:
    source = copy_sources(tmp_path / "source")
    stale = source / "backends" / "batcher" / "build"
    stale.mkdir(exist_ok=True)
    (stale / "tidal_batcher.so").write_bytes(b"of an earlier build")
    pack(source, tmp_path, "--config-setting", "native=skip")
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]


def test_a_wheel_whose_native_parts_do_not_compile_is_not_packed(tmp_path: Path) -> None:
    source = copy_sources(tmp_path / "source")
    shutil.rmtree(source / "backends" / "batcher" / "build", ignore_errors=True)
    for file in (source / "backends" / "batcher").glob("*.cpp"):  # all, or the others would be compiled first
        file.write_text("no C++")
    with pytest.raises(subprocess.CalledProcessError) as failure:
        pack(source, tmp_path)
    assert "'python -m tidal.batcher.build' failed" in failure.value.stderr
    assert "native=skip" in failure.value.stderr


def test_openvino_is_pinned_to_the_tested_version() -> None:
    """Another OpenVINO could not load the operators in the wheel: its libraries have its version in their names."""
    serve = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["serve"]
    (pinned,) = [line for line in serve if line.startswith("openvino")]
    assert pinned in (CHECKOUT / "constraints.txt").read_text().splitlines()


def test_every_module_is_in_the_wheel(wheel: Path) -> None:
    wanted = {
        path.relative_to(CHECKOUT / root).as_posix()
        for root in SOURCES
        for path in CHECKOUT.glob(f"{root}/tidal*/**/*.py")
    }
    assert wanted <= set(zipfile.ZipFile(wheel).namelist())


@pytest.mark.server
def test_every_backend_serves_with_its_native_parts(environment: Path, repository: Path, tmp_path: Path) -> None:
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
    doctor = json.loads(run("doctor", "--json"))
    assert doctor["can_serve"] is True
    parts = ("compiled core", "decoder kernels", "batcher")
    native = {check["name"]: check for check in doctor["checks"] if check["name"] in parts}
    for check in native.values():
        assert (check["verdict"], Path(check["found"]).is_relative_to(environment)) == ("ok", True), check
    assert len(native) == len(parts)
    assert "--assemble" in run("serve", "--help")
    assert json.loads(run("build", "--schema"))
    isolated = ["env", "-u", "PYTHONPATH", f"--chdir={tmp_path}", *command]
    with serving(repository, tmp_path / "runtime", command=isolated) as served:
        with Client(f"grpc://{served.report['grpc']}") as client:
            assert client.classify("tiny", "good").label
            assert client.classify("base", "good", task="lora_1").label
            assert client.generate("writer", "good", max_tokens=3).finish_reason
        for model, native_part in (("base", NATIVE[4]), ("writer", NATIVE[2]), ("tiny", NATIVE[0])):
            (stub,) = served.stubs(model)
            mapped = {entry.path for entry in stub.memory_maps()}
            assert any(
                path.startswith(f"{environment / 'share' / 'tidal' / 'backends'}/{native_part}") for path in mapped
            )
        (stub,) = served.stubs("tiny")
        assert stub.environ()["PATH"].startswith(f"{environment / 'bin'}{os.pathsep}")
        answer = run("infer", "tiny", "--text", "good", "--url", f"grpc://{served.report['grpc']}", "--json")
        assert json.loads(answer)["label"]
