"""Continuous batching of OpenVINO GenAI: its pipeline with paged attention, in C++."""

from __future__ import annotations

import itertools
import sys
import threading
from pathlib import Path
from typing import Any

from benchmarks.flover.serving.engines import openvino_settings
from benchmarks.flover.serving.outbox import GenerationJob


class GenAiBatching:
    """A pipeline of OpenVINO GenAI, and the thread that runs its steps.

    Args:
        extra: Folder that `openvino_genai` was installed into.
        graph: Folder with the model and its tokenizers as OpenVINO graphs.
        precision: `bf16` or `fp32`, also of keys and values.
        threads: Number of threads of a pass.
        cache_gb: Memory for keys and values in gigabytes.
        batch_tokens: Largest number of tokens of a pass, prompts included.
        split: Whether prompts may be prefilled in chunks.

    Attributes:
        calls: Number of passes so far.
    """

    def __init__(
        self,
        extra: Path,
        graph: Path,
        precision: str,
        *,
        threads: int,
        cache_gb: int,
        batch_tokens: int,
        split: bool,
    ) -> None:
        if str(extra) not in sys.path:
            sys.path.append(str(extra))
        import openvino_genai

        self._genai: Any = openvino_genai
        settings = self._genai.SchedulerConfig()
        settings.cache_size = cache_gb
        settings.max_num_batched_tokens = batch_tokens
        settings.dynamic_split_fuse = split
        settings.enable_prefix_caching = False  # all prompts are different
        properties = openvino_settings(precision, threads)
        self._pipeline = self._genai.ContinuousBatchingPipeline(str(graph), settings, "CPU", properties)
        self._names = itertools.count()
        self._changed = threading.Condition()
        self._arrived: list[GenerationJob] = []
        self._closing = False
        self.calls = 0
        threading.Thread(target=self._run, name="steps", daemon=True).start()

    def submit(self, job: GenerationJob) -> None:
        """Queue a request for the next step."""
        with self._changed:
            self._arrived.append(job)
            self._changed.notify()

    def close(self) -> None:
        """Stop running steps."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def _run(self) -> None:
        running: list[tuple[GenerationJob, Any]] = []
        while True:
            with self._changed:
                while not (self._arrived or running or self._closing):
                    self._changed.wait()
                if self._closing:
                    return
                arrived, self._arrived = self._arrived, []
            try:
                running += [(job, self._add(job)) for job in arrived]
                self._pipeline.step()
                self.calls += 1
                for job, handle in running:
                    while handle.can_read():
                        for part in handle.read().values():
                            for token in part.generated_ids:
                                job.add(token)
            except Exception as error:
                for job in (*arrived, *(job for job, _ in running)):
                    job.fail(f"{type(error).__name__}: {error}")
            running = [(job, handle) for job, handle in running if job.open]

    def _add(self, job: GenerationJob) -> Any:
        import openvino as ov

        config = self._genai.GenerationConfig()
        config.max_new_tokens = job.wanted
        config.ignore_eos = True
        config.do_sample = False
        return self._pipeline.add_request(next(self._names), ov.Tensor(job.prompt[None].copy()), config)
