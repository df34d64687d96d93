"""The configurations of Prometheus and Alertmanager, held to by their own tools: `promtool` and `amtool`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.deploy.project import ROOT, documents

_PROMTOOL, _AMTOOL = shutil.which("promtool"), shutil.which("amtool")
promtool = pytest.mark.skipif(_PROMTOOL is None, reason="no promtool on PATH: apt-get install prometheus")
amtool = pytest.mark.skipif(_AMTOOL is None, reason="no amtool on PATH: apt-get install prometheus-alertmanager")
ALERTMANAGER = ROOT / "deploy" / "alertmanager" / "alertmanager.yml"


def run(*words: str | Path | None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=60, check=False)


def routed(**labels: str) -> list[str]:
    """The receivers of an alert with these labels."""
    pairs = [f"{name}={value}" for name, value in labels.items()]
    return run(_AMTOOL, "config", "routes", "test", f"--config.file={ALERTMANAGER}", *pairs).stdout.split()


@promtool
@pytest.mark.parametrize("name", ["prometheus.yml", "cluster.yml"])
def test_prometheus_accepts_its_configuration_and_rules(tmp_path: Path, name: str) -> None:
    found = run(_PROMTOOL, "check", "config", ROOT / "deploy" / "prometheus" / name)
    assert found.returncode == 0, found.stderr
    (config,) = documents(f"deploy/prometheus/{name}")
    (tmp_path / "wrong.yml").write_text(yaml.safe_dump({**config, "scrape_config": []}))
    assert run(_PROMTOOL, "check", "config", tmp_path / "wrong.yml").returncode != 0


@promtool
def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    cases = Path(__file__).with_name("alerts_test.yml")
    found = run(_PROMTOOL, "test", "rules", cases)
    assert found.returncode == 0, found.stdout + found.stderr
    tested = {
        each["alertname"] for test in yaml.safe_load(cases.read_text())["tests"] for each in test["alert_rule_test"]
    }
    (rules,) = documents("deploy/prometheus/alerts.yml")
    assert tested == {rule["alert"] for rule in rules["groups"][0]["rules"]}
    # An alert that never fires is found.
    (tmp_path / "alerts.yml").write_text((ROOT / "deploy/prometheus/alerts.yml").read_text().replace("> 0.05", "> 0.5"))
    (tmp_path / "cases.yml").write_text(cases.read_text().replace("../../deploy/prometheus/alerts.yml", "alerts.yml"))
    assert run(_PROMTOOL, "test", "rules", tmp_path / "cases.yml").returncode != 0


@amtool
def test_alertmanager_accepts_its_configuration(tmp_path: Path) -> None:
    found = run(_AMTOOL, "check-config", ALERTMANAGER)
    assert found.returncode == 0, found.stdout + found.stderr
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(ALERTMANAGER.read_text().replace("receiver: pager", "receiver: nobody"))
    assert run(_AMTOOL, "check-config", wrong).returncode != 0


@amtool
def test_alerts_reach_a_receiver_by_their_severity() -> None:
    (rules,) = documents("deploy/prometheus/alerts.yml")
    severities = {rule["alert"]: rule["labels"]["severity"] for rule in rules["groups"][0]["rules"]}
    assert set(severities.values()) == {"critical", "warning"}
    for name, severity in severities.items():
        expected = {"critical": "pager", "warning": "tickets"}[severity]
        assert routed(alertname=name, severity=severity) == [expected]


@amtool
def test_commented_integrations_are_accepted_too(tmp_path: Path) -> None:
    lines = [line.replace("    # ", "    ") if line.startswith("    # ") else line for line in _lines(ALERTMANAGER)]
    filled = tmp_path / "filled.yml"
    filled.write_text("\n".join(lines))
    receivers = yaml.safe_load(filled.read_text())["receivers"]
    assert all(len(each) == 2 for each in receivers)
    found = run(_AMTOOL, "check-config", filled)
    assert found.returncode == 0, found.stdout + found.stderr


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()
