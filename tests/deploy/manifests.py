"""What the deployment files say, read without any tool of theirs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
K8S = ROOT / "deploy" / "k8s"
COMPOSE = ROOT / "docker-compose.yml"
TRACING = ROOT / "docker-compose.tracing.yml"
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


def stages() -> dict[str, str]:
    """What the Dockerfiles say of each image, by the image's name: its stage, after the stage that it starts from."""
    found: dict[str, str] = {}
    for folder, path in DOCKERFILES.items():
        for stage in path.read_text().split("\nFROM ")[1:]:
            first, _, rest = stage.partition("\n")
            base, _, name = first.partition(" AS ")
            found[name or folder] = found.get(base, "") + "\n" + rest
    return found


def image_environment(service: str) -> dict[str, str]:
    """The settings that a service's image brings."""
    words = stages()[service].split()
    return dict(word.split("=", 1) for word in words if word.startswith("ADASD_") and "=" in word)


def public_images() -> Iterator[tuple[str, str]]:
    """Every image of others that is named anywhere, after the file that names it."""
    for name, path in DOCKERFILES.items():
        yield f"services/{name}/Dockerfile", re.findall(r"^ARG PYTHON=(\S+)$", path.read_text(), re.MULTILINE)[0]
    for name, service in (compose() | compose(TRACING)).items():
        if "image" in service and "build" not in service:
            yield f"compose: {name}", re.fullmatch(r"\$\{\w+:-(.*)\}", service["image"])[1]  # type: ignore[index]
    for name, container in containers():
        if not container["image"].startswith("adasd-"):
            yield f"base: {name}", container["image"]
