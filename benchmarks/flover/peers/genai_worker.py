"""Runs decoders with OpenVINO GenAI; run as a file by the Python of the environment `genai`.

It reads a call as JSON from each line of standard input, and writes a line of JSON for it: `{"result": …}` or
`{"error": "…"}`.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Open pipelines by number.
_PIPELINES: dict[int, Any] = {}


def export(source: str, folder: str, precision: str, group: int) -> int:
    """Convert a model in Hugging Face format, with its tokenizer, as `optimum-cli export openvino` does.

    Args:
        source: Folder of the model.
        folder: Folder to write.
        precision: Precision of the weights: bf16, int8, or int4, where embeddings and head have 8 bits.
        group: Number of inputs that share a scale in int4.

    Returns:
        Size of the graph's weights in bytes.
    """
    import openvino as ov
    from openvino_tokenizers import convert_tokenizer
    from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig
    from transformers import AutoTokenizer

    options: dict[str, dict[str, Any]] = {"int8": {"bits": 8}, "int4": {"bits": 4, "group_size": group, "ratio": 1.0}}
    compression = OVWeightQuantizationConfig(sym=False, **options[precision]) if precision in options else None
    model = OVModelForCausalLM.from_pretrained(
        source, export=True, compile=False, quantization_config=compression, local_files_only=True
    )
    model.save_pretrained(folder)
    graphs = convert_tokenizer(AutoTokenizer.from_pretrained(source), with_detokenizer=True)
    for graph, name in zip(graphs, ("openvino_tokenizer.xml", "openvino_detokenizer.xml"), strict=True):
        ov.save_model(graph, Path(folder) / name)
    return (Path(folder) / "openvino_model.bin").stat().st_size


def open_pipeline(folder: str, kv: str, chunk: int, split: bool, prefixes: bool, cache_gb: int, threads: int) -> int:
    """Open a pipeline with continuous batching, and return its number.

    Args:
        folder: Folder that `export` wrote.
        kv: Type of keys and values: bf16 or u8.
        chunk: Largest number of tokens of a pass.
        split: Whether a prompt may be computed in several passes.
        prefixes: Whether prompts reuse the blocks of equal prefixes.
        cache_gb: Memory of keys and values in GiB.
        threads: Number of threads.
    """
    import openvino_genai

    settings = openvino_genai.SchedulerConfig()
    settings.cache_size = cache_gb
    settings.max_num_batched_tokens = chunk
    settings.dynamic_split_fuse = split
    settings.enable_prefix_caching = prefixes
    properties = {
        "INFERENCE_PRECISION_HINT": "bf16", "KV_CACHE_PRECISION": kv, "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1, "ENABLE_CPU_PINNING": False,
    }  # fmt: skip
    number = max(_PIPELINES, default=0) + 1
    _PIPELINES[number] = openvino_genai.ContinuousBatchingPipeline(folder, settings, "CPU", properties)
    return number


def close_pipeline(number: int) -> None:
    """Close a pipeline."""
    del _PIPELINES[number]


def run(number: int, requests: list[dict[str, Any]], until: int | None = None) -> dict[str, Any]:
    """Generate for requests, each added when its time has come.

    Args:
        number: Number of the pipeline.
        requests: `prompt`, `tokens` and `at` of each, in the order of `at`.
        until: Request with whose last token the run ends; None: with all.

    Returns:
        `times` in seconds since the start and `tokens` of each request, and `cache`: the largest used share of the
        memory of keys and values.
    """
    import openvino as ov
    import openvino_genai

    pipeline = _PIPELINES[number]
    prompts = [ov.Tensor(_array(each["prompt"])) for each in requests]
    times: list[list[float]] = [[] for _ in requests]
    tokens: list[list[int]] = [[] for _ in requests]
    handles: dict[int, Any] = {}
    began, added = time.perf_counter(), 0
    while added < len(requests) or handles:
        now = time.perf_counter() - began
        while added < len(requests) and requests[added]["at"] <= now:
            config = openvino_genai.GenerationConfig()
            config.max_new_tokens = requests[added]["tokens"]
            config.ignore_eos, config.do_sample = True, False
            handles[added] = pipeline.add_request(added, prompts[added], config)
            added += 1
        if not handles:
            time.sleep(max(0.0, requests[added]["at"] - now))
            continue
        pipeline.step()
        now = time.perf_counter() - began
        for place, handle in list(handles.items()):
            while handle.can_read():
                for part in handle.read().values():
                    tokens[place] += part.generated_ids
                    times[place] += [now] * len(part.generated_ids)
            if len(tokens[place]) >= requests[place]["tokens"]:
                del handles[place]
        if until is not None and until < added and until not in handles:
            break
    for handle in handles.values():
        handle.cancel()
    while pipeline.has_non_finished_requests():
        pipeline.step()
    return {"times": times, "tokens": tokens, "cache": pipeline.get_metrics().max_cache_usage / 100}


def _array(prompt: list[int]) -> Any:
    import numpy as np

    return np.array([prompt], np.int64)


_CALLS: dict[str, Callable[..., Any]] = {"export": export, "open": open_pipeline, "close": close_pipeline, "run": run}


def main() -> None:
    """Answer calls until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print
    for line in sys.stdin:
        call = json.loads(line)
        try:
            answer: dict[str, Any] = {"result": _CALLS[call.pop("call")](**call)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    # `requests.py` beside this file would be imported instead of the package of that name.
    sys.path[:] = [each for each in sys.path if Path(each) != Path(__file__).parent]
    main()
