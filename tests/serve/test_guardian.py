"""The guardian's end when the guardian or its parent is killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tidal.server.guardian import Guardian


def test_dismissing_a_dead_guardian_raises_nothing(tmp_path: Path) -> None:
    guardian = Guardian("tidal_test_guardian_", 1.0, tmp_path)
    guardian._process.kill()
    guardian._process.wait()
    guardian.dismiss()
    assert tmp_path.exists()


def test_a_parent_killed_before_its_first_message_leaves_no_traceback() -> None:
    command = [sys.executable, "-m", "tidal.server.guardian"]
    ended = subprocess.run(command, input="", capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
