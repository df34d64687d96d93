"""The experts of a layer, of which each row uses those that a router chooses."""

from __future__ import annotations

import ctypes
from typing import cast

import torch

from tidal.flover.form import DecoderForm
from tidal.flover.models.linear import ACTIVATION_NUMBERS, NativeLinear, activate, linear
from tidal.flover.models.operations import Kind, Operation
from tidal.flover.models.weights import Dense, ExpertWeights
from tidal.flover.native.tiling import DEFAULT_TILING, Tiling


class Mixture(ctypes.Structure):
    """The experts of a layer as native/experts.hpp declares them."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("count", "chosen", "normalised", "shared")),
        *((name, ctypes.c_void_p) for name in ("router", "up", "down")),
    )


class ExpertLayer:
    """Feed-forward part of a layer with experts, each of which is multiplied with the rows that use it.

    Scores are computed in float32 whatever the weights' type: their order decides which experts a row uses.

    Args:
        form: Architecture of the decoder, which has experts.
        weights: Weights of the experts; they are copied, and may be released.
        tiling: Choices of the native library's kernels.
    """

    def __init__(self, form: DecoderForm, weights: ExpertWeights, tiling: Tiling = DEFAULT_TILING) -> None:
        assert form.experts is not None
        self._experts, self._activation, self._width = form.experts, form.activation, form.width
        self._router = linear(Dense(weights.router.float(), None), None, tiling)
        self._up = tuple(linear(each, None, tiling) for each in weights.up)
        self._down = tuple(linear(each, None, tiling) for each in weights.down)
        self._referenced: list[object] = []  # keeps addresses valid

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Map [rows, width] to the sum of each row's experts, [rows, width]."""
        used, factors = self.route(rows)
        result = torch.zeros_like(rows)
        for expert in used.unique().tolist():
            numbers, places = (used == expert).nonzero(as_tuple=True)
            gate, inner = self._up[expert](rows[numbers]).chunk(2, -1)
            output = self._down[expert](activate(self._activation, gate) * inner)
            result.index_add_(0, numbers, output * factors[numbers, places, None].to(output.dtype))
        return result

    def route(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the experts that each row uses, int64 [rows, used], and the factors of their outputs, float32.

        The shared expert, if there is one, is the last of each row.

        Args:
            rows: Input of the feed-forward part, [rows, width].
        """
        experts = self._experts
        scores = self._router(rows.float())
        factors, used = scores[:, : experts.count].softmax(-1).topk(experts.chosen, -1)
        if experts.normalised:
            factors = factors / factors.sum(-1, keepdim=True)
        if experts.shared_inner is not None:
            used = torch.cat([used, torch.full_like(used[:, :1], experts.count)], 1)
            factors = torch.cat([factors, scores[:, experts.count :].sigmoid()], 1)
        return used, factors

    def operation(self, source: int, target: int, added: int) -> Operation:
        """Return the operation of the native library, which is valid as long as this layer exists.

        Args:
            source: Matrix with the input of the feed-forward part.
            target: Matrix for the output.
            added: Matrix that is added to it.
        """

        def matrices(layers: tuple[object, ...]) -> ctypes.Array[ctypes.c_void_p]:
            addresses = [cast(NativeLinear, layer).matrix.address for layer in layers]
            return (ctypes.c_void_p * len(addresses))(*addresses)

        experts, (up, down) = self._experts, (matrices(self._up), matrices(self._down))
        mixture = Mixture(
            count=experts.count, chosen=experts.chosen, normalised=experts.normalised,
            shared=experts.shared_inner is not None, router=cast(NativeLinear, self._router).matrix.address,
            up=ctypes.addressof(up), down=ctypes.addressof(down),
        )  # fmt: skip
        self._referenced += [up, down, mixture]
        return Operation(
            kind=Kind.EXPERTS, source=source, target=target, added=added, outputs=self._width,
            activation=ACTIVATION_NUMBERS[self._activation], weights=ctypes.addressof(mixture),
        )  # fmt: skip
