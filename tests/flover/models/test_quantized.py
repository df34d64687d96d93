"""Rounding of weights to 8 and 4 bits, their file, and reading a source one tensor at a time."""

from __future__ import annotations

import json
import shutil
import weakref
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from testing.decoders import MIXTURES, tiny_model, write_decoder
from tidal.errors import InvalidArgument
from tidal.flover.architectures import form_of
from tidal.flover.manifest import FloverPrecision
from tidal.flover.models.conversion import convert
from tidal.flover.models.quantized import Quantized, quantize
from tidal.flover.models.weights_file import WeightsWriter, load_weights, named_tensors
from tidal_builders.flover.converting import SourceTensors, stored_as, write_weights

_PRECISIONS: tuple[FloverPrecision, ...] = ("fp32", "bf16", "int8", "int4")


@settings(deadline=None, max_examples=50)
@given(
    seed=st.integers(0, 2**32 - 1),
    bits=st.sampled_from([8, 4]),
    group=st.sampled_from([32, 64, 128]),
    outputs=st.integers(1, 40),
    inputs=st.integers(1, 200),
    offset=st.sampled_from([0.0, 3.0, -100.0]),
)
def test_weights_are_within_half_a_step(
    seed: int, bits: int, group: int, outputs: int, inputs: int, offset: float
) -> None:
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed)) + offset
    found = quantize(weight, bits, group)
    assert (found.bits, found.group) == (bits, 128 if bits == 8 else group)
    error = (found.dequantized() - weight).abs()
    if bits == 8:
        step = (weight.abs().amax(1) / 127)[:, None]
    else:
        step = found.scales[..., 0].float().repeat_interleave(group, 1)[:, :inputs]
        # The step is that of the group's range, which bfloat16 widens by its precision: 1 part in 128 at each end.
        groups = torch.nn.functional.pad(weight[:, None], (0, -inputs % group), mode="replicate")[:, 0].split(group, 1)
        for number, part in enumerate(groups):
            widest = (part.amax(1) - part.amin(1) + part.abs().amax(1) / 64) / 15 * (1 + 1 / 64)
            assert bool((found.scales[:, number, 0].float() <= widest + 1e-30).all())
    assert bool((error <= step * 0.5001 + 1e-6).all())


def test_a_constant_weight_and_zeros_are_kept() -> None:
    for bits in (8, 4):
        assert torch.equal(quantize(torch.zeros(3, 40), bits, 32).dequantized(), torch.zeros(3, 40))
        assert torch.equal(quantize(torch.full((3, 40), 2.0), bits, 32).dequantized(), torch.full((3, 40), 2.0))


@pytest.mark.parametrize("precision", _PRECISIONS)
@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_neox", "qwen3", "gemma3_text", "olmo2", *MIXTURES])
def test_the_file_has_the_converted_weights(family: str, precision: FloverPrecision, tmp_path: Path) -> None:
    source = write_decoder(tmp_path / "source", family)
    model = tiny_model(family)
    form, tied = form_of(model.config), model.config.tie_word_embeddings
    path, shares = tmp_path / "weights.safetensors", list[float]()
    write_weights(SourceTensors(source, family), form, path, precision, 32, tied=tied, progress=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    wanted = dict(named_tensors(stored_as(convert(model.state_dict(), form, tied=tied), precision, 32)))
    found = dict(named_tensors(load_weights(path, form)))
    assert found.keys() == wanted.keys()
    for name, tensor in found.items():
        assert tensor.dtype == wanted[name].dtype, name
        assert torch.equal(tensor, wanted[name]), name
    layer = load_weights(path, form).layers[0]
    for linear in (layer.up,) if layer.experts is None else (*layer.experts.up, *layer.experts.down):
        assert linear is not None
        assert isinstance(linear.weight, Quantized) == (precision in ("int8", "int4"))
    assert layer.experts is None or layer.experts.router.dtype == torch.float32


def test_checkpoints_in_shards_and_without_a_prefix_are_read(tmp_path: Path) -> None:
    source = write_decoder(tmp_path / "source", "gpt2")
    tensors = load_file(source / "model.safetensors")
    short = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    (source / "model.safetensors").unlink()
    names = sorted(short)
    for number, part in enumerate((names[:5], names[5:])):
        save_file({name: short[name] for name in part}, source / f"model-{number}.safetensors")
    index = {name: f"model-{int(name not in names[:5])}.safetensors" for name in names}
    for indexed in (False, True):
        if indexed:
            (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
        state = SourceTensors(source, "gpt2")
        assert len(state) == len(names) == len(list(state))
        for name, tensor in tensors.items():
            assert name in state
            assert torch.equal(state[name], tensor)
    assert "transformer.h.9.attn.c_attn.weight" not in state
    with pytest.raises(KeyError):
        state["nothing"]
    shutil.rmtree(source)


class _Counted(SourceTensors):
    """Counts the bytes of tensors that were read and still exist."""

    alive = most = 0

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor = super().__getitem__(name)
        assert isinstance(tensor, torch.Tensor)
        self.alive += tensor.nbytes
        self.most = max(self.most, self.alive)
        weakref.finalize(tensor.untyped_storage(), self._freed, tensor.nbytes)
        return tensor

    def _freed(self, count: int) -> None:
        self.alive -= count


@pytest.mark.parametrize("precision", _PRECISIONS)
def test_no_more_than_a_layer_of_the_source_is_in_memory(precision: FloverPrecision, tmp_path: Path) -> None:
    source = write_decoder(tmp_path / "source", "llama", num_hidden_layers=12, tie_word_embeddings=False)
    model = tiny_model("llama", num_hidden_layers=12, tie_word_embeddings=False)
    state = _Counted(source, "llama")
    write_weights(state, form_of(model.config), tmp_path / "weights.safetensors", precision, 32, tied=False)
    layer = sum(tensor.nbytes for name, tensor in model.state_dict().items() if ".layers.0." in name)
    assert 0 < state.most < 2 * max(layer, 257 * 32 * 4)
    assert sum(tensor.nbytes for tensor in model.state_dict().values()) > 5 * state.most


def test_a_missing_weight_is_named(tmp_path: Path) -> None:
    source = write_decoder(tmp_path / "source", "gpt2")
    tensors = load_file(source / "model.safetensors")
    del tensors["transformer.h.1.mlp.c_fc.weight"]
    save_file(tensors, source / "model.safetensors")
    form = form_of(tiny_model("gpt2").config)
    target = tmp_path / "weights.safetensors"
    with pytest.raises(InvalidArgument, match=r"no weight 'transformer.h.1.mlp.c_fc.weight', which gpt2 requires"):
        write_weights(SourceTensors(source, "gpt2"), form, target, "int8", 32, tied=True)
    assert not target.exists()


@given(
    st.lists(st.tuples(st.sampled_from([torch.int64, torch.float32, torch.bfloat16, torch.uint8]), st.integers(0, 9)))
)
@settings(deadline=None, max_examples=20)
def test_any_tensors_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[tuple[torch.dtype, int]]
) -> None:
    path = tmp_path_factory.mktemp("file") / "weights.safetensors"
    tensors = {str(number): torch.arange(count).to(dtype) for number, (dtype, count) in enumerate(sizes)}
    with WeightsWriter(path) as file:
        for name, tensor in tensors.items():
            file.write(name, tensor)
    found = load_file(path)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)
