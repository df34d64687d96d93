"""Checkpoints of integers: packed here by the formats' definitions, and by compressed-tensors' own library."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from testing.decoders import build_decoder, byte_ids, tiny_model, write_decoder
from tests.flover.generating import generated_by_transformers
from tidal.errors import InvalidArgument
from tidal.flover.architectures import form_of
from tidal.flover.manifest import WEIGHTS_FILE, load_flover_manifest
from tidal.flover.models.quantized import Quantized
from tidal.flover.models.weights_file import load_weights
from tidal_builders.flover.converting import SourceTensors, write_weights
from tidal_builders.flover.quantized_checkpoints import read_layer, scheme_of
from tidal_builders.flover.source import load_causal_lm

GROUP = 32
# Sizes of which groups are a whole number.
_WIDE = {
    "gemma2": {"head_dim": 16},
    "qwen3_moe": {"moe_intermediate_size": 64},
    "qwen2_moe": {"moe_intermediate_size": 64, "shared_expert_intermediate_size": 32, "mlp_only_layers": [0]},
}
Tensors = dict[str, torch.Tensor]


def rounded(weight: torch.Tensor, bits: int, group: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Integers [outputs, inputs], and scales and zeros [outputs, groups], of a weight; scales fit float16."""
    draw = np.random.default_rng(weight.shape[0])
    values = weight.numpy().reshape(len(weight), -1, group)
    most = 2**bits - 1
    scales = np.float16((values.max(-1) - values.min(-1)) / most).astype(np.float64)
    zeros = np.clip(np.rint(-values.min(-1) / scales), 1, most).astype(np.int64)
    zeros = np.clip(zeros + draw.integers(-1, 2, zeros.shape), 1, most)
    integers = np.clip(np.rint(values / scales[..., None]) + zeros[..., None], 0, most).astype(np.int64)
    return integers.reshape(weight.shape), scales, zeros


def weight_of(integers: np.ndarray, scales: np.ndarray, zeros: np.ndarray, group: int) -> np.ndarray:
    """What they stand for, one weight at a time."""
    found = np.empty(integers.shape)
    for output, given in np.ndindex(*integers.shape):
        found[output, given] = (integers[output, given] - zeros[output, given // group]) * scales[
            output, given // group
        ]
    return found


def words(rows: np.ndarray, bits: int, order: tuple[int, ...] | None = None) -> torch.Tensor:
    """Pack each row's integers into words of 32 bits, from the lowest bits on."""
    count = 32 // bits
    packed = np.zeros((len(rows), -(-rows.shape[1] // count)), np.uint64)
    for row, column in np.ndindex(*packed.shape):
        for place in range(count):
            source = column * count + (place if order is None else order[place])
            if source < rows.shape[1]:
                packed[row, column] |= np.uint64(int(rows[row, source]) << (place * bits))
    return torch.from_numpy(packed.astype(np.uint32).view(np.int32))


def gptq(name: str, weight: torch.Tensor, bits: int = 4, *, offset: int = 1, shuffled: bool = False) -> Tensors:
    """A layer as GPTQ's tools write it: words along inputs, zeros less 1."""
    order = np.arange(weight.shape[1])
    if shuffled:
        order = np.random.default_rng(1).permutation(weight.shape[1])
    integers, scales, zeros = rounded(weight[:, order.copy()], bits, GROUP)
    groups = np.empty_like(order)
    groups[order] = np.arange(len(order)) // GROUP
    back = np.argsort(order)
    return {
        f"{name}.qweight": words(integers[:, back], bits).T.contiguous(),
        f"{name}.qzeros": words((zeros - offset).T, bits),
        f"{name}.scales": torch.from_numpy(scales.T.astype(np.float16)),
        f"{name}.g_idx": torch.from_numpy(groups.astype(np.int32)),
    }


def awq(name: str, weight: torch.Tensor, bits: int = 4) -> Tensors:
    """A layer as AWQ's GEMM form has it: words along outputs, in the order 0, 2, 4, 6, 1, 3, 5, 7."""
    integers, scales, zeros = rounded(weight, bits, GROUP)
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    return {
        f"{name}.qweight": words(integers.T, bits, order),
        f"{name}.qzeros": words(zeros.T, bits, order),
        f"{name}.scales": torch.from_numpy(scales.T.astype(np.float16)),
    }


def pack_quantized(name: str, weight: torch.Tensor, bits: int = 4) -> Tensors:
    """A layer of compressed-tensors with zeros: words along inputs, zeros packed along outputs."""
    integers, scales, zeros = rounded(weight, bits, GROUP)
    return {
        f"{name}.weight_packed": words(integers, bits),
        f"{name}.weight_scale": torch.from_numpy(scales.astype(np.float32)),
        f"{name}.weight_zero_point": words(zeros.T, bits).T.contiguous(),
        f"{name}.weight_shape": torch.tensor(weight.shape),
    }


CONFIGS: dict[str, dict[str, Any]] = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": False},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"},
    "pack-quantized": {
        "quant_method": "compressed-tensors", "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
            "num_bits": 4, "type": "int", "symmetric": False, "strategy": "group", "group_size": GROUP}}},
    },
}  # fmt: skip
PACKERS: dict[str, Callable[[str, torch.Tensor], Tensors]] = {
    "gptq": gptq, "awq": awq, "pack-quantized": pack_quantized,
}  # fmt: skip


