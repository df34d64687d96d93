"""Continuous batching of transformers: its manager with a paged cache, and SDPA attention on a CPU."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any

from benchmarks.flover.serving.outbox import GenerationJob


class TransformersBatching:
    """A manager of transformers, and a thread that forwards its tokens.

    Args:
        source: Folder in Hugging Face format.
        precision: `bf16` or `fp32`.
        threads: Number of threads of torch.
        page: Number of tokens of a page of keys and values.
        most: Largest number of simultaneous requests, all of which have pages.
        longest: Largest number of tokens of a prompt and its text.
        batch_tokens: Largest number of tokens of a pass, prompts included.
    """

    def __init__(
        self, source: Path, precision: str, *, threads: int, page: int, most: int, longest: int, batch_tokens: int
    ) -> None:
        import torch
        from transformers import ContinuousBatchingConfig, GenerationConfig

        from benchmarks.flover.source import open_source

        torch.set_num_threads(threads)
        paged = ContinuousBatchingConfig(
            page_size=page,
            num_blocks=most * (-(-longest // page) + 1),
            max_batch_tokens=batch_tokens,
            max_requests_per_batch=most,
            allow_block_sharing=False,  # all prompts are different
        )
        greedy = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
        self._manager: Any = open_source(source, precision).init_continuous_batching(greedy, paged)
        self._manager.start()
        self._names = itertools.count()
        self._jobs: dict[str, GenerationJob] = {}
        self._closing = False
        threading.Thread(target=self._forward, name="results", daemon=True).start()

    @property
    def calls(self) -> int:
        """Number of passes so far."""
        return int(getattr(self._manager, "current_batch", 0))

    def submit(self, job: GenerationJob) -> None:
        """Queue a request in the manager."""
        name = str(next(self._names))
        self._jobs[name] = job
        added = self._manager.add_request(job.prompt.tolist(), name, max_new_tokens=job.wanted, streaming=True)
        if added is None:
            job.fail("the manager of transformers accepts no requests")

    def close(self) -> None:
        """Stop the manager."""
        self._closing = True
        self._manager.stop(block=True, timeout=5, hard_stop=True)

    def _forward(self) -> None:
        while not self._closing:
            result = self._manager.get_result(timeout=0.5)
            if result is None:
                if not self._manager.is_running() and not self._closing:
                    for job in self._jobs.values():
                        job.fail(f"transformers has stopped: {self._manager.background_thread_status.fatal_error}")
                    return
                continue
            job = self._jobs[result.request_id]
            for token in result.generated_tokens[job.received :]:
                job.add(int(token))
            if result.error:
                job.fail(result.error)
            if result.is_finished():
                del self._jobs[result.request_id]
