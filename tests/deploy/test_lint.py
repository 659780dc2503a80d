"""kube-linter's default checks, by its names, on everything that the overlays render to; none may object.

Written from the checks' descriptions: kube-linter itself is a Go program that no package of ours brings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.manifests import K8S, Object
from tests.deploy.test_tools import FOLDERS, overlaid, rendered

WORKLOADS = ("Deployment", "StatefulSet", "LeaderWorkerSet")
PROBES = {"liveness-port": "livenessProbe", "readiness-port": "readinessProbe", "startup-port": "startupProbe"}


@dataclass(frozen=True)
class Pods:
    """What a workload makes pods of. replicas: of a LeaderWorkerSet, its pods in a group."""

    owner: str
    replicas: int
    labels: dict[str, str]
    selector: dict[str, str]
    spec: Object

    def containers(self) -> Iterator[Object]:
        yield from (*self.spec["containers"], *self.spec.get("initContainers", ()))


def pods(objects: list[Object]) -> Iterator[Pods]:
    for each in objects:
        if each["kind"] in WORKLOADS:
            spec = each["spec"]
            group = spec.get("leaderWorkerTemplate", {})
            templates = [spec["template"]] if "template" in spec else [group["leaderTemplate"], group["workerTemplate"]]
            for template in templates:
                labels, selector = template["metadata"]["labels"], spec.get("selector", {}).get("matchLabels", {})
                yield Pods(each["metadata"]["name"], spec.get("replicas", 1), labels, selector, template["spec"])


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    return [each for each in objects if each["kind"] == kind]


def _security(container: Object) -> Object:
    found: Object = container.get("securityContext", {})
    return found


def _ports(container: Object) -> set[Any]:
    return {value for port in container.get("ports", ()) for value in (port["containerPort"], port["name"])}


def _asked(probe: Object) -> set[Any]:
    """Ports that a probe asks from outside."""
    return {probe[how]["port"] for how in ("httpGet", "tcpSocket", "grpc") if how in probe}


OF_CONTAINERS: dict[str, Callable[[Object], bool]] = {
    "latest-tag": lambda c: ":" in c["image"] and not c["image"].endswith(":latest"),
    "no-read-only-root-fs": lambda c: _security(c).get("readOnlyRootFilesystem") is True,
    "privileged-container": lambda c: not _security(c).get("privileged"),
    "privilege-escalation-container": lambda c: _security(c).get("allowPrivilegeEscalation") is False,
    "drop-net-raw-capability": lambda c: bool({"ALL", "NET_RAW"} & {*_security(c)["capabilities"]["drop"]}),
    "unset-cpu-requirements": lambda c: "cpu" in c["resources"]["requests"],
    "unset-memory-requirements": lambda c: (
        "memory" in c["resources"]["requests"] and "memory" in c["resources"]["limits"]
    ),
    "duplicate-env-var": lambda c: len({v["name"] for v in c.get("env", ())}) == len(c.get("env", ())),
    "env-var-secret": lambda c: not any("value" in v and "SECRET" in v["name"].upper() for v in c.get("env", ())),
    "ssh-port": lambda c: 22 not in _ports(c),
} | {
    check: lambda c, probe=probe: _asked(c.get(probe, {})) <= _ports(c)  # type: ignore[misc]
    for check, probe in PROBES.items()
}

OF_PODS: dict[str, Callable[[Pods], bool]] = {
    "run-as-non-root": lambda p: p.spec["securityContext"].get("runAsNonRoot") is True,
    "host-network": lambda p: not p.spec.get("hostNetwork"),
    "host-ipc": lambda p: not p.spec.get("hostIPC"),
    "host-pid": lambda p: not p.spec.get("hostPID"),
    "docker-sock": lambda p: "docker.sock" not in str(p.spec.get("volumes")),
    "sensitive-host-mounts": lambda p: all("hostPath" not in volume for volume in p.spec.get("volumes", ())),
    "deprecated-service-account-field": lambda p: "serviceAccount" not in p.spec,
    "unsafe-sysctls": lambda p: "sysctls" not in p.spec["securityContext"],
    "mismatching-selector": lambda p: p.selector.items() <= p.labels.items(),
    "no-anti-affinity": lambda p: p.replicas < 2 or "topologySpreadConstraints" in p.spec,
}


def dangling_services(objects: list[Object]) -> list[str]:
    made = [each.labels.items() for each in pods(objects)]
    services = of_kind(objects, "Service")
    return [
        each["metadata"]["name"]
        for each in services
        if not any(each["spec"]["selector"].items() <= labels for labels in made)
    ]


def invalid_target_ports(objects: list[Object]) -> list[str]:
    found = []
    for service in of_kind(objects, "Service"):
        chosen = [each for each in pods(objects) if service["spec"]["selector"].items() <= each.labels.items()]
        ports = {port for each in chosen for container in each.containers() for port in _ports(container)}
        wanted = {port.get("targetPort", port["port"]) for port in service["spec"]["ports"]}
        found += [service["metadata"]["name"]] * (not wanted <= ports)
    return found


def budgets(fine: Callable[[Object], bool]) -> Callable[[list[Object]], list[str]]:
    return lambda objects: [
        each["metadata"]["name"] for each in of_kind(objects, "PodDisruptionBudget") if not fine(each["spec"])
    ]


def missing_accounts(objects: list[Object]) -> list[str]:
    there = {"default", *(each["metadata"]["name"] for each in of_kind(objects, "ServiceAccount"))}
    return [each.owner for each in pods(objects) if each.spec.get("serviceAccountName", "default") not in there]


OF_ALL: dict[str, Callable[[list[Object]], list[str]]] = {
    "dangling-service": dangling_services,
    "invalid-target-ports": invalid_target_ports,
    "non-existent-service-account": missing_accounts,
    "no-extensions-v1beta": lambda objects: [
        each["kind"] for each in objects if each["apiVersion"].startswith("extensions/v1beta")
    ],
    "job-ttl-seconds-after-finished": lambda objects: [
        each["kind"] for each in of_kind(objects, "Job") if "ttlSecondsAfterFinished" not in each["spec"]
    ],
    "pdb-max-unavailable": budgets(lambda spec: spec.get("maxUnavailable") not in (0, "0%")),
    "pdb-min-available": budgets(lambda spec: "minAvailable" not in spec),
    "pdb-unhealthy-pod-eviction-policy": budgets(lambda spec: "unhealthyPodEvictionPolicy" in spec),
}


def objections(objects: list[Object]) -> list[tuple[str, str]]:
    """Every check that objects, and to what."""
    found = [(check, name) for check, offenders in OF_ALL.items() for name in offenders(objects)]
    for each in pods(objects):
        found += [(check, each.owner) for check, fine in OF_PODS.items() if not fine(each)]
        for container in each.containers():
            found += [(check, container["name"]) for check, fine in OF_CONTAINERS.items() if not fine(container)]
    return found


@pytest.mark.parametrize("folder", FOLDERS[1:])
def test_no_default_check_objects_to_an_overlay(folder: str) -> None:
    assert objections(rendered(K8S / folder)) == []


def test_no_default_check_objects_to_a_group_of_ranks_or_to_mutual_tls(tmp_path: Path) -> None:
    objects = overlaid(tmp_path, "gpu", "monitoring", "autoscaling-hpa", "tensor-parallel", "mtls")
    images = {"gateway", "drafter", "verifier"}  # an overlay gives these their tags
    assert [one for one in objections(objects) if one[0] != "latest-tag" or one[1] not in images] == []


@pytest.mark.parametrize("check", [*OF_CONTAINERS, *OF_PODS, *OF_ALL])
def test_every_check_objects_to_what_it_is_for(check: str) -> None:
    assert check in {found for found, _ in objections(careless())}


def careless() -> list[Object]:
    """A workload, a Service, a budget and a Job that do everything wrong."""
    container: Object = {
        "name": "careless",
        "image": "careless",
        "securityContext": {"privileged": True, "capabilities": {"drop": []}},
        "resources": {"requests": {}, "limits": {}},
        "env": [{"name": "MY_SECRET", "value": "1"}] * 2,
        "ports": [{"name": "ssh", "containerPort": 22}],
    } | {probe: {"tcpSocket": {"port": 23}} for probe in PROBES.values()}
    pod: Object = {
        "containers": [container],
        "securityContext": {"sysctls": []},
        "hostNetwork": True,
        "hostIPC": True,
        "hostPID": True,
        "serviceAccount": "nobody",
        "serviceAccountName": "nobody",
        "volumes": [{"name": "docker", "hostPath": {"path": "/var/run/docker.sock"}}],
    }
    template: Object = {"metadata": {"labels": {"app": "careless"}}, "spec": pod}
    specs: dict[str, Object] = {
        "Deployment": {"replicas": 2, "selector": {"matchLabels": {"app": "other"}}, "template": template},
        "Service": {"selector": {"app": "nobody"}, "ports": [{"port": 80}]},
        "PodDisruptionBudget": {"maxUnavailable": 0, "minAvailable": 1},
        "Job": {},
    }
    made: list[Object] = [
        {"apiVersion": "extensions/v1beta1", "kind": kind, "metadata": {"name": kind}, "spec": spec}
        for kind, spec in specs.items()
    ]
    return made
