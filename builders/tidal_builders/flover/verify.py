"""How far the runner is from the source model, with generations of different lengths in one window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from tidal.flover.manifest import GenerationVerification
from tidal.flover.runner import FloverRunner
from tidal.flover.tasks.adapter import Adapter
from tidal_builders.arrays import write_arrays
from tidal_builders.flover.source import DecoderSource
from tidal_builders.flover.spec import LEAST_MATCH
from tidal_builders.samples import draw_samples
from tidal_builders.timing import Progress

_PROMPTS = 8
_TOKENS = 24
_LONGEST_PROMPT = 128
# Two best logits that are nearer to each other than this may change places by rounding alone.
_TIE = 1e-4

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Reference:
    """What the source generates greedily for a prompt.

    Attributes:
        prompt: token ids.
        tokens: [generated] ids.
        logits: [generated, vocabulary] float32, what each token was chosen from.
    """

    prompt: IntArray
    tokens: IntArray
    logits: npt.NDArray[np.float32]


def write_references(source: DecoderSource, texts: Sequence[str], max_length: int, path: Path) -> None:
    """Let the source generate for prompts of many lengths, with nothing but the length to end it, and keep that.

    Raises:
        InvalidArgument: the texts hold nothing but white space.
    """
    longest = max(1, min(_LONGEST_PROMPT, max_length // 2))
    rows = draw_samples(source.tokenizer, texts, longest, _PROMPTS, ["input_ids"], seed=0)
    arrays = {}
    source.model.generation_config.eos_token_id = None
    for number, row in enumerate(rows):
        prompt = row["input_ids"][:longest]
        ids = torch.from_numpy(prompt)[None]
        with torch.inference_mode():
            found = source.model.generate(
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
        arrays[f"tokens{number}"] = found.sequences[0, len(prompt) :].numpy()
        arrays[f"logits{number}"] = torch.cat(found.logits).float().numpy()
    write_arrays(path, arrays)


def read_references(path: Path) -> tuple[Reference, ...]:
    """What `write_references` kept."""
    with np.load(path, allow_pickle=False) as found:
        return tuple(
            Reference(found[f"prompt{number}"], found[f"tokens{number}"], found[f"logits{number}"])
            for number in range(_PROMPTS)
        )


def verify(
    runner: FloverRunner,
    references: Sequence[Reference],
    tolerance: float,
    progress: Progress = lambda _: None,
    task: Adapter | None = None,
) -> GenerationVerification:
    """Feed the source's own tokens to the runner, as many prompts at a time as it has slots, and compare logits.

    Prompts are read in two chunks; a prompt joins one step after the one before it. All are generations of `task`.
    """
    logits: list[npt.NDArray[np.float32]] = []
    for begin in range(0, len(references), runner.slots):
        logits += _replayed(runner, references[begin : begin + runner.slots], task)
        progress(len(logits) / len(references))
    wanted = np.concatenate([each.logits for each in references])
    found = np.concatenate(logits)
    best = np.sort(wanted, axis=1)[:, -2:]
    clear = best[:, 1] - best[:, 0] > _TIE
    # Where all are ties, which no trained model is, they are compared all the same.
    clear |= not clear.any()
    return GenerationVerification(
        prompts=len(references),
        tokens=int(clear.sum()),
        matched=int((found.argmax(1) == wanted.argmax(1))[clear].sum()),
        ties=int((~clear).sum()),
        max_error=float(np.abs(found - wanted).max() / max(float(wanted.std()), 1e-12)),
        tolerance=tolerance,
    )


def misses(found: GenerationVerification, precision: str) -> tuple[str, ...]:
    """What keeps a decoder from being published, a clause each."""
    said = []
    if not found.max_error <= found.tolerance:
        said.append(
            f"largest error of a logit is {found.max_error:.3g} standard deviations, which exceeds the tolerance "
            f"{found.tolerance:g}"
        )
    if found.match_rate < LEAST_MATCH[precision]:
        said.append(f"{found.match_rate:.1%} of the tokens are the source's, {LEAST_MATCH[precision]:.0%} must")
    return tuple(said)


def _replayed(
    runner: FloverRunner, references: Sequence[Reference], task: Adapter | None
) -> list[npt.NDArray[np.float32]]:
    """The runner's logits for each of the references' tokens, all in the same steps."""
    logits: list[list[npt.NDArray[np.float32]]] = [[] for _ in references]
    begun = 0
    while True:
        if begun < len(references):
            logits[begun].append(_read(runner, begun, references[begun].prompt, task))
            begun += 1
        left = [slot for slot in range(begun) if len(logits[slot]) < len(references[slot].tokens)]
        if not left and begun == len(references):
            return [np.stack(rows) for rows in logits]
        # One that has ended stays as a hole, with token and position 0.
        tokens, positions = np.zeros(begun, np.int64), np.zeros(begun, np.int64)
        for slot in left:
            tokens[slot] = references[slot].tokens[len(logits[slot]) - 1]
            positions[slot] = len(references[slot].prompt) + len(logits[slot]) - 1
        tasks = () if task is None else [task] * begun
        found = runner.step(0, begun, tokens, positions, tasks).numpy()
        for slot in left:
            logits[slot].append(found[slot].copy())


def _read(runner: FloverRunner, slot: int, prompt: IntArray, task: Adapter | None) -> npt.NDArray[np.float32]:
    half = len(prompt) // 2
    if half:
        runner.prefill(slot, prompt[:half], 0, last=False, task=task)
    logits = runner.prefill(slot, prompt[half:], half, task=task)
    assert logits is not None
    return logits.numpy()
