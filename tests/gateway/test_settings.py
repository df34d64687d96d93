"""Settings from flags, environment and file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testing.serving import tidal_in_process
from tidal.errors import InvalidArgument
from tidal_gateway.settings import PREFIX, GatewaySettings, parse_server, read_settings


def test_a_flag_replaces_a_variable_which_replaces_a_line(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("port: 1\nworkers: 2\ntimeout_s: 3\nretry_ratio: 0.5\nserver: ['a:1', 'b:2,status=b:3']\n")
    found = read_settings({"port": 10, "workers": None, "server": []}, {f"{PREFIX}WORKERS": "5", "HOME": "/"}, file)
    assert (found.port, found.workers, found.timeout_s, found.retry_ratio) == (10, 5, 3, 0.5)
    assert found.server == ("a:1", "b:2,status=b:3")


def test_lists_of_the_environment_are_separated_by_spaces() -> None:
    found = read_settings({}, {f"{PREFIX}SERVER": "a:1 b:2,status=b:3"}, None)
    assert [parse_server(each) for each in found.server] == [("a:1", None), ("b:2", "b:3")]


@pytest.mark.parametrize(
    ("flags", "environment", "text", "message"),
    [
        ({}, {}, "prot: 1", "unknown setting 'prot': did you mean 'port'"),
        ({}, {f"{PREFIX}WORKER": "1"}, "", "did you mean 'TIDAL_GATEWAY_WORKERS'"),
        ({"port": 70000}, {}, "", "setting 'port'"),
        ({}, {f"{PREFIX}RETRY_RATIO": "-1"}, "", "setting 'retry_ratio': input should be greater than or equal to 0"),
        ({"server": ["nope"]}, {}, "", "server 'nope': expected HOST:PORT"),
        ({"server": ["a:1,statu=b:1"]}, {}, "", "expected HOST:PORT"),
        ({"server": ["a:99999"]}, {}, "", "expected HOST:PORT"),
        ({"tls_cert": Path("/x")}, {}, "", "expected both or none"),
        ({"tls_client_ca": Path("/x")}, {}, "", "requires tls_cert"),
        ({"keys": Path("/nonexistent")}, {}, "", "keys: '/nonexistent' is not a file"),
        ({"host": "0.0.0.0"}, {}, "", "there are no keys"),
        ({}, {}, "- 1", "expected a mapping"),
        ({}, {}, "a: [", "cannot be read as YAML"),
    ],
)
def test_what_is_not_accepted_is_named(
    flags: dict[str, Any], environment: dict[str, str], text: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(text)
    with pytest.raises(InvalidArgument, match=None) as caught:
        read_settings(flags, environment, file)
    assert message in str(caught.value)


def test_open_to_everybody_must_be_chosen(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text('{"keys": []}')
    assert read_settings({"host": "0.0.0.0", "open": True}, {}, None).keys is None
    assert read_settings({"host": "0.0.0.0", "keys": keys}, {}, None).keys == keys


def test_every_setting_is_a_flag(tmp_path: Path) -> None:
    result = tidal_in_process("gateway", "--help", environment={"COLUMNS": "200", "PATH": ""})
    for name in GatewaySettings.model_fields:
        assert f"--{name.replace('_', '-')}" in result.stdout
    wrong = tidal_in_process("gateway", "--server", "nope", environment={"PATH": ""})
    assert (wrong.returncode, "expected HOST:PORT" in wrong.stderr) == (2, True)
