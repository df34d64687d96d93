"""Runs the tests that need a GPU, and records which failed."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree

from benchmarks.gpu.recording import Record, Setting
from benchmarks.gpu.running import ROOT

# Folders with tests that need a GPU, and the file that a dry run collects.
_FOLDERS = ("tests/engines", "tests/pets/engine", "tests/flover/models", "tests/flover/sampling")
_DRY = ("tests/engines/test_contract.py",)


def measure(setting: Setting, record: Record) -> None:
    """Run the tests; claims `gpu_tests_failed`, unless no test ran."""
    results = setting.folder / "gpu_tests.xml"
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-p", "no:cacheprovider", f"--junitxml={results}"]
    done = subprocess.run([*command, *setting.choose(_FOLDERS, _DRY)], cwd=ROOT, check=False)
    record.put("exit code", done.returncode)
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    failed, reasons = [], set[str]()
    for case in ElementTree.parse(results).iter("testcase"):
        outcome = {child.tag: child for child in case}
        skipped = outcome.get("skipped")
        if "failure" in outcome or "error" in outcome:
            counts["failed"] += 1
            failed.append(f"{case.get('classname')}.{case.get('name')}")
        elif skipped is not None:
            counts["skipped"] += 1
            reasons.add(str(skipped.get("message"))[:200])
        else:
            counts["passed"] += 1
    record.put("tests", counts)
    record.put("failed tests", failed)
    record.put("reasons of skipped tests", sorted(reasons))
    if counts["passed"] + counts["failed"]:
        record.claim("gpu_tests_failed", counts["failed"])
    record.table("tests that need a GPU", list(counts), [[str(count) for count in counts.values()]])
