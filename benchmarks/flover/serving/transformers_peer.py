"""Continuous batching of transformers: its manager with paged keys and values, and attention by SDPA on a CPU."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any

from benchmarks.flover.serving.outbox import GenerationJob


class TransformersBatching:
    """A manager of transformers; a thread hands on what it generates.

    Args:
        source: folder in Hugging Face format.
        precision: `bf16` or `fp32`.
        threads: of torch.
        page: tokens of a page of keys and values.
        most: requests that run at the same time; pages are there for all of them.
        longest: tokens of a request with its prompt.
        batch_tokens: most tokens of a pass, prompts among them.
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
            allow_block_sharing=False,  # prompts are all different
        )
        greedy = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
        self._manager: Any = open_source(source, precision).init_continuous_batching(greedy, paged)
        self._manager.start()
        self._names = itertools.count()
        self._jobs: dict[str, GenerationJob] = {}
        self._closing = False
        threading.Thread(target=self._pass_on, name="results", daemon=True).start()

    @property
    def calls(self) -> int:
        """Passes so far."""
        return int(getattr(self._manager, "current_batch", 0))

    def submit(self, job: GenerationJob) -> None:
        """Hand a request to the manager."""
        name = str(next(self._names))
        self._jobs[name] = job
        added = self._manager.add_request(job.prompt.tolist(), name, max_new_tokens=job.wanted, streaming=True)
        if added is None:
            job.fail("the manager takes no requests")

    def close(self) -> None:
        """Stop the manager."""
        self._closing = True
        self._manager.stop(block=True, timeout=5, hard_stop=True)

    def _pass_on(self) -> None:
        while not self._closing:
            found = self._manager.get_result(timeout=0.5)
            if found is None:
                if not self._manager.is_running() and not self._closing:
                    for job in self._jobs.values():
                        job.fail(f"the manager has ended: {self._manager.background_thread_status.fatal_error}")
                    return
                continue
            job = self._jobs[found.request_id]
            for token in found.generated_tokens[job.taken :]:
                job.take(int(token))
            if found.error:
                job.fail(found.error)
            if found.is_finished():
                del self._jobs[found.request_id]
