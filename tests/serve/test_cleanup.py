"""Waiting for the processes of a server to end."""

from __future__ import annotations

import subprocess
import sys
import threading

import psutil

from tidal.server.cleanup import wait_ended


def test_a_zombie_has_ended() -> None:
    """A container's init may never reap orphans."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        process = psutil.Process(child.pid)
        wait_ended([process], 0.05)
        assert process.status() != psutil.STATUS_ZOMBIE
        waiting = threading.Thread(target=wait_ended, args=([process], 600), daemon=True)
        waiting.start()
        child.kill()
        waiting.join(60)
        assert not waiting.is_alive()
        assert process.status() == psutil.STATUS_ZOMBIE
    finally:
        child.communicate()
    wait_ended([process], 600)
