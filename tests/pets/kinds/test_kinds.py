"""Terms of every kind written as tensors and read back, and what is refused."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testing.small_base import (
    KINDS,
    NORM,
    OUTPUT,
    QUERY,
    WIDTH,
    arrays_of,
    dense,
    random_task,
    same_terms,
    small_base,
)
from tidal.errors import InvalidArgument
from tidal.pets.kinds.kind import find_kind, kinds
from tidal.pets.kinds.positions import pack_positions, positions_of, read_positions, sparse_delta
from tidal.pets.kinds.stored import read_terms, write_terms
from tidal.pets.kinds.tensors import LayerTensors
from tidal.pets.terms import Head, LinearLayer, LinearTerms, TaskTerms
from tidal.tasks.stored import Storage
from tidal.tensor_file import Array, pack_tensors, parse_tensors

BASE = small_base()


def stored(kind: str, **how: bool) -> tuple[TaskTerms, dict[str, Array]]:
    terms = random_task(kind, BASE)
    return terms, write_terms(find_kind(kind), terms, BASE, Storage(**how))


def read(kind: str, tensors: dict[str, Array], labels: int = 3) -> TaskTerms:
    values = np.zeros((0, BASE.width), np.float32), np.zeros(0, np.float32)
    form = Head(*values, tuple(f"label {number}" for number in range(labels)))
    return read_terms(find_kind(kind), tensors, form, BASE)


def test_all_kinds_are_known() -> None:
    assert set(kinds()) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
class TestEveryKind:
    def test_round_trips(self, kind: str) -> None:
        terms, tensors = stored(kind)
        assert same_terms(read(kind, tensors), terms)

    def test_round_trips_approximately_in_float16(self, kind: str) -> None:
        terms, tensors = stored(kind, half=True)
        whole = sum(array.nbytes for array in stored(kind)[1].values())
        assert same_terms(read(kind, tensors), terms, 2e-3)
        if kind != "maskbert":
            assert sum(array.nbytes for array in tensors.values()) < 0.6 * whole

    def test_copies_arrays_out_of_the_file(self, kind: str) -> None:
        content = pack_tensors(stored(kind)[1])
        found = read(kind, parse_tensors(content, "x"))
        whole = np.frombuffer(content, np.uint8)
        arrays = [value for _, value in arrays_of(found) if isinstance(value, np.ndarray)]
        assert not any(np.shares_memory(array, whole) for array in arrays)
        assert same_terms(found, random_task(kind, BASE))

    def test_names_a_missing_tensor(self, kind: str) -> None:
        _, tensors = stored(kind)
        del tensors["head/bias"]
        with pytest.raises(InvalidArgument, match="tensor 'head/bias' is missing"):
            read(kind, tensors)

    def test_refuses_values_that_are_not_finite(self, kind: str) -> None:
        for name, array in stored(kind)[1].items():
            if array.dtype != np.float32:
                continue
            tensors = stored(kind)[1]
            tensors[name].reshape(-1)[0] = np.nan
            with pytest.raises(InvalidArgument, match=f"'{name}' has values that are not finite"):
                read(kind, tensors)

    def test_refuses_every_tensor_of_another_shape_or_type(self, kind: str) -> None:
        for name in stored(kind)[1]:
            tensors = stored(kind)[1]
            tensors[name] = tensors[name].reshape(1, *tensors[name].shape)
            with pytest.raises(InvalidArgument, match=re.escape(f"'{name}'")):
                read(kind, tensors)
            tensors[name] = np.zeros(tensors[name].shape[1:], np.uint32)
            with pytest.raises(InvalidArgument, match=re.escape(f"'{name}' has type uint32")):
                read(kind, tensors)

    def test_refuses_unknown_tensors(self, kind: str) -> None:
        for name in (f"{QUERY}/extra", f"{NORM}/extra", "head/extra"):
            _, tensors = stored(kind)
            tensors[name] = np.zeros(1, np.float32)
            with pytest.raises(InvalidArgument, match=f"'{name}' is"):
                read(kind, tensors)
        _, tensors = stored(kind)
        tensors["plain"] = np.zeros(1, np.float32)
        with pytest.raises(InvalidArgument, match="'plain' is unknown; accepted are names like <layer>/<part>"):
            read(kind, tensors)

    def test_suggests_a_similar_layer(self, kind: str) -> None:
        _, tensors = stored(kind)
        tensors["encoder.layer.0.output.dens/bias"] = np.zeros(WIDTH, np.float32)
        with pytest.raises(InvalidArgument, match=f"did you mean '{OUTPUT}'"):
            read(kind, tensors)

    def test_requires_one_row_of_the_head_per_label(self, kind: str) -> None:
        with pytest.raises(InvalidArgument, match=r"'head/weight' has shape \[3, 16\]; accepted: \[4, 16\]"):
            read(kind, stored(kind)[1], labels=4)


class TestKinds:
    def test_an_unknown_kind_is_refused_with_a_suggestion(self) -> None:
        with pytest.raises(InvalidArgument, match="unknown kind 'lorra': did you mean 'lora'"):
            find_kind("lorra")

    def test_a_mask_zeroes_weights(self) -> None:
        terms = read("maskbert", stored("maskbert")[1])
        for path, change in terms.linear.items():
            layer = BASE.linear[path]
            delta = dense(change.delta, layer.shape)
            np.testing.assert_array_equal(layer.weight + delta, np.where(delta != 0, 0, layer.weight))

    def test_a_mask_stores_no_values(self) -> None:
        assert not [name for name in stored("maskbert")[1] if name.endswith("differences")]

    def test_a_mask_cannot_store_other_differences(self) -> None:
        with pytest.raises(InvalidArgument, match="the kind diff_pruning, which accepts any difference"):
            write_terms(find_kind("maskbert"), random_task("diff_pruning", BASE), BASE, Storage())

    @pytest.mark.parametrize("kind", ["bitfit", "maskbert", "diff_pruning", "adapter"])
    def test_refuses_terms_that_the_kind_lacks(self, kind: str) -> None:
        with pytest.raises(InvalidArgument, match=f"has a LowRankDelta, which the kind {kind} cannot store"):
            write_terms(find_kind(kind), random_task("lora", BASE), BASE, Storage())

    def test_values_beyond_float16_are_refused(self) -> None:
        terms = random_task("bitfit", BASE)
        terms.linear[QUERY].bias[0] = 1e6  # type: ignore[index]
        with pytest.raises(InvalidArgument, match=f"layer '{QUERY}' has values beyond float16's 65504"):
            write_terms(find_kind("bitfit"), terms, BASE, Storage(half=True))

    def test_adapters_are_refused_at_other_layers(self) -> None:
        _, tensors = stored("adapter")
        for part in ("down", "down_bias", "up", "up_bias", "activation"):
            tensors[f"{QUERY}/{part}"] = tensors.pop(f"{OUTPUT}/{part}")
        with pytest.raises(InvalidArgument, match=f"'{QUERY}/down' is at a layer that accepts no adapter"):
            read("adapter", tensors)

    def test_an_unknown_activation_is_refused(self) -> None:
        _, tensors = stored("adapter")
        tensors[f"{OUTPUT}/activation"][:] = 3
        with pytest.raises(InvalidArgument, match=r"is \[3\]; accepted is one of 0 \(relu\), 1 \(gelu\), 2 \(silu\)"):
            read("adapter", tensors)

    @pytest.mark.parametrize(("kind", "part"), [("lora", "rank 17"), ("adapter", "width 17")])
    def test_a_rank_above_the_layers_size_is_refused(self, kind: str, part: str) -> None:
        _, tensors = stored(kind)
        tensors[f"{OUTPUT}/down"] = np.zeros((17, tensors[f"{OUTPUT}/down"].shape[1]), np.float32)
        with pytest.raises(InvalidArgument, match=f"'{OUTPUT}/down' has (the )?{part}; accepted( is|:) up to 16"):
            read(kind, tensors)

    def test_a_layer_that_the_base_lacks_is_not_written(self) -> None:
        terms = random_task("bitfit", BASE)
        with pytest.raises(InvalidArgument, match="the base has no linear layer 'x'"):
            write_terms(find_kind("bitfit"), TaskTerms(terms.head, {"x": LinearTerms()}), BASE, Storage())


class TestPositions:
    @settings(max_examples=100, deadline=None)
    @given(st.data())
    def test_round_trip(self, data: st.DataObject) -> None:
        outputs = data.draw(st.integers(1, 40))
        inputs = data.draw(st.integers(1, 60))
        size = outputs * inputs
        chosen = data.draw(st.sets(st.integers(0, size - 1), max_size=data.draw(st.sampled_from([0, 3, size]))))
        places = np.asarray(sorted(chosen), np.int64)
        packed = pack_positions(places, size)
        assert sum(array.nbytes for array in packed.values()) <= (size + 7) // 8
        layer = LinearLayer(np.zeros((outputs, inputs), np.float32), np.zeros(outputs, np.float32))
        tensors = LayerTensors("layer", layer, packed)
        np.testing.assert_array_equal(read_positions(tensors), places)
        delta = sparse_delta(places, np.ones(len(places), np.float32), layer.shape)
        np.testing.assert_array_equal(positions_of(delta, inputs), places)
        assert dense(delta, layer.shape).sum() == len(places)

    @settings(max_examples=100, deadline=None)
    @given(st.binary(max_size=40), st.sampled_from(["gaps", "bits"]))
    def test_read_from_any_bytes_lie_within_the_layer_or_are_refused(self, content: bytes, part: str) -> None:
        layer = LinearLayer(np.zeros((13, 23), np.float32), np.zeros(13, np.float32))
        tensors = LayerTensors("layer", layer, {part: np.frombuffer(content, np.uint8)})
        try:
            places = read_positions(tensors)
        except InvalidArgument as error:
            assert f"'layer/{part}' " in str(error)
        else:
            assert (np.diff(places) > 0).all()
            assert not len(places) or (places[0] >= 0 and places[-1] < 13 * 23)

    @pytest.mark.parametrize(
        ("part", "content", "reason"),
        [
            ("bits", [0, 0, 1], r"has bits beyond the 21 weights"),
            ("bits", [0, 0], r"has 2 bytes; a bit for each of 3 x 7 weights is 3"),
            ("gaps", [0] * 22, r"reaches beyond the 21 weights"),
            ("gaps", [21], r"reaches beyond the 21 weights"),
        ],
    )
    def test_beyond_the_layer_are_refused(self, part: str, content: list[int], reason: str) -> None:
        layer = LinearLayer(np.zeros((3, 7), np.float32), np.zeros(3, np.float32))
        with pytest.raises(InvalidArgument, match=f"'layer/{part}' {reason}"):
            read_positions(LayerTensors("layer", layer, {part: np.asarray(content, np.uint8)}))

    @pytest.mark.parametrize(("sparsity", "bits"), [(0.95, 0.42), (0.995, 0.065), (0.5, 1.0)])
    def test_take_few_bits_per_weight(self, sparsity: float, bits: float) -> None:
        size = 384 * 384
        places = np.flatnonzero(np.random.default_rng(0).random(size) > sparsity)
        assert sum(array.nbytes for array in pack_positions(places, size).values()) * 8 / size <= bits
