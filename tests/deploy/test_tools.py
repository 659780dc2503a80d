"""The deployment files under the tools that their users trust, where these are installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.deploy.manifests import DOCKERFILES, K8S, ROOT, Object, config, objects

PLACES = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
FOLDERS = ["base", "overlays/local", "overlays/gpu"]
COMPOSED = [[f"docker-compose{each}.yml" for each in ("", *more)] for more in ([], [".gpu"], [".tracing"])]
CUSTOM: dict[str, dict[str, Object]] = yaml.safe_load((Path(__file__).parent / "custom_resources.yaml").read_text())
"""Schemas of kinds that others define, by group and version, of their `spec`."""


def run(tool: str, *arguments: str, **environment: str) -> str:
    """What a tool prints. Skips the test if it is not installed, fails it if the tool complains."""
    program = shutil.which(tool, path=PLACES)
    if program is None:
        pytest.skip(f"{tool} is not installed")
    variables = {**os.environ, **environment}
    done = subprocess.run([program, *arguments], cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rendered(folder: Path) -> list[Object]:
    """What kustomize makes of a folder, every object valid by Kubernetes' own schemas."""
    objects = list(yaml.safe_load_all(run("kubectl", "kustomize", str(folder))))
    for each in objects:
        validate(each)
    return objects


def validate(thing: Object) -> None:
    """Raises for an object that a cluster would refuse, or of which it would ignore a part."""
    schemas = pytest.importorskip("kubernetes_validate")
    if (kinds := CUSTOM.get(thing["apiVersion"])) is None:
        schemas.validate(thing, schemas.latest_version(), strict=True)
        return
    assert thing.keys() == {"apiVersion", "kind", "metadata", "spec"}
    jsonschema.validate(thing["spec"], kinds[thing["kind"]])


def overlay(tmp_path: Path, kustomization: str) -> list[Object]:
    """What an overlay of somebody's own renders to. Kustomize wants all paths below one root, so the tree is copied."""
    copied = shutil.copytree(ROOT / "deploy", tmp_path / "deploy") / "k8s" / "overlays" / "one"
    copied.mkdir()
    (copied / "kustomization.yaml").write_text(kustomization)
    return rendered(copied)


def overlaid(tmp_path: Path, *components: str) -> list[Object]:
    """The base with these components."""
    folders = [f"../../components/{name}" for name in components]
    return overlay(
        tmp_path,
        yaml.safe_dump(
            {"kind": "Kustomization", "namespace": "adasd", "resources": ["../../base"], "components": folders}
        ),
    )


