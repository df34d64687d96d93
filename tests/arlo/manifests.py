"""A manifest without files, and what requests of token ids need of a tokenizer."""

from __future__ import annotations

from tidal.arlo.manifest import ArloManifest
from tidal.device import cpu
from tidal.engine_model.manifest import Runtime
from tidal.manifest import FileRecord, Source, TokenizerInfo, Verification
from tidal.profiles import LatencyProfile

LENGTHS = (16, 32, 64)
OUTPUTS = frozenset({"logits", "max_length"})


def make_manifest(*, tokenizer_sha: str = "a", labels: tuple[str, ...] = ("no", "yes")) -> ArloManifest:
    ones = tuple((1.0,) for _ in LENGTHS)
    return ArloManifest(
        kind="arlo",
        name="m",
        created="2030-01-01T00:00:00Z",
        spec="m.yaml",
        fingerprint="f",
        source=Source(model="m", architecture="Bert", sha256="s"),
        engine="openvino",
        precision="fp32",
        device=cpu(),
        libraries={},
        verification=Verification(samples=1, max_abs_error=0.0, tolerance=0.1, argmax_agreement=1.0),
        files=(FileRecord(path="tokenizer.json", bytes=1, sha256=tokenizer_sha),),
        placement="partitioned",
        tokenizer=TokenizerInfo(file="tokenizer.json", max_length=64, pad_token_id=0, type_ids=False),
        labels=labels,
        runtimes=tuple(Runtime(max_length=n, file="engine", dynamic=False, max_batch=1) for n in LENGTHS),
        profile=LatencyProfile(lengths=LENGTHS, batches=(1,), median_ms=ones, p95_ms=ones, threads=1),
    )


class Tokenizer:
    """The attributes of a tokenizer that requests of token ids need."""

    vocab_size, max_length = 100, 64
