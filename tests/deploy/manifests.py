"""What the deployment files say, read without any tool of theirs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
K8S = ROOT / "deploy" / "k8s"
COMPOSE = ROOT / "docker-compose.yml"
DOCKERFILES = {path.parent.name: path for path in sorted(ROOT.glob("services/*/Dockerfile"))}
OURS = ("gateway", "drafter", "verifier")

Object = dict[str, Any]


def objects(folder: str) -> list[Object]:
    """Every object in the files of a folder below deploy/k8s."""
    files = sorted(path for path in (K8S / folder).glob("*.yaml") if path.name != "kustomization.yaml")
    return [found for path in files for found in yaml.safe_load_all(path.read_text())]


def named(kind: str, name: str) -> Object:
    """One object of the base."""
    (found,) = (each for each in objects("base") if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return found


def workloads() -> dict[str, Object]:
    """The base's Deployments and StatefulSets by name."""
    return {each["metadata"]["name"]: each for each in objects("base") if each["kind"] in ("Deployment", "StatefulSet")}


def pods() -> dict[str, Object]:
    """The base's pod specifications by the name of what makes them."""
    return {name: each["spec"]["template"]["spec"] for name, each in workloads().items()}


def containers() -> Iterator[tuple[str, Object]]:
    """Every container of the base, each after its pod's name."""
    return ((name, container) for name, pod in pods().items() for container in pod["containers"])


def config(name: str) -> dict[str, str]:
    """A generated ConfigMap of the base."""
    generators = yaml.safe_load((K8S / "base" / "kustomization.yaml").read_text())["configMapGenerator"]
    (literals,) = (each["literals"] for each in generators if each["name"] == name)
    return dict(literal.split("=", 1) for literal in literals)


def compose(path: Path = COMPOSE) -> dict[str, Object]:
    """The services of docker-compose.yml."""
    services: dict[str, Object] = yaml.safe_load(path.read_text())["services"]
    return services


def image_environment(service: str) -> dict[str, str]:
    """The settings that a service's image brings."""
    words = DOCKERFILES[service].read_text().split()
    return dict(word.split("=", 1) for word in words if word.startswith("ADASD_") and "=" in word)
