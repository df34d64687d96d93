"""Reference generations by transformers in float32, with the margin of each token over the second most likely."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.flover.serving.outbox import Ids
from benchmarks.flover.source import open_source
from benchmarks.report import progress

FILE = "references.npz"
_PROMPTS = 64
_SHORTEST_PROMPT, _LONGEST_PROMPT = 4, 96
_SHORTEST, _LONGEST = 16, 64


@dataclass(frozen=True, slots=True)
class References:
    """Reference generations, one per prompt.

    Attributes:
        prompts: Token ids of each prompt, [tokens].
        tokens: Generated token ids, [generated].
        leads: Difference between the two largest logits of each generated token, [generated].
    """

    prompts: tuple[Ids, ...]
    tokens: tuple[Ids, ...]
    leads: tuple[np.ndarray[tuple[int], np.dtype[np.float32]], ...]


def write_references(source: Path, file: Path, vocabulary: int) -> None:
    """Generate greedily with transformers, one prompt of random length at a time."""
    import torch

    model = open_source(source, "fp32")
    draw = np.random.default_rng(0)
    arrays = {}
    for number in range(_PROMPTS):
        prompt = draw.integers(0, vocabulary, int(draw.integers(_SHORTEST_PROMPT, _LONGEST_PROMPT + 1)))
        ids = torch.from_numpy(prompt)[None]
        with torch.inference_mode():
            found = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=int(draw.integers(_SHORTEST, _LONGEST + 1)),
                pad_token_id=0,
                return_dict_in_generate=True,
                output_logits=True,
            )
        best = torch.cat(found.logits).float().topk(2, dim=-1).values
        arrays[f"prompt{number}"] = prompt
        arrays[f"tokens{number}"] = found.sequences[0, len(prompt) :].numpy()
        arrays[f"leads{number}"] = (best[:, 0] - best[:, 1]).numpy()
        if number % 16 == 15:
            progress(f"{number + 1} of {_PROMPTS} prompts")
    np.savez(file, **arrays)


def read_references(file: Path) -> References:
    """Return what `write_references` wrote."""
    with np.load(file, allow_pickle=False) as found:
        prompts, tokens, leads = (
            tuple(found[f"{name}{number}"] for number in range(_PROMPTS)) for name in ("prompt", "tokens", "leads")
        )
    return References(prompts, tokens, leads)
