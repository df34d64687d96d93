"""Decoders of random weights: the source in Hugging Face format, and the files that each side reads."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from benchmarks.flover.peers.worker_process import PeerFailed, Worker
from benchmarks.flover.source import write_tokenizer
from benchmarks.kept import cache_folder
from benchmarks.report import progress
from tidal.flover.architectures import form_of
from tidal.flover.form import DecoderForm
from tidal.flover.models.weights import DecoderWeights
from tidal.flover.models.weights_file import load_weights
from tidal_builders.flover.converting import SourceTensors, write_weights

Precision = Literal["bf16", "int8", "int4"]
PRECISIONS: tuple[Precision, ...] = ("bf16", "int8", "int4")
#: Number of inputs that share a scale in int4 weights, on both sides.
GROUP = 64
_DONE = "done"
# Largest size of the peer's weights, as a share of those in bfloat16: what is not compressed must not be compared.
_SHARES: dict[Precision, float] = {"bf16": 1.05, "int8": 0.6, "int4": 0.5}


@dataclass(frozen=True)
class Decoder:
    """A decoder and its files.

    Attributes:
        name: Name in tables.
        family: `gpt2` or `llama`.
        layers: Number of layers.
        width: Width of a token.
        heads: Number of attention heads of 64.
        kv_heads: Number of heads of keys and values.
        inner: Width of the feed-forward part.
        vocabulary: Number of tokens.
        positions: Most tokens of a sequence.
    """

    name: str
    family: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    inner: int
    vocabulary: int
    positions: int

    @property
    def folder(self) -> Path:
        """Folder of the files; its name depends on all sizes."""
        digest = hashlib.sha256(repr((asdict(self), GROUP, _SHARES)).encode()).hexdigest()[:12]
        return cache_folder() / f"flover-peers-{digest}"

    @property
    def source(self) -> Path:
        """Folder of the model in Hugging Face format, in bfloat16."""
        return self.folder / "source"

    def config(self) -> Any:
        """Return the configuration in transformers."""
        from transformers import GPT2Config, LlamaConfig

        if self.family == "gpt2":
            return GPT2Config(
                vocab_size=self.vocabulary, n_positions=self.positions, n_embd=self.width, n_layer=self.layers,
                n_head=self.heads, n_inner=self.inner, bos_token_id=None, eos_token_id=None,
            )  # fmt: skip
        return LlamaConfig(
            vocab_size=self.vocabulary, hidden_size=self.width, intermediate_size=self.inner,
            num_hidden_layers=self.layers, num_attention_heads=self.heads, num_key_value_heads=self.kv_heads,
            max_position_embeddings=self.positions, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None,
        )  # fmt: skip

    @property
    def form(self) -> DecoderForm:
        """Architecture as Tidal describes it."""
        return form_of(self.config())

    def weights(self, precision: Precision) -> DecoderWeights:
        """Load Tidal's weights of a precision."""
        return load_weights(self._weights_file(precision), self.form)

    def graph(self, precision: Precision) -> Path:
        """Return the folder of the peer's graph of a precision."""
        return self.folder / f"graph-{precision}"

    def prepare(self, worker: Callable[[], Worker]) -> None:
        """Write what is missing: source, Tidal's weights, and the peer's graphs.

        Args:
            worker: Starts the process that exports graphs; called if any is missing.
        """
        _once(self.source, "weights", self._write_source)
        for precision in PRECISIONS:
            file = self._weights_file(precision)
            _once(file.parent, f"Tidal's {precision}", partial(self._convert, file, precision))
        if any(not (self.graph(each) / _DONE).exists() for each in PRECISIONS):
            with worker() as exporting:
                for precision in PRECISIONS:
                    export = partial(self._export, exporting, precision)
                    _once(self.graph(precision), f"GenAI's {precision}", export)

    def _write_source(self) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = AutoModelForCausalLM.from_config(self.config(), dtype=torch.bfloat16)
        model.save_pretrained(self.source)
        write_tokenizer(self.source, self.vocabulary)

    def _convert(self, file: Path, precision: Precision) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_weights(SourceTensors(self.source, self.form.family), self.form, file, precision, GROUP, tied=True)

    def _export(self, worker: Worker, precision: Precision) -> None:
        folder = str(self.graph(precision))
        size = worker.call("export", source=str(self.source), folder=folder, precision=precision, group=GROUP)
        most = _SHARES[precision] * sum(each.stat().st_size for each in self.source.glob("*.safetensors"))
        if size > most:
            raise PeerFailed(f"the graph of {precision} has {size:,} bytes of weights, more than {most:,.0f}")

    def _weights_file(self, precision: Precision) -> Path:
        return self.folder / f"tidal-{precision}" / "weights.safetensors"


#: GPT-2 small's size, and a Llama of 0.55 billion parameters.
GPT2 = Decoder("GPT-2 small's size", "gpt2", 12, 768, 12, 12, 3072, 50_257, 1024)
LLAMA = Decoder("Llama of 0.55 B", "llama", 20, 1536, 24, 8, 4096, 32_000, 9216)
#: Those of `--quick`.
SMALL = (
    Decoder("GPT-2, 2 layers", "gpt2", 2, 256, 4, 4, 1024, 4_000, 1024),
    Decoder("Llama, 6 layers", "llama", 6, 512, 8, 4, 2048, 4_000, 9216),
)


def _once(folder: Path, name: str, write: Callable[[], object]) -> None:
    """Fill a folder unless that was done; what an interrupted run left is written again."""
    done = folder / _DONE
    if done.exists():
        return
    progress(f"writing {folder.parent.name}: {name}")
    shutil.rmtree(folder, ignore_errors=True)
    write()
    done.write_text(json.dumps({}), encoding="utf-8")
