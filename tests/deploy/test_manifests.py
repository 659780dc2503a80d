"""Images, compose and Kubernetes against the code, against one another, and against what keeps them safe."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from adasd.cli.stack import HUGE_PAGES
from services.drafter.settings import DrafterSettings
from services.environment import known_variables
from services.gateway.app import PROBES
from services.gateway.errors import KINDS
from services.gateway.readiness import ABANDON_SECONDS
from services.gateway.server import CLOSE_SECONDS
from services.gateway.settings import GatewaySettings
from services.verifier.settings import VerifierSettings
from tests.deploy.manifests import (
    DOCKERFILES,
    K8S,
    OURS,
    ROOT,
    TRACING,
    compose,
    config,
    containers,
    image_environment,
    named,
    objects,
    pods,
    public_images,
    stages,
    workloads,
)

SETTINGS = {"gateway": GatewaySettings, "drafter": DrafterSettings, "verifier": VerifierSettings}
PORTS = {name: kind.model_fields["port"].default for name, kind in SETTINGS.items()}
METRICS = {"gateway": PORTS["gateway"], "drafter": 9101, "verifier": 9102, "redis": 9121}
GRACE = {name: kind.model_fields["grace_seconds"].default for name, kind in SETTINGS.items()}
AFTER_GRACE = {"gateway": ABANDON_SECONDS + CLOSE_SECONDS, "drafter": 1.0, "verifier": 1.0}
FILES = [
    *DOCKERFILES.values(),
    *ROOT.glob("docker-compose*.yml"),
    *K8S.rglob("*.yaml"),
    ROOT / "docs" / "deploy.md",
    ROOT / "docs" / "operate.md",
]
VARIABLE = re.compile(r"ADASD_(?:GATEWAY|DRAFTER|VERIFIER)_[A-Z_]*[A-Z]")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_setting_that_is_set_exists(path: Path) -> None:
    known = {name for kind in SETTINGS.values() for name in known_variables(kind)}
    assert set(VARIABLE.findall(path.read_text())) <= known


@pytest.mark.parametrize("service", OURS)
def test_ports_are_the_codes_and_the_same_everywhere(service: str) -> None:
    prefix, metrics = f"ADASD_{service.upper()}", {"gateway": None}.get(service, METRICS[service])
    image = image_environment(service)
    assert image[f"{prefix}_HOST"] == "0.0.0.0"
    assert image[f"{prefix}_PORT"] == str(PORTS[service])
    assert image.get(f"{prefix}_METRICS_PORT") == (metrics and str(metrics))
    ports = {PORTS[service], METRICS[service]}
    exposed = re.search(r"^EXPOSE (.*)$", stages()[service], re.MULTILINE)
    assert exposed is not None
    assert {int(port) for port in exposed[1].split()} == ports
    (container,) = pods()[service]["containers"]
    assert {port["containerPort"] for port in container["ports"]} == ports
    assert {port["port"] for port in named("Service", service)["spec"]["ports"]} == ports


@pytest.mark.parametrize("name", METRICS)
def test_policies_and_prometheus_know_the_ports(name: str) -> None:
    scraped = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    job = next(each for each in scraped if each["job_name"] == name)
    assert str(METRICS[name]) in str(job)
    allowed = named("NetworkPolicy", name)["spec"]["ingress"]
    assert METRICS[name] in {port["port"] for rule in allowed for port in rule["ports"]}
    egress = named("NetworkPolicy", "gateway")["spec"]["egress"]
    if name != "gateway":
        (rule,) = (rule for rule in egress if f"'{name}'" in str(rule["to"]))
        assert rule["ports"] == [{"port": PORTS.get(name, 6379)}]
        assert any(rule["ports"][0]["port"] == port["port"] for each in allowed for port in each["ports"])


@pytest.mark.parametrize(
    "environment", [config("gateway"), compose()["gateway"]["environment"]], ids=["k8s", "compose"]
)
def test_the_gateway_is_told_where_the_others_are(environment: dict[str, str]) -> None:
    for service in ("drafter", "verifier"):
        address = environment[f"ADASD_GATEWAY_{service.upper()}"].removeprefix("dns:///")
        assert address == f"{service}:{PORTS[service]}"


@pytest.mark.parametrize("service", OURS)
def test_a_pod_may_take_longer_to_end_than_its_service(service: str) -> None:
    pod = pods()[service]
    pause = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    grace = float(config(service)[f"ADASD_{service.upper()}_GRACE_SECONDS"])
    assert pod["terminationGracePeriodSeconds"] > pause + grace + AFTER_GRACE[service]
    assert int(compose()[service]["stop_grace_period"].removesuffix("s")) > GRACE[service] + AFTER_GRACE[service]


@pytest.mark.parametrize("service", OURS)
def test_probes_ask_what_the_service_answers(service: str) -> None:
    container = pods()[service]["containers"][0]
    tls = (K8S / "components" / "mtls" / "kustomization.yaml").read_text()
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = container[kind]
        if service == "gateway":
            assert probe["httpGet"]["path"] in PROBES
        else:
            assert probe["grpc"] == {"port": PORTS[service]}
            pods_of_it = 2 if service == "verifier" else 1  # a group's rank 0 as well
            assert tls.count(f'"127.0.0.1:{PORTS[service]}", /tls]') == 3 * pods_of_it
    assert "HEALTHCHECK" in stages()[service]


def test_pods_are_restricted() -> None:
    for name, pod in pods().items():
        assert pod["enableServiceLinks"] is False, name
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
    for name, container in containers():
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, name
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}, name
        assert "memory" in container["resources"]["limits"], name


def test_secrets_are_named_and_never_written() -> None:
    assert "Secret" not in {each["kind"] for each in objects("base")}
    for name, container in containers():
        for variable in container.get("env", []):
            if re.search("PASSWORD|AUTH|URL", variable["name"]):
                assert "secretKeyRef" in variable["valueFrom"], name
    assert "REDIS_URL" not in "".join(config("gateway"))


def test_everything_of_ours_has_a_budget_and_no_service_shadows_a_setting() -> None:
    for name in OURS:
        budget = named("PodDisruptionBudget", name)["spec"]
        assert budget["selector"]["matchLabels"] == workloads()[name]["spec"]["selector"]["matchLabels"]
    # Kubernetes makes the variable <NAME>_PORT for every Service.
    assert [each for each in objects("base") if each["metadata"]["name"].startswith("adasd-")] == []
    assert {named("Service", name)["spec"].get("clusterIP") for name in ("drafter", "verifier")} == {"None"}


def test_images_are_those_that_compose_builds() -> None:
    built = {each["image"].partition(":")[0] for each in compose().values() if "build" in each}
    assert built == {f"adasd-{name}" for name in (*OURS, "demo-target")}
    assert {container["image"] for _, container in containers() if container["image"].startswith("adasd-")} < built
    for name, each in compose().items():
        build = each.get("build", {})
        assert build.get("target", name) == name
        assert not build or name in stages()


@pytest.mark.parametrize("service", ["drafter", "verifier"])
def test_images_ask_for_huge_pages_as_adasd_up_does(service: str) -> None:
    words = stages()[service].split()
    assert {f"{name}={value}" for name, value in HUGE_PAGES.items()} <= set(words)


def test_images_of_others_are_pinned_by_content_and_the_same_everywhere() -> None:
    pinned: dict[str, str] = {}
    for where, image in public_images():
        assert re.fullmatch(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}", image), where
        name = image.partition(":")[0]
        assert pinned.setdefault(name, image) == image, where
    assert len(pinned) == 6


def required(name: str, extra: str) -> list[str]:
    """What a distribution requires; of ours what pyproject.toml says, which may be newer than what is installed."""
    if name != "adasd-serving":
        return metadata.requires(name) or []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *project["optional-dependencies"].get(extra, ())]


def test_nothing_that_the_gateways_image_installs_brings_torch() -> None:
    """Whatever its extra requires, and what that requires in turn, as the installed distributions say."""
    (extras,) = re.findall(r"'\.\[([a-z,]+)\]'", DOCKERFILES["gateway"].read_text())
    asked = [("adasd-serving", extra) for extra in extras.split(",")]
    installed = set[tuple[str, str]]()
    while asked:
        name, extra = asked.pop()
        if (name, extra) in installed:
            continue
        installed.add((name, extra))
        for requirement in map(Requirement, required(name, extra)):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                asked += [(requirement.name, wanted) for wanted in ("", *requirement.extras)]
    names = {name for name, _ in installed}
    assert names >= {"fastapi", "grpcio", "redis", "tokenizers", "llguidance"}
    assert not names & {"torch", "transformers", "accelerate"}


def test_compose_hardens_every_container() -> None:
    traces = compose(TRACING)["jaeger"]
    for name, service in (compose() | {"jaeger": traces}).items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name


def test_the_clients_own_faults_do_not_count_as_errors_of_the_service() -> None:
    """OpenAI's `invalid_request_error`, and what a key does not allow; nothing else."""
    theirs = {kind.__name__ for kind, (error_type, _) in KINDS.items() if error_type == "invalid_request_error"}
    excluded = re.findall(r'type!~"([^"]+)"', (ROOT / "deploy" / "prometheus" / "rules.yml").read_text())
    for first, second in zip(excluded[::2], excluded[1::2], strict=True):
        assert set(f"{first}|{second}".split("|")) == theirs | {"RateLimited", "HTTPException"}


