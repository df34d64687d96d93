"""A front for tests: sends each request to a free instance of any runtime of its own version, within the allocation."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

from tidal.arlo.manifest import load_arlo_manifest
from tidal.errors import TidalError
from tidal.repository.allocation import usable_allocation
from tidal.repository.names import runtime_model


class TritonPythonModel:
    def initialize(self, args):
        self.name = args["model_name"]
        self.version = int(args["model_version"])
        self.folder = Path(args["model_repository"])
        manifest = load_arlo_manifest(self.folder / args["model_version"])
        self.lengths = [runtime.max_length for runtime in manifest.runtimes]
        self.allowed = usable_allocation(self.folder, self.lengths).serving()
        self.running = dict.fromkeys(self.lengths, 0)
        self.changed = threading.Condition()
        self.closing = threading.Event()
        family = pb_utils.MetricFamily(
            name="tidal_arlo_instances", description="Instances in use", kind=pb_utils.MetricFamily.GAUGE
        )
        self.family = family
        labels = {"model": self.name, "version": args["model_version"]}
        self.gauges = {n: family.Metric(labels={**labels, "runtime": str(n)}) for n in self.lengths}
        self.pool = ThreadPoolExecutor(16)
        self.follower = threading.Thread(target=self.follow)
        self.follower.start()

    def follow(self):
        while True:
            with self.changed:
                with suppress(TidalError):  # written for other runtimes: keep the current allocation
                    self.allowed = usable_allocation(self.folder, self.lengths).serving()
                self.changed.notify_all()
                used = {n: max(self.allowed[n], self.running[n]) for n in self.lengths}
            for n, gauge in self.gauges.items():
                gauge.set(used[n])
            if self.closing.wait(0.05):
                return

    def execute(self, requests):
        for request in requests:
            seconds = pb_utils.get_input_tensor_by_name(request, "SECONDS").as_numpy()
            self.pool.submit(self.run, request.get_response_sender(), seconds)
        return None

    def run(self, sender, seconds):
        with self.changed:
            self.changed.wait_for(lambda: self.free() is not None)
            length = self.free()
            self.running[length] += 1
        try:
            asked = pb_utils.InferenceRequest(
                model_name=runtime_model(self.name, length),
                model_version=self.version,
                inputs=[pb_utils.Tensor("SECONDS", seconds)],
                requested_output_names=["RAN"],
            )
            answer = asked.exec()
            if answer.has_error():
                sender.send(pb_utils.InferenceResponse(error=answer.error()), flags=1)
            else:
                ran = pb_utils.get_output_tensor_by_name(answer, "RAN").as_numpy()
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("RAN", np.array(ran))]), flags=1)
        finally:
            with self.changed:
                self.running[length] -= 1
                self.changed.notify_all()

    def free(self):
        spare = {n: self.allowed[n] - self.running[n] for n in self.lengths}
        best = max(spare, key=lambda n: spare[n])
        return best if spare[best] > 0 else None

    def finalize(self):
        self.pool.shutdown(wait=True)
        self.closing.set()
        self.follower.join()
