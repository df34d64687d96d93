"""Decoders with random weights in bf16: Flover's runner against concurrent instances and transformers' batching."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.gpu.recording import Record, Setting, median_ms, wait_for
from tidal.flover.form import DecoderForm, Rotary
from tidal.flover.memory.slots import SlotTable
from tidal.flover.models.weights import Affine, DecoderWeights, Dense, LayerWeights
from tidal.flover.runner import FloverRunner

Ids = npt.NDArray[np.int64]


def _gpt2(vocabulary: int, layers: int, width: int, heads: int, positions: int) -> DecoderForm:
    return DecoderForm(
        family="gpt2", vocabulary=vocabulary, layers=layers, width=width, heads=heads, kv_heads=heads,
        head_dim=width // heads, inner=4 * width, positions=positions, rotary=None, norm="layer", epsilon=1e-5,
        activation="gelu_new",
    )  # fmt: skip


GPT2 = _gpt2(50257, 12, 768, 12, 1024)
TINY_DECODER = _gpt2(64, 2, 32, 2, 128)
GPTJ = DecoderForm(
    family="gptj", vocabulary=50400, layers=28, width=4096, heads=16, kv_heads=16, head_dim=256, inner=16384,
    positions=2048, rotary=Rotary(dims=64, theta=10000.0), norm="layer", epsilon=1e-5, parallel=True, shared_norm=True,
    activation="gelu_new",
)  # fmt: skip
REQUESTS = 32


class Load(NamedTuple):
    """Requests that arrive within a while.

    Attributes:
        prompts: Token ids of each prompt.
        arrivals: Seconds at which each arrives.
        tokens: Number of tokens to generate from each.
    """

    prompts: list[Ids]
    arrivals: list[float]
    tokens: int

    @property
    def max_length(self) -> int:
        """Number of tokens of a slot."""
        return max(map(len, self.prompts)) + self.tokens


def random_weights(form: DecoderForm, device: torch.device, dtype: torch.dtype) -> DecoderWeights:
    """Return random weights, which are equal for equal types on every device.

    Large decoders are drawn on the GPU, where that takes a second, and differ from those of a CPU.
    """
    large = form.width > 256 and device.type == "cuda"
    draw = torch.Generator(device if large else "cpu").manual_seed(0)

    def values(*shape: int) -> torch.Tensor:
        drawn = torch.randn(shape, generator=draw, dtype=torch.float32 if not large else dtype, device=draw.device)
        return (drawn * 0.02).to(device, dtype)

    def norm() -> Affine:
        return Affine(
            torch.ones(form.width, dtype=dtype, device=device), torch.zeros(form.width, dtype=dtype, device=device)
        )

    def dense(outputs: int, inputs: int) -> Dense:
        return Dense(values(outputs, inputs), values(outputs))

    layers = tuple(
        LayerWeights(
            attention_norm=norm(), qkv=dense((form.heads + 2 * form.kv_heads) * form.head_dim, form.width),
            query_norm=None, key_norm=None, output=dense(form.width, form.heads * form.head_dim),
            feed_norm=None if form.shared_norm else norm(), up=dense(form.inner, form.width),
            down=dense(form.width, form.inner),
        )
        for _ in range(form.layers)
    )  # fmt: skip
    positions = values(form.positions, form.width) if form.rotary is None else None
    return DecoderWeights(values(form.vocabulary, form.width), positions, layers, norm(), None)


def measure_decoder(setting: Setting, record: Record, full: DecoderForm, name: str) -> None:
    """Measure requests that overlap: tokens/s of each system, and the duration of decode steps.

    Args:
        setting: Setting of the step.
        record: Record of the step.
        full: Decoder of a GPU; a dry run takes a tiny one.
        name: Name for the tables.
    """
    form: DecoderForm = setting.choose(full, TINY_DECODER)
    requests = setting.choose(REQUESTS, 3)
    draw = np.random.default_rng(0)
    load = Load(
        [draw.integers(0, form.vocabulary, int(draw.integers(16, 64))) for _ in range(requests)],
        np.sort(draw.uniform(0, setting.choose(0.2, 0.01), requests)).tolist(),
        setting.choose(128, 4),
    )
    weights = random_weights(form, setting.torch_device, torch.bfloat16)
    systems: dict[str, Callable[[], float]] = {}
    runner = FloverRunner(form, weights, slots=requests, max_length=load.max_length)
    runner.warm_up()
    _steps(setting, record, runner, name)
    systems["Flover"] = lambda: serve_together(runner, load)
    with record.case("instances"):
        instances = [FloverRunner(form, weights, slots=1, max_length=load.max_length) for _ in range(requests)]
        for each in instances:
            each.warm_up()
        systems["concurrent instances"] = lambda: serve_apart(instances, load, setting.torch_device)
        systems["one instance"] = lambda: serve_in_turn(instances[0], load)
    found: dict[str, float] = {}

    def run(system: str, call: Callable[[], float]) -> None:
        with record.case(system):
            call()  # warms up
            found[system] = requests * load.tokens / call()
            record.put("tokens/s", found)
            rows = [[each, f"{value:.0f}"] for each, value in found.items()]
            record.table(
                f"decoder of {name}, bf16, {requests} requests of {load.tokens} tokens", ["system", "tokens/s"], rows
            )

    for system, call in systems.items():
        run(system, call)
    if full is GPT2 and {"Flover", "concurrent instances"} <= found.keys():
        record.claim(f"gpu_flover_vs_instances[{REQUESTS}]", found["Flover"] / found["concurrent instances"])
    with record.case("transformers"):
        run("transformers, continuous batching", by_transformers(form, load, setting.torch_device))


def serve_together(runner: FloverRunner, load: Load) -> float:
    """Serve the requests in shared decode steps, and return the seconds until all are done."""
    slots: SlotTable[int] = SlotTable(runner.slots)
    tokens: dict[int, list[int]] = {}
    waiting, done = list(range(len(load.prompts))), 0
    began = time.perf_counter()
    while done < len(load.prompts):
        now = time.perf_counter() - began
        while waiting and slots.free_count and load.arrivals[waiting[0]] <= now:
            number = waiting.pop(0)
            slots.allocate(number)
            logits = runner.prefill(slots.slot(number), load.prompts[number], 0)
            assert logits is not None
            tokens[number] = [int(logits.argmax())]
            slots.activate(number)
        held = {number: len(load.prompts[number]) + len(own) - 1 for number, own in tokens.items()}
        before = [0] * runner.slots
        for number, count in held.items():
            before[slots.slot(number)] = count
        if moves := slots.compact(held):
            runner.move_slots(moves, before)
        rows = [number for number in slots.rows() if number is not None]
        if not rows:
            continue
        window = slots.window
        last, positions = np.array([tokens[n][-1] for n in rows]), np.array([held[n] for n in rows])
        chosen = runner.decode(window.begin, window.end, last, positions).argmax(-1)
        for number, token in zip(rows, chosen.tolist(), strict=True):
            tokens[number].append(token)
            if len(tokens[number]) >= load.tokens:
                slots.free(number)
                del tokens[number]
                done += 1
    return time.perf_counter() - began


def serve_apart(instances: Sequence[FloverRunner], load: Load, device: torch.device) -> float:
    """Serve each request by an instance and a stream of its own, and return the seconds until all are done."""
    failures: list[Exception] = []
    began = time.perf_counter()

    def work(number: int) -> None:
        try:
            time.sleep(max(0.0, load.arrivals[number] - (time.perf_counter() - began)))
            if device.type == "cuda":
                with torch.cuda.stream(torch.cuda.Stream()):
                    _generate(instances[number], load, number)
            else:
                _generate(instances[number], load, number)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(load.prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return time.perf_counter() - began


def serve_in_turn(instance: FloverRunner, load: Load) -> float:
    """Serve the requests one after another, and return the seconds."""
    began = time.perf_counter()
    for number in range(len(load.prompts)):
        _generate(instance, load, number)
    return time.perf_counter() - began


def by_transformers(form: DecoderForm, load: Load, device: torch.device) -> Callable[[], float]:
    """Return a run of the requests, all at once, by transformers' continuous batching."""
    import transformers

    sizes = {
        "vocab_size": form.vocabulary, "n_layer": form.layers, "n_embd": form.width, "n_head": form.heads,
        "n_positions": form.positions, "bos_token_id": 0, "eos_token_id": 0,
    }  # fmt: skip
    if form.rotary is not None:
        config = transformers.GPTJConfig(**sizes, rotary_dim=form.rotary.dims)
    else:
        config = transformers.GPT2Config(**sizes)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    settings = transformers.GenerationConfig(
        max_new_tokens=load.tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    prompts = [prompt.tolist() for prompt in load.prompts]
    pages = {"page_size": 16, "num_blocks": 64, "max_batch_tokens": 64} if device.type == "cpu" else {}
    batching = transformers.generation.ContinuousBatchingConfig(**pages)

    def run() -> float:
        began = time.perf_counter()
        found = model.generate_batch(prompts, generation_config=settings, continuous_batching_config=batching)
        taken = time.perf_counter() - began
        if len(found) < len(prompts) or any(len(each.generated_tokens) < load.tokens for each in found.values()):
            raise ValueError("transformers did not generate all tokens")
        return taken

    return run


def _generate(runner: FloverRunner, load: Load, number: int) -> None:
    prompt = load.prompts[number]
    logits = runner.prefill(0, prompt, 0)
    assert logits is not None
    last = int(logits.argmax())
    for step in range(load.tokens - 1):
        row = runner.decode(0, 1, np.array([last]), np.array([len(prompt) + step]))
        last = int(row.argmax())


def _steps(setting: Setting, record: Record, runner: FloverRunner, name: str) -> None:
    """Record the duration of decode steps by the number of sequences."""
    found: dict[str, float] = {}
    for rows in sorted({1, min(8, runner.slots), runner.slots}):
        inputs = np.zeros(rows, np.int64), np.full(rows, runner.max_length // 2, np.int64)
        wait_for(setting.torch_device)
        call = partial(runner.decode, 0, rows, *inputs)
        found[str(rows)] = median_ms(call, setting.torch_device, seconds=setting.choose(0.3, 0.02))
        record.put("decode step, ms by sequences", found)
    rows_of = [[rows, f"{value:.3f}"] for rows, value in found.items()]
    record.table(f"decoder of {name}, bf16, decode step", ["sequences", "ms"], rows_of)
