"""Deviation of the runner from the source model, with generations of different lengths in one window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from tidal.flover.manifest import GenerationVerification
from tidal.flover.runner import FloverRunner
from tidal.flover.tasks.adapter import LoraAdapter
from tidal_builders.arrays import write_arrays
from tidal_builders.flover.source import DecoderSource
from tidal_builders.samples import draw_samples
from tidal_builders.timing import Progress

_PROMPTS = 8
_TOKENS = 24
_MAX_PROMPT = 128
# Rounding alone can change the order of two best logits that differ by less than this.
_TIE = 1e-4

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Reference:
    """A greedy generation of the source model.

    Attributes:
        prompt: Token ids of the prompt, [tokens] int64.
        tokens: Generated token ids, [generated] int64.
        logits: Logits of each generated token, float32 [generated, vocabulary].
    """

    prompt: IntArray
    tokens: IntArray
    logits: npt.NDArray[np.float32]


def write_references(source: DecoderSource, texts: Sequence[str], max_length: int, path: Path) -> None:
    """Generate greedily by the source for prompts of many lengths, ended by length only, and write the result.

    Args:
        source: Source model.
        texts: Texts to draw prompts from.
        max_length: Largest number of tokens of a prompt and its generation.
        path: File to write, .npz.

    Raises:
        InvalidArgument: The texts contain only white space.
    """
    longest = max(1, min(_MAX_PROMPT, max_length // 2))
    rows = draw_samples(source.tokenizer, texts, longest, _PROMPTS, ["input_ids"], seed=0)
    arrays = {}
    source.model.generation_config.eos_token_id = None
    for number, row in enumerate(rows):
        prompt = row["input_ids"][:longest]
        ids = torch.from_numpy(prompt)[None]
        with torch.inference_mode():
            output = source.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                repetition_penalty=1.0,
                max_new_tokens=min(_TOKENS, max_length - len(prompt)),
                pad_token_id=0,
                return_dict_in_generate=True,
                output_logits=True,
            )
        arrays[f"prompt{number}"] = prompt
        arrays[f"tokens{number}"] = output.sequences[0, len(prompt) :].numpy()
        arrays[f"logits{number}"] = torch.cat(output.logits).float().numpy()
    write_arrays(path, arrays)


def read_references(path: Path) -> tuple[Reference, ...]:
    """Read the references written by `write_references`."""
    with np.load(path, allow_pickle=False) as arrays:
        return tuple(
            Reference(arrays[f"prompt{number}"], arrays[f"tokens{number}"], arrays[f"logits{number}"])
            for number in range(_PROMPTS)
        )


def verify(
    runner: FloverRunner,
    references: Sequence[Reference],
    tolerance: float,
    progress: Progress = lambda _: None,
    task: LoraAdapter | None = None,
) -> GenerationVerification:
    """Feed the source's tokens to the runner, as many prompts at a time as it has slots, and compare logits.

    Prompts are prefilled in two chunks; each starts one decode step after the one before it.

    Args:
        runner: Runner to verify.
        references: Generations of the source.
        tolerance: Largest accepted difference of a logit, in standard deviations of the source's logits.
        progress: Called with the share that is done, 0 to 1.
        task: Task of all generations; None: the base model.
    """
    logits: list[npt.NDArray[np.float32]] = []
    for begin in range(0, len(references), runner.slots):
        logits += _replay(runner, references[begin : begin + runner.slots], task)
        progress(len(logits) / len(references))
    expected = np.concatenate([each.logits for each in references])
    actual = np.concatenate(logits)
    best = np.sort(expected, axis=1)[:, -2:]
    clear = best[:, 1] - best[:, 0] > _TIE
    # If all are ties, which no trained model gives, they are compared anyway.
    clear |= not clear.any()
    return GenerationVerification(
        prompts=len(references),
        tokens=int(clear.sum()),
        matched=int((actual.argmax(1) == expected.argmax(1))[clear].sum()),
        ties=int((~clear).sum()),
        max_error=float(np.abs(actual - expected).max() / max(float(expected.std()), 1e-12)),
        tolerance=tolerance,
    )


def misses(verification: GenerationVerification, least: float) -> tuple[str, ...]:
    """Return the reasons that keep a decoder from being published, a clause each.

    Args:
        verification: Comparison with the source model.
        least: Minimum share of tokens that equal the source's.
    """
    reasons = []
    if not verification.max_error <= verification.tolerance:
        reasons.append(
            f"largest error of a logit is {verification.max_error:.3g} standard deviations; accepted are "
            f"{verification.tolerance:g}"
        )
    if verification.match_rate < least:
        reasons.append(f"{verification.match_rate:.1%} of the tokens match the source; required are {least:.0%}")
    return tuple(reasons)


def _replay(
    runner: FloverRunner, references: Sequence[Reference], task: LoraAdapter | None
) -> list[npt.NDArray[np.float32]]:
    """Logits of the runner for each token of the references, all in the same decode steps."""
    logits: list[list[npt.NDArray[np.float32]]] = [[] for _ in references]
    started = 0
    while True:
        if started < len(references):
            logits[started].append(_prefill(runner, started, references[started].prompt, task))
            started += 1
        left = [slot for slot in range(started) if len(logits[slot]) < len(references[slot].tokens)]
        if not left and started == len(references):
            return [np.stack(rows) for rows in logits]
        # A generation that has ended stays as a hole, with token and position 0.
        tokens, positions = np.zeros(started, np.int64), np.zeros(started, np.int64)
        for slot in left:
            tokens[slot] = references[slot].tokens[len(logits[slot]) - 1]
            positions[slot] = len(references[slot].prompt) + len(logits[slot]) - 1
        tasks = () if task is None else [task] * started
        step_logits = runner.decode(0, started, tokens, positions, tasks).cpu().numpy()
        for slot in left:
            logits[slot].append(step_logits[slot].copy())


def _prefill(runner: FloverRunner, slot: int, prompt: IntArray, task: LoraAdapter | None) -> npt.NDArray[np.float32]:
    half = len(prompt) // 2
    if half:
        runner.prefill(slot, prompt[:half], 0, last=False, task=task)
    logits = runner.prefill(slot, prompt[half:], half, task=task)
    assert logits is not None
    return logits.cpu().numpy()