def read(config: Mapping[str, Any], tensors: Tensors, name: str = "layer") -> Any:
    scheme = scheme_of(config)
    assert scheme is not None
    return read_layer(scheme, name, tensors.get)


@pytest.mark.parametrize("form", CONFIGS)
def test_a_layer_is_what_its_integers_stand_for(form: str) -> None:
    weight = torch.randn(48, 3 * GROUP, generator=torch.Generator().manual_seed(1))
    integers, scales, zeros = rounded(weight, 4, GROUP)
    found = read(CONFIGS[form], PACKERS[form]("layer", weight))
    np.testing.assert_array_equal(found.integers.numpy(), integers)
    np.testing.assert_allclose(found.dequantized().numpy(), weight_of(integers, scales, zeros, GROUP), rtol=1e-6)
    kept = found.quantized()
    assert isinstance(kept, Quantized)
    assert (kept.bits, kept.group) == (4, GROUP)
    np.testing.assert_array_equal(kept.integers().numpy(), integers)
    largest = float(np.abs(scales).max()) * 15
    np.testing.assert_allclose(kept.dequantized().numpy(), found.dequantized().numpy(), atol=largest / 128)


def test_gptq_of_8_bits_newer_zeros_and_an_order_of_activations() -> None:
    weight = torch.randn(16, 4 * GROUP, generator=torch.Generator().manual_seed(2))
    for config, tensors in (
        ({"bits": 8}, gptq("layer", weight, 8)),
        ({"checkpoint_format": "gptq_v2"}, gptq("layer", weight, offset=0)),
        ({"desc_act": True}, gptq("layer", weight, shuffled=True)),
    ):
        found = read({**CONFIGS["gptq"], **config}, tensors)
        scale = float(found.scales.max())
        assert (found.dequantized() - weight).abs().max() <= 2.01 * scale
        # Integers of other groups or of groups of 8 bits are not published as they are.
        assert (found.quantized() is None) == ("checkpoint_format" not in config)


@pytest.mark.parametrize("scales", ["outputs", "one"])
def test_bytes_with_sign(scales: str) -> None:
    draw = torch.Generator().manual_seed(3)
    values = torch.randint(-128, 128, (24, 40), generator=draw, dtype=torch.int8)
    scale = torch.rand(24 if scales == "outputs" else 1, 1, generator=draw) + 0.1
    config = {
        "quant_method": "compressed-tensors", "format": "int-quantized",
        "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "int", "strategy": "channel"}}},
    }  # fmt: skip
    found = read(config, {"layer.weight": values, "layer.weight_scale": scale})
    torch.testing.assert_close(found.dequantized(), values.float() * scale)
    torch.testing.assert_close(found.quantized().dequantized(), values.float() * scale)
    assert read(config, {"layer.weight": torch.ones(2, 2)}) is None


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "bitsandbytes"}, "quant_method: bitsandbytes; accepted: gptq, awq, compressed-tensors"),
        ({**CONFIGS["gptq"], "bits": 3}, "bits: 3; accepted: 4, 8"),
        ({**CONFIGS["gptq"], "checkpoint_format": "marlin"}, "checkpoint_format: marlin; accepted: gptq, gptq_v2"),
        ({**CONFIGS["awq"], "version": "gemv"}, "version: gemv; accepted: gemm"),
        ({**CONFIGS["pack-quantized"], "format": "float-quantized"}, "format: float-quantized; accepted: pack"),
        (
            {"quant_method": "compressed-tensors", "format": "pack-quantized",
             "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}}},
            "config_groups: type float of 8 bits; accepted: type int of 4 or 8 bits",
        ),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, "config_groups: 0 groups"),
    ],
)  # fmt: skip
def test_other_schemes_are_refused_by_name(config: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=f"quantization_config has {message}"):
        scheme_of(config)


def test_missing_and_wrong_tensors_are_named() -> None:
    tensors = gptq("layer", torch.randn(16, 64))
    for part in ("qzeros", "scales"):
        with pytest.raises(InvalidArgument, match=f"no tensor 'layer.{part}'"):
            read(CONFIGS["gptq"], {name: each for name, each in tensors.items() if not name.endswith(part)})
    with pytest.raises(InvalidArgument, match="do not belong together"):
        read(CONFIGS["gptq"], {**tensors, "layer.scales": torch.ones(2, 9)})


def write_quantized(folder: Path, form: str, family: str) -> Path:
    """Write a tiny decoder whose linear layers are integers."""
    source = write_decoder(folder, family, tie_word_embeddings=False, **_WIDE.get(family, {}))
    tensors = load_file(source / "model.safetensors")
    found: Tensors = {}
    for name, tensor in tensors.items():
        if "_proj." in name:
            found |= PACKERS[form](name.removesuffix(".weight"), tensor.float())
        else:
            found[name] = tensor
    save_file({name: tensor.contiguous() for name, tensor in found.items()}, source / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "quantization_config": CONFIGS[form]}))
    return source


