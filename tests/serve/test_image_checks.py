"""`tidal doctor --image`: whether server, Python and TensorRT of an image fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from testing.serving import environment_in, tidal_in_process
from tidal.server import diagnosis, image_checks
from tidal.server.doctor_check import DoctorCheck
from tidal.server.releases import RELEASES, SECURE_SINCE


def verdicts(checks: list[DoctorCheck]) -> dict[str, str]:
    return {check.name.removeprefix("image "): check.verdict for check in checks}


def test_every_documented_release_that_is_secure_passes_with_its_python() -> None:
    for release in RELEASES:
        found = verdicts(image_checks.image_checks(release.version, release.python, ()))
        assert found["release"] == ("ok" if release.name >= SECURE_SINCE else "bad")
        assert found["Python"] == "ok"


def test_the_python_must_be_that_of_the_stub() -> None:
    (check,) = [each for each in image_checks.image_checks("2.75.0", "3.11", ()) if each.name == "image Python"]
    assert check.verdict == "bad"
    assert "stub of 26.11 is built for 3.12" in check.found


def test_a_later_release_than_those_documented_passes_with_a_note() -> None:
    assert verdicts(image_checks.image_checks("2.76.0", "3.12", ())) == {
        "release": "ok", "Python": "note", "TensorRT": "note",
    }  # fmt: skip


def test_an_unknown_version_is_refused() -> None:
    assert verdicts(image_checks.image_checks(None, "3.12", ()))["release"] == "bad"


@pytest.mark.parametrize(
    ("installed", "in_image", "verdict"),
    [
        (None, "10.16.1", "note"),
        (None, None, "note"),
        ("10.16.1.11", None, "note"),
        ("10.16.1.11", "10.16.1", "ok"),
        ("10.16.1.11.post1", "10.16.1", "ok"),
        ("10.14.1.48", "10.16.1", "bad"),
        ("11.1.0.106", "10.16.1", "bad"),
    ],
)
def test_tensorrt_of_environment_and_image_must_be_the_same(
    installed: str | None, in_image: str | None, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_checks, "library_version", lambda _name: installed)
    if in_image is not None:
        for name in ("libnvinfer.so", f"libnvinfer.so.{in_image.split('.')[0]}", f"libnvinfer.so.{in_image}"):
            (tmp_path / name).touch()
        (tmp_path / f"libnvinfer_plugin.so.{in_image}").touch()
    (check,) = [
        each
        for each in image_checks.image_checks("2.75.0", "3.12", [tmp_path, tmp_path / "absent"])
        if each.name == "image TensorRT"
    ]
    assert check.verdict == verdict
    if verdict == "bad":
        assert f"TENSORRT_VERSION='{in_image}.*'" in check.advice


def test_the_newest_library_counts(tmp_path: Path) -> None:
    for version in ("10.9.0", "10.16.1"):
        (tmp_path / f"libnvinfer.so.{version}").touch()
    assert image_checks.image_tensorrt([tmp_path]) == "10.16.1"


def test_the_command_leaves_the_machine_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "_server", lambda _installation: DoctorCheck("tritonserver", "ok", "2.75.0"))
    answer = tidal_in_process("doctor", "--image", "--json", environment=environment_in(tmp_path))
    checks = {check["name"]: check for check in json.loads(answer.stdout)["checks"]}
    assert {"image release", "image Python", "image TensorRT"} <= checks.keys()
    assert not {"GPU", "/dev/shm", "leftovers", "port 8000"} & checks.keys()
    # The server of this environment is an old one.
    assert checks["image release"]["verdict"] == "bad"
    assert answer.returncode == 1
