"""Import of LoRA adapters that peft saved, and the folders of tasks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from testing.decoders import tiny_model
from tests.flover.tasks.adapters import DIGEST, base_of, edit, peft_model, save_adapter
from tidal.errors import InvalidArgument, TidalError, Unsupported
from tidal.flover.tasks.adapter import lora_adapter
from tidal.flover.tasks.folder import DecoderBase, FloverProvenance, add_task, copy_task, load_task
from tidal.flover.tasks.layers import layer_slices
from tidal.tasks.low_rank import LowRankDelta
from tidal.tasks.stored import Storage
from tidal_builders.flover.importing import import_lora

Saved = Callable[[str, str], Path]
BASE = base_of("gpt2")
MADE = FloverProvenance(source="here")


@pytest.mark.parametrize(
    "options",
    [
        {"target_modules": "all-linear"},
        {"use_rslora": True, "fan_in_fan_out": True},
        {"rank_pattern": {"c_fc": 2}, "alpha_pattern": {r"h\.1\..*c_attn": 32, "c_fc": 5}},
        {"layers_to_transform": [1], "init_lora_weights": "gaussian"},
    ],
)
def test_deltas_equal_what_peft_merges(tmp_path: Path, options: dict[str, Any]) -> None:
    save_adapter(tmp_path, **options)
    before, after = tiny_model("gpt2").state_dict(), peft_model(tmp_path, merged=True).state_dict()
    deltas = import_lora(tmp_path, BASE).deltas
    for name, weight in after.items():
        path = name.removeprefix("transformer.").removesuffix(".weight")
        found = before[name].clone()
        if path in deltas:
            delta = deltas[path]
            found += torch.from_numpy((delta.up @ delta.down).T * delta.scale)  # GPT-2 keeps [inputs, outputs]
        torch.testing.assert_close(found, weight, rtol=1e-5, atol=1e-6)


def test_fan_in_fan_out_is_refused_for_families_with_linear_layers(saved: Saved, tmp_path: Path) -> None:
    save_adapter(tmp_path, "llama", fan_in_fan_out=False)
    edit(tmp_path, fan_in_fan_out=True)
    with pytest.raises(Unsupported, match="fan_in_fan_out is set"):
        import_lora(tmp_path, base_of("llama"))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"use_dora": True}, "DoRA scales whole columns"),
        ({"bias": "all"}, "is trained in addition to LoRA factors"),
        ({"lora_bias": True}, "lora_B.bias' is trained in addition to LoRA factors"),
        ({"modules_to_save": ["ln_f"]}, r"ln_f\.\w+' is trained in addition to LoRA factors"),
        ({"task_type": "SEQ_CLS"}, "is an adapter of a text classifier"),
        ({"target_modules": ["lm_head"]}, "'lm_head' is changed, but it is not a linear layer of the base that tasks"),
        ({"target_modules": ["wte"]}, "'transformer.wte' is LoRA on an embedding"),
    ],
)
def test_unsupported_adapters_are_refused(tmp_path: Path, options: dict[str, Any], reason: str) -> None:
    save_adapter(tmp_path, **options)
    with pytest.raises(TidalError, match=reason):
        import_lora(tmp_path, BASE)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, "is not a task of a decoder"),
        ({"config.json": "{}", "model.safetensors": ""}, "is not a task of a decoder"),
        ({"adapter_config.json": '{"peft_type": "PREFIX_TUNING"}'}, "peft_type is PREFIX_TUNING; accepted is LORA"),
        ({"adapter_config.json": '{"config": {"mh_adapter": true}}'}, "peft_type is None; accepted is LORA"),
    ],
)
def test_folders_without_a_lora_adapter_are_refused(tmp_path: Path, files: dict[str, str], reason: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(TidalError, match=reason):
        import_lora(tmp_path, BASE)


def test_adapters_of_other_layers_or_sizes_are_refused(saved: Saved) -> None:
    with pytest.raises(TidalError, match="not a linear layer of the base"):
        import_lora(saved("llama", "usual"), BASE)
    larger = DecoderBase(DIGEST, BASE.form.model_copy(update={"width": 64, "inner": 256}))
    with pytest.raises(InvalidArgument, match=r"are \[\[8, 32\], \[96, 8\]\]; expected \[rank, 64\]"):
        import_lora(saved("gpt2", "usual"), larger)


class TestFolder:
    def deltas(self, saved: Saved) -> dict[str, LowRankDelta]:
        return import_lora(saved("gpt2", "usual"), BASE)[0]

    @pytest.mark.parametrize("half", [False, True])
    def test_a_loaded_or_copied_task_equals_the_stored_one(self, saved: Saved, tmp_path: Path, half: bool) -> None:
        wanted = self.deltas(saved)
        added = add_task(tmp_path / "t", "bard", wanted, BASE, MADE, storage=Storage(half))
        copied = copy_task(tmp_path / "u", "again", tmp_path / "t/bard", BASE)
        for task in (added, load_task(tmp_path / "t", "bard", BASE), copied, load_task(tmp_path / "u", "again", BASE)):
            assert task.deltas.keys() == wanted.keys()
            assert task.record.memory_bytes == task.bytes
            for path, delta in task.deltas.items():
                np.testing.assert_allclose(delta.down, wanted[path].down, rtol=1e-3 if half else 0, atol=1e-6)
                np.testing.assert_allclose(delta.up, wanted[path].up, rtol=1e-3 if half else 0, atol=1e-6)
                assert delta.scale == wanted[path].scale

    def test_the_size_is_that_of_the_factors_in_memory(self, saved: Saved, tmp_path: Path) -> None:
        task = add_task(tmp_path, "bard", self.deltas(saved), BASE, MADE)
        adapter = lora_adapter(task.deltas, layer_slices(BASE.form))
        parts = [factors for of_projection in adapter.factors.values() for factors in of_projection]
        assert task.bytes == sum(part.down.nbytes + part.up.nbytes for part in parts)

    def test_another_base_is_refused(self, saved: Saved, tmp_path: Path) -> None:
        add_task(tmp_path, "bard", self.deltas(saved), BASE, MADE)
        with pytest.raises(InvalidArgument, match="task 'bard' is refused: it was made for the base 000000000000…"):
            load_task(tmp_path, "bard", DecoderBase("1" * 64, BASE.form))

    @pytest.mark.parametrize(
        ("changed", "reason"),
        [
            (
                {"h.0.attn.c_att/down": np.ones((2, 32))},
                "has no layer 'h.0.attn.c_att'.*did you mean 'h.0.attn.c_attn'",
            ),
            (
                {"h.0.attn.c_attn/more": np.ones(3)},
                "c_attn/more' is not a tensor of LoRA; accepted are down, up and scale",
            ),
            ({"h.0.attn.c_attn/scale": None}, "c_attn/scale' is missing"),
            ({"h.0.attn.c_attn/up": np.ones((95, 8))}, r"accepted: \[96, 8\]"),
            ({"h.0.attn.c_attn/down": np.full((8, 32), np.nan)}, "has values that are not finite"),
            ({"h.0.attn.c_attn/down": np.ones((33, 32))}, "has rank 33; accepted: up to 32"),
            ({"nonsense": np.ones(3)}, "accepted are names like <layer>/<part>"),
        ],
    )
    def test_invalid_tensors_are_refused(
        self, saved: Saved, tmp_path: Path, changed: dict[str, Any], reason: str
    ) -> None:
        add_task(tmp_path, "bard", self.deltas(saved), BASE, MADE)
        self.rewrite(tmp_path / "bard", changed)
        with pytest.raises(InvalidArgument, match=f"task 'bard' is refused: .*{reason}"):
            load_task(tmp_path, "bard", BASE)

    def test_damaged_empty_and_other_tasks_are_refused(self, saved: Saved, tmp_path: Path) -> None:
        add_task(tmp_path, "bard", self.deltas(saved), BASE, MADE)
        with pytest.raises(InvalidArgument, match="the task changes no layer"):
            add_task(tmp_path, "none", {}, BASE, MADE)
        record = tmp_path / "bard/task.json"
        content = record.read_text()
        record.write_text(json.dumps(json.loads(content) | {"kind": "adapter"}))
        with pytest.raises(InvalidArgument, match="kind: Input should be 'lora'"):
            load_task(tmp_path, "bard", BASE)
        record.write_text(content)
        file = tmp_path / "bard/task.safetensors"
        file.write_bytes(file.read_bytes()[:-1])
        with pytest.raises(InvalidArgument, match=r"task.safetensors does not match its size and hash in task.json"):
            load_task(tmp_path, "bard", BASE)

    @staticmethod
    def rewrite(folder: Path, changed: dict[str, Any]) -> None:
        """Replace tensors of a stored task and update their size and hash."""
        import hashlib

        file, record = folder / "task.safetensors", folder / "task.json"
        tensors: dict[str, Any] = {**load_file(file), **changed}
        kept = {name: np.asarray(each, np.float32) for name, each in tensors.items() if each is not None}
        save_file(kept, file)
        content = json.loads(record.read_text())
        content["tensors"] |= {
            "bytes": file.stat().st_size,
            "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        }
        record.write_text(json.dumps(content))