@pytest.mark.parametrize(
    ("form", "family"),
    [
        *((form, "llama") for form in CONFIGS),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (("gptq", "gemma2"), ("awq", "olmo2"), ("gptq", "qwen3_moe"))
        ),
    ],
)
def test_a_checkpoint_is_published_as_it_is(form: str, family: str, tmp_path: Path) -> None:
    """Integers of the file are those of the checkpoint; texts are those of the model that they stand for."""
    source = write_quantized(tmp_path / "source", form, family)
    model = load_causal_lm(source)
    before = tiny_model(family, tie_word_embeddings=False, **_WIDE.get(family, {}))
    near = {name: tensor for name, tensor in before.state_dict().items() if "_proj." in name}
    for name, tensor in near.items():
        assert 0 < (model.state_dict()[name] - tensor).abs().max() < tensor.abs().max() / 4
    options = {"precision": "int4", "group_size": 64, "quality": {"perplexity_ratio": 2.0, "max_kl": 5.0}}
    build_decoder(tmp_path, "writer", source, slots=2, **options)
    version = tmp_path / "repository/writer/1"
    manifest = load_flover_manifest(version)
    assert manifest.group_size == GROUP
    weights = load_weights(version / WEIGHTS_FILE, manifest.form)
    for number, layer in enumerate(weights.layers):
        names = [f"model.layers.{number}.self_attn.{each}_proj" for each in "qkv"]
        state = SourceTensors(source, family, 4)
        down, expert = (layer.down, "") if layer.experts is None else (layer.experts.down[5], "experts.5.")
        assert down is not None
        for found, wanted in (
            (layer.qkv.weight, [state[f"{name}.weight"] for name in names]),
            (down.weight, [state[f"model.layers.{number}.mlp.{expert}down_proj.weight"]]),
        ):
            assert isinstance(found, Quantized)
            assert all(isinstance(each, Quantized) for each in wanted)
            assert torch.equal(found.integers(), torch.cat([each.integers() for each in wanted]))  # type: ignore[union-attr]
    assert manifest.verification.match_rate >= 0.6
    assert len(generated_by_transformers(model, np.array(byte_ids("abc")), 5)) == 5


@pytest.mark.parametrize(
    ("family", "precision"),
    [
        ("llama", "bf16"),
        ("llama", "int8"),
        ("gpt_neox", "int4"),
        ("mixtral", "int8"),
        ("qwen2_moe", "bf16"),
    ],
)
def test_other_precisions_and_families_convert_what_the_integers_stand_for(
    family: str, precision: Any, tmp_path: Path
) -> None:
    source = write_decoder(tmp_path / "source", family, **_WIDE.get(family, {}))
    tensors = load_file(source / "model.safetensors")
    # Zeros are packed in words of 8 outputs, which some routers do not fill.
    linear = [name for name, each in tensors.items() if each.dim() == 2 and ".layers." in name and len(each) % 8 == 0]
    found: Tensors = {name: tensor for name, tensor in tensors.items() if name not in linear}
    for name in linear:
        found |= gptq(name.removesuffix(".weight"), tensors[name].float())
    save_file({name: tensor.contiguous() for name, tensor in found.items()}, source / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "quantization_config": CONFIGS["gptq"]}))
    model = load_causal_lm(source)
    form, tied = form_of(model.config), bool(model.config.tie_word_embeddings)
    files = [tmp_path / "one.safetensors", tmp_path / "other.safetensors"]
    bits = {"int4": 4, "int8": 8}.get(precision)
    write_weights(SourceTensors(source, family, bits), form, files[0], precision, 32, tied=tied)
    write_weights(model.state_dict(), form, files[1], precision, 32, tied=tied)
    one, other = (load_file(file) for file in files)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_library_of_compressed_tensors_agrees(tmp_path: Path) -> None:
    """A layer that the library packs is read as what it unpacks."""
    reason = "compressed-tensors is not installed"
    helpers = pytest.importorskip("compressed_tensors.compressors.pack_quantized.helpers", reason=reason)
    values = torch.randint(-8, 8, (32, 2 * GROUP), generator=torch.Generator().manual_seed(4), dtype=torch.int8)
    zeros = torch.randint(-8, 8, (32, 2), generator=torch.Generator().manual_seed(5), dtype=torch.int8)
    scale = torch.rand(32, 2) + 0.1
    packed = {
        "layer.weight_packed": helpers.pack_to_int32(values, 4),
        "layer.weight_zero_point": helpers.pack_to_int32(zeros, 4, packed_dim=0),
        "layer.weight_scale": scale,
        "layer.weight_shape": torch.tensor(values.shape),
    }
    found = read(CONFIGS["pack-quantized"], packed)
    spread = [each.repeat_interleave(GROUP, 1).float() for each in (zeros, scale)]
    torch.testing.assert_close(found.dequantized(), (values.float() - spread[0]) * spread[1])