def only(objects: list[Object], kind: str, name: str) -> Object:
    (found,) = (each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return found


def drains(pod: Object) -> bool:
    """Whether torchrun waits for the service's own grace after preStop, and the pod for torchrun."""
    (container,) = pod["containers"]
    (wait,) = (int(word.partition("=")[2]) for word in container["command"] if word.startswith("--shutdown-timeout="))
    pause = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    grace = float(config("verifier")["ADASD_VERIFIER_GRACE_SECONDS"])
    return pod["terminationGracePeriodSeconds"] > pause + wait and wait > pause + grace


@pytest.mark.parametrize("service", DOCKERFILES)
def test_dockerfiles_are_clean(service: str) -> None:
    run("hadolint", str(DOCKERFILES[service]))


def test_yaml_is_clean() -> None:
    run("yamllint", "--strict", ".")


@pytest.mark.parametrize("files", COMPOSED, ids=lambda files: files[-1])
def test_compose_accepts_its_files(files: list[str]) -> None:
    named = [word for file in files for word in ("--file", file)]
    run("docker-compose", *named, "config", "--quiet", MODELS="/models", TARGET="target", DRAFT="draft")


@pytest.mark.parametrize("folder", FOLDERS)
def test_overlays_render_into_valid_objects(folder: str) -> None:
    assert len(rendered(K8S / folder)) > 15


@pytest.mark.parametrize(
    ("component", "kind", "change"),
    [
        ("tensor-parallel", "LeaderWorkerSet", lambda spec: spec["leaderWorkerTemplate"].update(restartPolicy="Never")),
        ("tensor-parallel", "LeaderWorkerSet", lambda spec: spec["leaderWorkerTemplate"].pop("workerTemplate")),
        ("autoscaling-keda", "ScaledObject", lambda spec: spec.update(maxReplicas=8)),
        ("monitoring", "ServiceMonitor", lambda spec: spec["endpoints"][0].update(interval="15")),
        ("mtls", "Certificate", lambda spec: spec.pop("secretName")),
    ],
)
def test_a_mistake_in_a_kind_of_others_is_found(component: str, kind: str, change: Any) -> None:
    broken = next(each for each in objects(f"components/{component}") if each["kind"] == kind)
    validate(broken)
    change(broken["spec"])
    with pytest.raises(jsonschema.ValidationError):
        validate(broken)


@pytest.mark.parametrize("component", sorted(path.name for path in (K8S / "components").iterdir()))
def test_every_component_fits_the_base(component: str, tmp_path: Path) -> None:
    services = {each["metadata"]["name"] for each in overlaid(tmp_path, component) if each["kind"] == "Service"}
    assert services >= {"gateway", "drafter", "verifier"}
    assert ("redis" in services) == (component != "external-redis")


def test_of_a_group_of_ranks_the_first_serves_and_all_talk(tmp_path: Path) -> None:
    schemas = pytest.importorskip("kubernetes_validate")
    objects = overlaid(tmp_path, "gpu", "autoscaling-hpa", "tensor-parallel", "mtls")
    group = only(objects, "LeaderWorkerSet", "verifier-group")
    name, template = group["metadata"]["name"], group["spec"]["leaderWorkerTemplate"]
    found = only(objects, "Service", "verifier")["spec"]["selector"].items()
    made = {each["metadata"]["name"] for each in objects if each["kind"] == "ConfigMap"}
    for role, probes in (("leaderTemplate", 3), ("workerTemplate", 0)):
        labels, pod = template[role]["metadata"]["labels"], template[role]["spec"]
        metadata = {"name": role.lower(), "labels": labels}
        pod_object = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod}
        schemas.validate(pod_object, schemas.latest_version(), strict=True)
        (container,) = pod["containers"]
        assert (found <= labels.items()) is (role == "leaderTemplate")
        assert sum("exec" in settings for key, settings in container.items() if key.endswith("Probe")) == probes
        assert container["envFrom"][0]["configMapRef"]["name"] in made
        assert drains(pod)
    # LeaderWorkerSet makes a Service of the group's name, and labels the pods with it.
    assert name not in {each["metadata"]["name"] for each in objects if each["kind"] == "Service"}
    ranks = {"podSelector": {"matchLabels": {"leaderworkerset.sigs.k8s.io/name": name}}}
    policy = only(objects, "NetworkPolicy", "verifier-ranks")["spec"]
    assert policy["podSelector"] == ranks["podSelector"]
    assert (policy["ingress"], policy["egress"]) == ([{"from": [ranks]}], [{"to": [ranks]}])
    scaled = only(objects, "HorizontalPodAutoscaler", "verifier")["spec"]["scaleTargetRef"]
    assert scaled == {"apiVersion": group["apiVersion"], "kind": group["kind"], "name": name}


def test_the_worked_configuration_renders(tmp_path: Path) -> None:
    (written,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "operate.md").read_text(), re.DOTALL)
    objects = overlay(tmp_path, written)
    pod = only(objects, "StatefulSet", "verifier")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    ranks = container["resources"]["limits"]["nvidia.com/gpu"]
    assert f"--nproc-per-node={ranks}" in container["command"]
    assert drains(pod)
    merged = only(objects, "ConfigMap", container["envFrom"][0]["configMapRef"]["name"])["data"]
    assert merged["ADASD_VERIFIER_RUNTIME__DEVICE"] == "cuda"
    assert merged["ADASD_VERIFIER_RUNTIME__CONTEXT_LENGTH"] == "8192"
