"""Torch engines of Arlo, PetS, OTAS and Flover on the GPU against their own answers on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.gpu import gammas
from benchmarks.gpu.decoders import TINY_DECODER, random_weights
from benchmarks.gpu.encoder import batch_of, exported, make_encoder, shapes_of, size_of
from benchmarks.gpu.recording import Record, Setting
from benchmarks.gpu.shared_encoder import SharedEncoder
from tidal.device import DeviceKind
from tidal.engines import Artifact, Precision, open_engines
from tidal.flover.runner import FloverRunner, PrefillInput

Floats = npt.NDArray[np.floating[Any]]
Compare = Callable[[str, Floats, Floats], None]
# Tokens that a decoder generates on both devices.
_GENERATED = 24


def measure(setting: Setting, record: Record) -> None:
    """Record the largest error of each system; claims `gpu_answers_error`, the largest of those in float32.

    An error is the largest difference of an output, in standard deviations of the CPU's.
    """
    # Convolutions would use TF32, with products of 10 bits, by default.
    torch.backends.cudnn.allow_tf32 = False
    errors: dict[str, float] = {}

    def compare(name: str, found: Floats, truth: Floats) -> None:
        errors[name] = float(np.abs(found - truth).max() / max(float(truth.std()), 1e-9))
        record.put("errors", errors)
        record.table(
            "largest error against the CPU, standard deviations", ["engine", "error"],
            [[each, f"{error:.2e}"] for each, error in errors.items()],
        )  # fmt: skip

    precisions: tuple[Precision, ...] = setting.choose(("fp32", "fp16", "bf16"), ("fp32", "fp16"))
    for precision in precisions:
        with record.case(f"arlo {precision}"):
            _arlo(setting, precision, compare)
    with record.case("pets"):
        _pets(setting, compare)
    devices: tuple[DeviceKind, ...] = (setting.device, "cpu")
    for gamma in setting.choose((-15, 0, 8), gammas.DRY_GAMMAS):
        with record.case(f"otas, gamma {gamma}"):
            inputs = gammas.batch_for(setting, gamma, 2)
            found, truth = (
                gammas.open_gamma(setting, gamma, "fp32", device).run(inputs)["features"] for device in devices
            )
            compare(f"otas, gamma {gamma}, fp32", found, truth)
    with record.case("flover"):
        _flover(setting, record, compare)
    exact = [error for name, error in errors.items() if name.endswith("fp32")]
    if exact and "failed cases" not in record.measured:
        record.claim("gpu_answers_error", max(exact))


def _arlo(setting: Setting, precision: Precision, compare: Compare) -> None:
    size = size_of(setting)
    truth_module = make_encoder(size)
    longest = min(size.longest, 128)
    for length in (longest, None):
        form = "dynamic" if length is None else "static"
        shapes = shapes_of(size, 8, length)
        engine = open_engines(
            Artifact("torch", exported(setting, precision, 8), precision, shapes, setting.device), threads=1
        )[0]
        # Twice with other rows: a replayed graph must read the new ones.
        for seed in (0, 1):
            batch = batch_of(size, [longest, longest // 2, 2], longest, seed)
            with torch.inference_mode():
                truth = truth_module(**{name: torch.from_numpy(array) for name, array in batch.items()})[
                    "logits"
                ].numpy()
            compare(f"arlo {form} {precision}", engine.run(batch)["logits"], truth)


def _pets(setting: Setting, compare: Compare) -> None:
    shared = SharedEncoder(setting)
    outputs = []
    devices: tuple[DeviceKind, ...] = (setting.device, "cpu")
    draw = np.random.default_rng(0)
    tasks, length = setting.choose(10, 5), setting.choose(48, 8)
    ids = draw.integers(0, size_of(setting).vocabulary, (tasks, length)).astype(np.int32)
    lengths = draw.integers(2, length + 1, tasks).astype(np.int32)
    for device in devices:
        engine = shared.open(device)
        loaded = shared.add_tasks(engine, tasks)
        for _ in range(3):  # the first pass of a layout is not captured, later ones are
            found = engine.pooled(loaded, ids, lengths)
        outputs.append(found)
    compare("pets, tasks of all kinds, fp32", outputs[0], outputs[1])


def _flover(setting: Setting, record: Record, compare: Compare) -> None:
    prompts = [np.arange(1, length) % TINY_DECODER.vocabulary for length in (5, 17, 9)]
    tokens, logits = [], []
    for device in (setting.torch_device, torch.device("cpu")):
        weights = random_weights(TINY_DECODER, device, torch.float32)
        runner = FloverRunner(TINY_DECODER, weights, slots=4, max_length=64)
        runner.warm_up()
        tokens.append(generate(runner, prompts, _GENERATED))
        first = runner.prefill(0, prompts[0], 0)
        assert first is not None
        # A chunk of a prompt and a step of others in one pass.
        chunk = PrefillInput(3, prompts[1], 0, True)
        steps = runner.mixed(np.array([0, 2]), np.array([7, 8]), np.array([len(prompts[0]), len(prompts[2])]), [chunk])
        logits.append(np.concatenate([first.cpu().numpy()[None], *(each.cpu().numpy() for each in steps)]))
    compare("flover, tiny decoder, fp32", logits[0], logits[1])
    record.put("flover: equal tokens", tokens[0] == tokens[1])
    if tokens[0] != tokens[1]:
        raise ValueError("a decoder generated other tokens than on the CPU")


def generate(runner: FloverRunner, prompts: list[npt.NDArray[np.int64]], count: int) -> list[list[int]]:
    """Generate `count` tokens from each prompt greedily, all together."""
    found: list[list[int]] = []
    for slot, prompt in enumerate(prompts):
        logits = runner.prefill(slot, prompt, 0)
        assert logits is not None
        found.append([int(logits.argmax())])
    for step in range(count - 1):
        held = np.array([len(prompt) + step for prompt in prompts])
        last = np.array([tokens[-1] for tokens in found])
        for tokens, row in zip(found, runner.decode(0, len(prompts), last, held), strict=True):
            tokens.append(int(row.argmax()))
    return found