def test_the_operators_rules_are_prometheus_own() -> None:
    (rules,) = (each for each in objects("components/monitoring") if each["kind"] == "PrometheusRule")
    assert rules["spec"] == yaml.safe_load((ROOT / "deploy" / "prometheus" / "rules.yml").read_text())


def test_traces_go_to_one_place_that_pods_may_reach() -> None:
    composed = compose(TRACING)
    component = yaml.safe_load((K8S / "components" / "tracing" / "kustomization.yaml").read_text())
    literals = [each for generator in component["configMapGenerator"] for each in generator["literals"]]
    variables = {f"ADASD_{name.upper()}_TRACING__ENDPOINT" for name in OURS}
    assert dict.fromkeys(variables, "http://collector.monitoring:4317") == dict(each.split("=") for each in literals)
    assert variables == {name for service in OURS for name in composed[service]["environment"]}
    (policy,) = objects("components/tracing")
    assert policy["spec"]["podSelector"]["matchExpressions"][0]["values"] == list(OURS)
    assert policy["spec"]["egress"][0]["ports"] == [{"port": 4317}]
    for path in DOCKERFILES.values():
        assert re.search(r"'\.\[[a-z,]+,tracing\]'", path.read_text()), path


def test_images_run_as_nobody_and_carry_no_secret() -> None:
    for name in (*OURS, "demo-target"):
        assert re.findall(r"^USER (.*)$", stages()[name], re.MULTILINE) == ["10001:10001"], name
    for path in DOCKERFILES.values():
        assert not re.search(r"(?i)password|token=|secret|\.env", path.read_text()), path
    assert "torch" not in re.sub(r"#.*", "", DOCKERFILES["gateway"].read_text())
    assert (ROOT / ".dockerignore").read_text().splitlines()[1] == "*"
