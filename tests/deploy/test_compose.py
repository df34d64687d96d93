"""docker-compose.yml: the published schema, and everything in it that names a file, port, command or version."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from typing import Any

import jsonschema
import pytest

from deploy.demo_load import Target
from tests.deploy.project import ROOT, accepts, documents, pyproject
from tidal.commands.serve import STATUS_PORT
from tidal.server.process import KILL_AFTER_S
from tidal.server.protection import MAX_INPUT_SIZE
from tidal_gateway.api.routes import ROUTES
from tidal_gateway.settings import PREFIX, GatewaySettings, read_settings

OURS = ("triton", "controller", "gateway", "load")
_VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")


def mounts(service: dict[str, Any], **variables: str) -> dict[str, str]:
    """Where a service's volumes and folders are in it, by their source; variables as the user has set them."""

    def filled(text: str) -> str:
        return _VARIABLE.sub(lambda found: variables.get(found[1], found[2]), text)

    pairs = [filled(volume).split(":") for volume in service.get("volumes", [])]
    return {source: inside for source, inside, *_ in pairs}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    (found,) = documents("docker-compose.yml")
    return found


@pytest.fixture(scope="module")
def services(compose: dict[str, Any]) -> dict[str, Any]:
    return compose["services"]


@pytest.mark.parametrize("path", ["docker-compose.yml", "deploy/compose.gpu.yml"])
def test_the_file_fits_the_compose_specification(path: str) -> None:
    schema = json.loads((files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json").read_text())
    (found,) = documents(path)
    jsonschema.validators.validator_for(schema)(schema).validate(found)
    misspelt = {**found, "services": {**found["services"], "triton": {"imagee": "x"}}}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validators.validator_for(schema)(schema).validate(misspelt)


def test_named_services_and_volumes_exist(compose: dict[str, Any], services: dict[str, Any]) -> None:
    used = set()
    for name, service in services.items():
        named = [*service.get("depends_on", [])]
        for key in ("network_mode", "pid"):
            named += [service[key].removeprefix("service:")] if key in service else []
        assert set(named) <= set(services), name
        for source in mounts(service):
            if source.startswith("./"):
                assert (ROOT / source).is_dir(), source
            else:
                used.add(source)
    assert used == set(compose["volumes"])


def test_services_wait_only_for_services_with_a_health_check(services: dict[str, Any]) -> None:
    for service in services.values():
        on = service.get("depends_on", {})
        for other, how in on.items() if isinstance(on, dict) else ():
            if how["condition"] == "service_healthy":
                # Of the image itself, see test_images.
                assert services[other]["image"].startswith("tidal:")
                assert "healthcheck" not in services[other]


def test_images_are_of_one_version_and_their_stages_exist(services: dict[str, Any]) -> None:
    dockerfile, version = (ROOT / "Dockerfile").read_text(), pyproject()["version"]
    for name, service in services.items():
        image, _, tag = service["image"].partition(":")
        assert re.fullmatch(r"v?\d+\.\d+\.\d+", tag), f"{name} runs whatever is newest"
        assert image not in ("tidal", "tidal-builder") or tag == version
        if "build" in service:
            assert re.search(rf"^FROM .* AS {service['build']['target']}$", dockerfile, re.MULTILINE)
            for argument, value in service["build"]["args"].items():
                (default,) = re.findall(rf"^ARG {argument}=(.*)$", dockerfile, re.MULTILINE)
                assert argument != "TRITON_RELEASE" or value == default


def test_the_server_is_protected(services: dict[str, Any]) -> None:
    """It is started by `tidal serve`, which guards it, with the admin key, and open to this machine only."""
    triton = services["triton"]
    assert "entrypoint" not in triton
    called = accepts(triton["command"])
    assert not called["open_admin"]
    assert called["http_max_input_size"] == MAX_INPUT_SIZE
    assert not {"stack", "memlock"} & set(triton.get("ulimits", {}))
    assert all(port.startswith("127.0.0.1:") for port in triton["ports"])
    assert triton["cap_drop"] == ["ALL"]
    assert triton["security_opt"] == ["no-new-privileges:true"]


@pytest.mark.parametrize("beside", [None, "deploy/compose.gpu.yml"])
def test_services_of_one_image_are_built_alike(services: dict[str, Any], beside: str | None) -> None:
    """Else the image is what the one that is built last makes of it."""
    other = documents(beside)[0]["services"] if beside else {}
    made: dict[str, list[Any]] = {}
    for name, service in services.items():
        if "build" in service:
            build, its = service["build"], other.get(name, {}).get("build", {})
            merged = {**build, **its, "args": {**build["args"], **its.get("args", {})}}
            made.setdefault(service["image"], []).append(merged)
    assert len(made) == 2
    for image, builds in made.items():
        assert all(build == builds[0] for build in builds), image


def test_commands_are_those_of_the_code(services: dict[str, Any]) -> None:
    served = accepts(services["triton"]["command"])
    assert str(served["repository"]) == "/srv/models"
    assert f"--host {served['host']}" == "--host 0.0.0.0"
    grace = float(services["triton"]["stop_grace_period"].removesuffix("s"))
    assert grace >= served["exit_timeout"] + KILL_AFTER_S
    controlled = accepts(services["controller"]["command"])
    assert controlled["metrics_port"] == 8003
    assert (ROOT / "demo" / "__main__.py").is_file()
    assert services["builder"]["command"] == ["python", "-m", "demo"]


def test_the_controller_shares_what_it_discovers_the_server_by(services: dict[str, Any]) -> None:
    triton, beside = services["triton"], services["controller"]
    assert beside["network_mode"] == beside["pid"] == "service:triton"
    assert set(triton["volumes"]) == set(beside["volumes"])
    folders = set(mounts(triton).values())
    (runtime,) = re.findall(r"XDG_RUNTIME_DIR=(\S+)", (ROOT / "Dockerfile").read_text())
    assert folders == {"/srv/models", runtime}


def test_the_gateway_reaches_the_server_and_is_probed(services: dict[str, Any]) -> None:
    gateway, triton = services["gateway"], accepts(services["triton"]["command"])
    given = {name: value for name, value in accepts(gateway["command"]).items() if name in GatewaySettings.model_fields}
    settings = read_settings(given, {}, None)
    assert settings.server == (f"triton:{triton['grpc_port']},status=triton:{STATUS_PORT}",)
    assert settings.host == settings.metrics_host == "0.0.0.0"
    assert {f"127.0.0.1:{port}:{port}" for port in (settings.port, settings.metrics_port)} == set(gateway["ports"])
    assert gateway["healthcheck"]["test"][-1] == f"http://127.0.0.1:{settings.port}/health"
    assert any(route.path == "/health" and route.open for route in ROUTES)
    assert gateway["environment"] == [f"{PREFIX}KEYS"]
    assert mounts(gateway, TIDAL_GATEWAY_FOLDER="/srv/gateway") == {"/srv/gateway": "/etc/tidal"}
    assert float(gateway["stop_grace_period"].removesuffix("s")) > settings.exit_timeout_s + settings.drain_s


def test_ports_are_bound_to_localhost(services: dict[str, Any]) -> None:
    for service in services.values():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:")
    served, ports = accepts(services["triton"]["command"]), services["triton"]["ports"]
    inside = {int(port.rpartition(":")[2]) for port in ports}
    wanted = {served[f"{name}_port"] for name in ("http", "grpc", "metrics")}
    assert inside == wanted | {accepts(services["controller"]["command"])["metrics_port"], STATUS_PORT}


def test_services_drop_all_privileges(services: dict[str, Any]) -> None:
    for name in ("builder", *OURS):
        service = services[name]
        assert service["cap_drop"] == ["ALL"]
        assert "no-new-privileges:true" in service["security_opt"]
        assert not {"privileged", "user", "cap_add"} & set(service)


def test_the_load_is_for_models_of_the_demo(services: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    load = services["load"]
    copied = re.findall(r"COPY deploy/(\S+) (\S+)", (ROOT / "Dockerfile").read_text())
    assert load["entrypoint"] == ["python", dict(copied)["demo_load.py"]]
    targets = [word for word in load["command"] if not word.startswith("--")]
    specs = {documents(f"demo/{file.name}")[0]["name"] for file in (ROOT / "demo").glob("*.yaml")}
    sources = "".join(file.read_text() for file in (ROOT / "demo").glob("*.py"))
    for text in targets:
        kind, model, *rest = text.split(":")
        assert model in specs, text
        for task in rest[0].split(",") if rest else ():
            assert f'"{task}"' in sources, text
        if kind != "image":
            assert Target.parse(text).model == model
    urls = [word for word in load["command"] if word.startswith("--url=")]
    assert urls == [f"--url=grpc://triton:{accepts(services['triton']['command'])['grpc_port']}"]


def test_prometheus_scrapes_server_and_controller(services: dict[str, Any]) -> None:
    (config,) = documents("deploy/prometheus/prometheus.yml")
    targets = {job["job_name"]: job["static_configs"][0]["targets"] for job in config["scrape_configs"]}
    served, controlled = (accepts(services[name]["command"]) for name in ("triton", "controller"))
    # The controller has the server's network.
    assert targets == {
        "triton": [f"triton:{served['metrics_port']}"],
        "controller": [f"triton:{controlled['metrics_port']}"],
        "gateway": [f"gateway:{GatewaySettings.model_fields['metrics_port'].default}"],
    }
    for file in config["rule_files"]:
        assert (ROOT / "deploy" / "prometheus" / file).is_file()
    assert "--config.file=/etc/prometheus/prometheus.yml" in services["prometheus"]["command"]
    assert "./deploy/prometheus:/etc/prometheus:ro" in services["prometheus"]["volumes"]


def test_a_given_repository_is_served_without_the_demo(services: dict[str, Any]) -> None:
    started = {name for name, service in services.items() if "profiles" not in service}
    assert started == {"triton", "controller", "gateway", "prometheus", "alertmanager", "grafana"}
    for name in started:
        needed = services[name].get("depends_on", {})
        for other, how in needed.items() if isinstance(needed, dict) else ():
            assert other in started or how["required"] is False, f"{name} waits for {other}"
    for name in ("triton", "controller", "builder"):
        assert mounts(services[name])["models"] == "/srv/models"
        assert mounts(services[name], TIDAL_REPOSITORY="/home/me/models")["/home/me/models"] == "/srv/models"
    assert str(accepts(services["triton"]["command"])["repository"]) == "/srv/models"


def test_the_profile_demo_builds_before_it_serves_and_sends_load(services: dict[str, Any]) -> None:
    assert [name for name, service in services.items() if service.get("profiles") == ["demo"]] == ["builder", "load"]
    assert services["triton"]["depends_on"]["builder"]["condition"] == "service_completed_successfully"
    assert mounts(services["builder"])["demo"].startswith("/srv/demo/")
    assert mounts(services["load"])["demo"] == "/demo"


def test_prometheus_sends_alerts_to_the_alertmanager(services: dict[str, Any]) -> None:
    (config,) = documents("deploy/prometheus/prometheus.yml")
    ((static,),) = ([each["static_configs"] for each in config["alerting"]["alertmanagers"]],)
    assert static == [{"targets": ["alertmanager:9093"]}]
    service = services["alertmanager"]
    assert "127.0.0.1:9093:9093" in service["ports"]
    assert mounts(service)["./deploy/alertmanager"] == "/etc/alertmanager"
    assert "--config.file=/etc/alertmanager/alertmanager.yml" in service["command"]
    assert (ROOT / "deploy/alertmanager/alertmanager.yml").is_file()


def test_grafana_is_provisioned_with_source_and_dashboard(services: dict[str, Any]) -> None:
    inside = {where: ROOT / here for here, where in mounts(services["grafana"]).items() if here.startswith("./")}
    provisioning = inside["/etc/grafana/provisioning"]
    (sources,) = documents(str((provisioning / "datasources/prometheus.yml").relative_to(ROOT)))
    (providers,) = documents(str((provisioning / "dashboards/tidal.yml").relative_to(ROOT)))
    assert sources["datasources"][0]["url"] == "http://prometheus:9090"
    assert services["prometheus"]["ports"] == ["127.0.0.1:9090:9090"]
    folder = inside[providers["providers"][0]["options"]["path"]]
    assert json.loads((folder / "tidal.json").read_text())["uid"] == "tidal"
