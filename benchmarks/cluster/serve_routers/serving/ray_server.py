"""Ray Serve on several nodes of this machine: starts them, then obeys commands, one JSON object a line."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from pathlib import Path

import numpy as np
import ray
from ray import serve
from ray._common.utils import get_default_ray_temp_dir
from ray._private import services
from ray.cluster_utils import Cluster
from ray.serve.context import _get_global_client
from ray.serve.schema import ServeDeploySchema

_HOST = "127.0.0.1"
_LOGGING = {"enable_access_log": False, "log_level": "WARNING"}
_POLL_S = 0.2


def main(settings: dict) -> None:
    """Start the nodes and serve until the input ends."""
    # Ray else replaces 127.0.0.1 by the address of the default route.
    services.get_node_ip_address = lambda address=None: _HOST
    # Where Ray notes the address of the newest cluster, whatever `temp_dir` is; it does not create the folder.
    Path(get_default_ray_temp_dir()).mkdir(parents=True, exist_ok=True)
    cluster = Cluster()
    for number, node in enumerate(settings["nodes"]):
        cluster.add_node(
            num_cpus=node["devices"],
            node_ip_address=_HOST,
            include_dashboard=False,
            object_store_memory=80_000_000,
            temp_dir=settings["folder"],
            env_vars=node["variables"],
            **({"gcs_server_port": settings["gcs_port"]} if number == 0 else {}),
        )
    ray.init(address=cluster.address, log_to_driver=False, logging_level="warning", _node_ip_address=_HOST)
    serve.start(
        proxy_location="EveryNode",
        http_options={"host": _HOST, "port": settings["http_port"]},
        grpc_options={"port": settings["grpc_port"], "grpc_servicer_functions": ["device_server.add_to_server"]},
        logging_config=_LOGGING,
    )
    _deploy(settings)
    print("ready", flush=True)
    loop = asyncio.new_event_loop()  # one for all loads: a handle's router belongs to its loop
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "deploy":
            _deploy({**settings, **command})
            print(json.dumps({}), flush=True)
        else:
            print(json.dumps(loop.run_until_complete(_drive(command))), flush=True)


def _deploy(settings: dict) -> None:
    """Deploy the devices, or change how those that run are used."""
    deployment = {
        "name": "Device",
        "num_replicas": sum(node["devices"] for node in settings["nodes"]),
        "max_ongoing_requests": settings["max_ongoing"],
        "user_config": {"threaded": settings["threaded"]},
        "ray_actor_options": {"num_cpus": 1},
    }
    application = {"name": "devices", "route_prefix": "/", "import_path": "device_server:app"}
    application |= {"deployments": [deployment], "logging_config": _LOGGING}
    config = {
        "proxy_location": "EveryNode",
        "http_options": {"host": _HOST, "port": settings["http_port"]},
        "grpc_options": {
            "port": settings["grpc_port"],
            "grpc_servicer_functions": ["device_server.add_to_server"],
        },
        "logging_config": _LOGGING,
        "applications": [application],
    }
    _get_global_client().deploy_apps(ServeDeploySchema.model_validate(config))
    time.sleep(5 * _POLL_S)
    while True:
        found = serve.status().applications.get("devices")
        if found is not None and found.status == "DEPLOY_FAILED":
            raise SystemExit(found.message)
        deployed = found is not None and found.status == "RUNNING"
        if deployed and all(each.status == "HEALTHY" for each in found.deployments.values()):
            return
        time.sleep(_POLL_S)


async def _drive(command: dict) -> dict:
    """Send queries by a handle of this process, without a proxy; see `benchmarks.encoders.load` for the loops."""
    handle = serve.get_app_handle("devices")
    by_length = {length: np.ones(length, np.int64).tobytes() for length in set(command["lengths"])}
    contents = [by_length[length] for length in command["lengths"]]
    latencies, failed, errors = [], 0, [""]

    async def ask(content: bytes, since: float, begin: float, end: float) -> None:
        nonlocal failed
        try:
            await handle.infer.remote(content)
        except Exception as error:
            failed += 1
            errors.append(str(error))
            return
        now = time.perf_counter()
        if begin <= now < end:
            latencies.append((now - since) * 1e3)

    start, used = time.perf_counter() + command["warm_s"], time.process_time()
    if "times" in command:
        pending = []
        for moment, content in zip(command["times"], contents, strict=True):
            await asyncio.sleep(max(0.0, start + moment - time.perf_counter()))
            pending.append(asyncio.create_task(ask(content, start + moment, 0.0, float("inf"))))
        await asyncio.gather(*pending)
        seconds = time.perf_counter() - start
    else:
        seconds = command["seconds"]
        following = itertools.cycle(contents)

        async def keep_asking() -> None:
            while time.perf_counter() < start + seconds:
                await ask(next(following), time.perf_counter(), start, start + seconds)

        await asyncio.gather(*(keep_asking() for _ in range(command["in_flight"])))
    used = time.process_time() - used
    return {"latencies_ms": latencies, "failed": failed, "client_s": used, "seconds": seconds, "error": errors[-1]}


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
