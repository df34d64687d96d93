"""`python -m demo.train_writer`: train the small Llama of demo/writer on this project's pages.

Its files are in git, so this need not be run. It takes two minutes on one core, and is reproducible with the same
pages, torch version and processor.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

PAGES = (Path("README.md"), *sorted(Path("docs").rglob("*.md")))
TARGET = Path("demo/writer")
END = "<|end|>"
VOCABULARY = 2048
CONTEXT = 256
LAYERS, WIDTH, HEADS = 4, 128, 4
INNER = 352
STEPS, BATCH = 700, 4
# Learning rates of Muon, for matrices, and of AdamW, for all other weights. Both together need a third of the steps.
RATES = 0.02, 3e-3

#: The model was trained on no dialogues: it goes on with the last message.
CHAT_TEMPLATE = "{{ messages[-1].content }}"
_BESIDE_PROSE = re.compile(r"```.*?```|^\|.*?$|^!\[.*?$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_BEGINS_AGAIN = re.compile(r"(- |\d+\. |#+ )")


def main() -> int:
    """Train the model, write its folder, and return 0."""
    texts = [section for page in PAGES for section in sections(page.read_text(encoding="utf-8"))]
    tokenizer = train_tokenizer(texts)
    end = tokenizer.token_to_id(END)
    assert end is not None
    ids = [token for text in texts for token in tokenizer.encode(text + END).ids]
    print(f"{len(PAGES)} pages, {len(texts)} sections, {sum(map(len, texts)):,} characters, {len(ids):,} tokens")
    write(train(ids, end), tokenizer, TARGET)
    return 0


def sections(markdown: str) -> list[str]:
    """Return the prose of a page by heading, one line per paragraph, without code, tables and pictures."""
    lines: list[str] = []
    for line in _LINK.sub(r"\1", _BESIDE_PROSE.sub("", markdown)).splitlines():
        begins = not lines or not lines[-1] or not line or _BEGINS_AGAIN.match(line.lstrip())
        if begins or lines[-1].startswith("#"):
            lines.append(line.strip())
        else:
            lines[-1] += f" {line.strip()}"
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines))
    return [section.strip() + "\n" for section in re.split(r"^(?=#)", text, flags=re.MULTILINE) if section.strip()]


def train_tokenizer(texts: Sequence[str]) -> Tokenizer:
    """Train a byte-level BPE tokenizer of `VOCABULARY` tokens, including the end-of-text token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def train(ids: Sequence[int], end: int) -> Any:
    """Train a `LlamaForCausalLM` on the texts.

    Args:
        ids: Token ids of all texts, concatenated.
        end: Id of the end-of-text token after each text.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=CONTEXT,
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        tie_word_embeddings=True,
        initializer_range=0.05,
        bos_token_id=end,
        eos_token_id=end,
    )
    model = LlamaForCausalLM(config)
    products = [each for each in model.model.layers.parameters() if each.dim() == 2]
    others = [model.model.embed_tokens.weight, *(each for each in model.parameters() if each.dim() == 1)]
    optimisers: tuple[torch.optim.Optimizer, ...] = (
        torch.optim.Muon(products, RATES[0], weight_decay=0.0, momentum=0.95),
        torch.optim.AdamW(others, RATES[1], betas=(0.9, 0.95), weight_decay=0.01),
    )
    schedules = [torch.optim.lr_scheduler.LambdaLR(each, _share_of_rate) for each in optimisers]
    tokens = torch.tensor(ids)
    began, mean = time.monotonic(), 0.0
    for step in range(1, STEPS + 1):
        positions = torch.randint(len(tokens) - CONTEXT, (BATCH, 1)) + torch.arange(CONTEXT)
        rows = tokens[positions]
        loss = model(rows, labels=rows).loss
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimiser, schedule in zip(optimisers, schedules, strict=True):
            optimiser.step()
            schedule.step()
        mean += (float(loss.detach()) - mean) / min(step, 50)
        if step % 50 == 0:
            print(f"step {step} of {STEPS}: loss {mean:.3f}, {time.monotonic() - began:.0f} s", flush=True)
    return model.eval()


def _share_of_rate(step: int) -> float:
    """Warm up over 20 steps, decay linearly to 0 in the second half."""
    return min(1.0, (step + 1) / 20, 2 * (1 - step / STEPS))


def write(model: Any, tokenizer: Tokenizer, target: Path) -> None:
    """Write model and tokenizer in Hugging Face's format, with weights in half precision to halve the size."""
    from transformers import PreTrainedTokenizerFast

    model.half().save_pretrained(target)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=END, eos_token=END, model_max_length=CONTEXT)
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(target)


if __name__ == "__main__":
    sys.exit(main())
