"""`tidal serve` over doubles of Tidal's models and a real decoder, and `tidal gateway` in front of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from testing.decoders import build_decoder, write_decoder
from testing.gateways import RunningGateway, running_gateway
from testing.once import built_once
from testing.serving import Served, serving
from testing.waiting import until
from tidal_gateway.upstream import server

_TEXT = 'input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] optional: true } ]'
_PAIR = 'input [ { name: "text_pair" data_type: TYPE_STRING dims: [ 1 ] optional: true } ]'
_IDS = """input [ { name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] optional: true },
  { name: "attention_mask" data_type: TYPE_INT64 dims: [ -1 ] optional: true } ]"""
_CLASSES = """output [ { name: "label" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "logits" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "probabilities" data_type: TYPE_FP32 dims: [ -1 ] } ]"""
_TOKENS = 'output [ { name: "input_tokens" data_type: TYPE_INT32 dims: [ 1 ] } ]'
_VECTOR = 'output [ { name: "embedding" data_type: TYPE_FP32 dims: [ -1 ] } ]'
_BATCH = "max_batch_size: 64"
#: Longest text of the decoder `writer` with its prompt, in tokens, which are bytes.
POSITIONS = 512
# Tensors as Tidal's models of these tasks have them.
DOUBLES = {
    "embedder": ("embedding", [_BATCH, _TEXT, _IDS, _VECTOR]),
    "reranker": (
        "rerank",
        [_BATCH, _TEXT, _PAIR, """output [ { name: "score" data_type: TYPE_FP32 dims: [ 1 ] },
  { name: "logits" data_type: TYPE_FP32 dims: [ -1 ] } ]"""],
    ),
    "intent": ("classification", [_BATCH, _TEXT, _PAIR, _CLASSES]),
    "digits": ("image", [_BATCH, 'input [ { name: "image" data_type: TYPE_STRING dims: [ 1 ] } ]', _CLASSES]),
    "talker": (
        "chat",
        ["max_batch_size: 0", "model_transaction_policy { decoupled: true }", """
input [ { name: "messages" data_type: TYPE_STRING dims: [ 1 ] }, { name: "stream" data_type: TYPE_BOOL dims: [ 1 ] },
  { name: "tools" data_type: TYPE_STRING dims: [ 1 ] optional: true } ]
output [ { name: "index" data_type: TYPE_INT32 dims: [ -1 ] },
  { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] },
  { name: "token_ids" data_type: TYPE_INT64 dims: [ -1 ] },
  { name: "finish_reason" data_type: TYPE_STRING dims: [ -1 ] },
  { name: "prompt_tokens" data_type: TYPE_INT32 dims: [ -1 ] },
  { name: "generated_tokens" data_type: TYPE_INT32 dims: [ -1 ] } ]"""],
    ),
}  # fmt: skip


def write_doubles(repository: Path, log_file: Path, names: Sequence[str] = tuple(DOUBLES)) -> None:
    """Add doubles of Tidal's models to a repository."""
    for name in names:
        kind, lines = DOUBLES[name]
        version = repository / name / "1"
        version.mkdir(parents=True)
        shutil.copy2(Path(__file__).with_name("double_model.py"), version / "model.py")
        values = {"stands_for": kind, "log_file": str(log_file)}
        parameters = [
            f'parameters [ {{ key: "{each}" value: {{ string_value: "{value}" }} }} ]' for each, value in values.items()
        ]
        tokens = [_TOKENS] if kind != "chat" else []
        text = ['backend: "python"', *lines, *tokens, *parameters, "instance_group [ { kind: KIND_CPU count: 1 } ]"]
        (version.parent / "config.pbtxt").write_text("\n".join(text))


@dataclass(frozen=True)
class Backend:
    """A running `tidal serve`, and the log of the doubles."""

    served: Served
    log_file: Path

    @property
    def address(self) -> str:
        return f"{self.served.report['grpc']},status={self.served.report['status']}"

    def log(self) -> list[str]:
        """Lines of the doubles' log without the time."""
        text = self.log_file.read_text() if self.log_file.exists() else ""
        return [line.rpartition(" ")[0] for line in text.splitlines()]


@pytest.fixture(scope="package")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the decoder `writer`: `source` in Hugging Face format, and `repository`."""
    return built_once(tmp_path_factory, "gateway_decoder", _write_decoder)


@pytest.fixture(scope="package")
def backend(decoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    folder = tmp_path_factory.mktemp("gateway")
    repository = folder / "models"
    shutil.copytree(decoder / "repository", repository)
    write_doubles(repository, folder / "doubles.log")
    with serving(repository, folder / "runtime", "--strict", "--exit-timeout", "5") as served:
        yield Backend(served, folder / "doubles.log")


#: A chat template with the marks of the format `hermes`, of few tokens.
CHAT_TEMPLATE = (
    "{% if tools %}<tool_call></tool_call>{{ tools[0].function.name }}{% endif %}{% for message in messages %}"
    "{{ message.content }}{% for call in message.tool_calls or [] %}{{ call.function.arguments.x }}{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}:{% endif %}"
)


def _write_decoder(folder: Path) -> None:
    folder.mkdir()
    source = write_decoder(folder / "source", "gpt2", n_positions=POSITIONS)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(source)
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(source)
    build_decoder(folder, "writer", source, slots=4)


@pytest.fixture(scope="package")
def gateway(backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway without keys; `timeout_s` is short so that a request that hangs fails its test soon."""
    folder = tmp_path_factory.mktemp("open")
    options = ("--timeout-s", "20", "--tool-format", "talker=hermes")
    with running_gateway(folder, "--server", backend.address, *options) as started:
        assert until(started.ready), (folder / "stderr").read_text()
        yield started


@pytest.fixture
def quick_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check servers, and forget models that are missing, sooner than a gateway does."""
    monkeypatch.setattr(server, "CHECK_S", 0.2)
    monkeypatch.setattr(server, "UNLOADED_S", 0.2)
