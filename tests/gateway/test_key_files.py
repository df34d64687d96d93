"""Files of keys, and rates that workers share, without a server."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from testing.serving import tidal_in_process
from tidal.errors import InvalidArgument, NotFound
from tidal_gateway.keys.rates import RateTable, create_table
from tidal_gateway.keys.store import KeyStore, add_key, read_keys, revoke_key


class TestKeyFile:
    def test_the_commands(self, tmp_path: Path) -> None:
        file = ["--file", str(tmp_path / "keys.json")]
        environment = {"PATH": ""}
        limits = ["--model", "encoder/*", "--requests-per-minute", "5", "--json"]
        added = tidal_in_process("keys", "add", "team", *file, *limits, environment=environment)
        entry = json.loads(added.stdout)
        listed = tidal_in_process("keys", "list", *file, "--json", environment=environment)
        assert json.loads(listed.stdout) == [{name: value for name, value in entry.items() if name != "key"}]
        assert (entry["models"], entry["requests_per_minute"]) == (["encoder/*"], 5)
        content = (tmp_path / "keys.json").read_text()
        assert entry["key"].split("-", 2)[2] not in content
        assert len(entry["key"]) > 50
        assert (tmp_path / "keys.json").stat().st_mode & 0o077 == 0
        revoked = tidal_in_process("keys", "revoke", entry["id"], *file, environment=environment)
        assert revoked.returncode == 0
        (kept,) = read_keys(tmp_path / "keys.json").keys
        assert kept.revoked is not None
        again = tidal_in_process("keys", "revoke", entry["id"], *file, environment=environment)
        assert (again.returncode, "was revoked at" in again.stderr) == (1, True)

    def test_the_list_has_all_of_each_key(self, tmp_path: Path) -> None:
        path = tmp_path / "keys.json"
        _, first = add_key(
            path, "search team", models=("encoder/*", "intent"), requests_per_minute=5, max_concurrency=2
        )
        _, second = add_key(path, "other")
        revoke_key(path, second.id)
        listed = tidal_in_process("keys", "list", "--file", str(path), environment={"PATH": ""})
        head, *rows = (re.split(r" {2,}", line) for line in listed.stdout.splitlines())
        assert head == ["id", "name", "models", "limits", "created", "revoked"]
        created = first.created.isoformat().replace("+00:00", "Z")
        limits = "5 requests/min, 2 concurrent"
        assert rows[0] == [first.id, "search team", "encoder/*, intent", limits, created, "no"]
        assert rows[1][:4] == [second.id, "other", "all", "none"]
        assert rows[1][5].startswith("20")
        document = tidal_in_process("keys", "list", "--file", str(path), "--json", environment={"PATH": ""})
        names = {"id", "name", "models", "requests_per_minute", "tokens_per_minute", "max_concurrency"}
        assert all(each.keys() == names | {"created", "revoked"} for each in json.loads(document.stdout))

    def test_a_revoked_key_is_not_found(self, tmp_path: Path) -> None:
        key, entry = add_key(tmp_path / "k", "x")
        store = KeyStore(tmp_path / "k")
        assert store.find(key) == entry
        revoke_key(tmp_path / "k", entry.id)
        store._checked -= 10
        assert store.find(key) is None

    def test_a_new_key_is_found_at_once(self, tmp_path: Path) -> None:
        add_key(tmp_path / "k", "x")
        store = KeyStore(tmp_path / "k")
        key, entry = add_key(tmp_path / "k", "y")
        assert store.find(key) == entry

    def test_many_processes_may_add_at_once(self, tmp_path: Path) -> None:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda number: add_key(tmp_path / "keys.json", str(number)), range(40)))
        assert {each.name for each in read_keys(tmp_path / "keys.json").keys} == {str(number) for number in range(40)}

    def test_only_the_whole_key_is_found(self, tmp_path: Path) -> None:
        key, entry = add_key(tmp_path / "keys.json", "one")
        other, _ = add_key(tmp_path / "keys.json", "other")
        store = KeyStore(tmp_path / "keys.json")
        assert store.find(key) == entry
        mixed = f"tidal-{entry.id}-{other.split('-', 2)[2]}"
        for wrong in ("", key[:-1], f"{key}x", key.upper(), mixed, f"tidal-{entry.id}", "tidal--", "x" * 10_000, "é"):
            assert store.find(wrong) is None

    @pytest.mark.parametrize("text", ["", "[]", '{"keys": [{}]}', '{"keys": 3}', '{"kys": []}'])
    def test_a_broken_file_is_refused_at_start_and_ignored_later(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, text: str
    ) -> None:
        # The configuration of workers, which other tests load, keeps this logger's lines from caplog.
        monkeypatch.setattr(logging.getLogger("tidal_gateway"), "propagate", True)
        path = tmp_path / "keys.json"
        key, _ = add_key(path, "one")
        store = KeyStore(path)
        path.write_text(text)
        with pytest.raises(InvalidArgument, match="is not a file of keys"):
            KeyStore(path)
        store._checked -= 10
        assert store.find(key) is not None
        assert f"the previous keys stay in use: {path} is not a file of keys" in caplog.text

    def test_a_key_of_a_model_covers_its_tasks(self, tmp_path: Path) -> None:
        _, entry = add_key(tmp_path / "k", "x", models=("encoder", "other/mood", "group-*"))
        allowed = [("encoder", ""), ("encoder", "any"), ("other", "mood"), ("group-1", ""), ("group-1", "x")]
        assert all(entry.allows(*each) for each in allowed)
        assert not any(
            entry.allows(*each) for each in [("other", ""), ("other", "news"), ("encoder2", ""), ("grou", "")]
        )

    def test_revoking_an_unknown_key(self, tmp_path: Path) -> None:
        add_key(tmp_path / "k", "x")
        with pytest.raises(NotFound, match="has no key with the id 'abcd'"):
            revoke_key(tmp_path / "k", "abcd")


class TestRateTable:
    def test_workers_share_the_rates(self, tmp_path: Path) -> None:
        create_table(tmp_path / "rates")
        _, key = add_key(tmp_path / "k", "x", requests_per_minute=10)
        tables = [RateTable(tmp_path / "rates") for _ in range(3)]
        accepted = 0
        for number in range(30):
            try:
                with tables[number % 3].request(key):
                    accepted += 1
            except Exception as error:
                assert getattr(error, "status", None) == 429
        assert accepted == 10

    def test_requests_at_a_time_are_given_back_also_by_a_killed_worker(self, tmp_path: Path) -> None:
        create_table(tmp_path / "rates")
        _, key = add_key(tmp_path / "k", "x", max_concurrency=2)
        code = (
            "import sys, os, signal; from pathlib import Path\n"
            "from tidal_gateway.keys.rates import RateTable; from tidal_gateway.keys.store import read_keys\n"
            f"key = read_keys(Path({str(tmp_path / 'k')!r})).keys[0]\n"
            f"table = RateTable(Path({str(tmp_path / 'rates')!r}))\n"
            "first = table.request(key); first.__enter__(); second = table.request(key); second.__enter__()\n"
            "os.kill(os.getpid(), signal.SIGKILL)"
        )
        subprocess.run([sys.executable, "-c", code], check=False)
        table = RateTable(tmp_path / "rates")
        with table.request(key), table.request(key), pytest.raises(Exception, match="2 requests in flight"):
            table.request(key).__enter__()
        with table.request(key):
            pass
