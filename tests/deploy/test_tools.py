"""The deployment files under the tools that their users trust, where these are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.deploy.manifests import DOCKERFILES, K8S, ROOT, Object

PLACES = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
FOLDERS = ["base", "overlays/local", "overlays/gpu"]
COMPOSED = [["docker-compose.yml"], ["docker-compose.yml", "docker-compose.gpu.yml"]]
CUSTOM = ("monitoring.coreos.com/", "keda.sh/", "cert-manager.io/")
"""Kinds that others define; no schema of them is at hand."""


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
    schemas = pytest.importorskip("kubernetes_validate")
    objects = list(yaml.safe_load_all(run("kubectl", "kustomize", str(folder))))
    for each in objects:
        if not each["apiVersion"].startswith(CUSTOM):
            schemas.validate(each, schemas.latest_version(), strict=True)
    return objects


@pytest.mark.parametrize("service", DOCKERFILES)
def test_dockerfiles_are_clean(service: str) -> None:
    run("hadolint", str(DOCKERFILES[service]))


def test_yaml_is_clean() -> None:
    run("yamllint", "--strict", ".")


@pytest.mark.parametrize("files", COMPOSED, ids=len)
def test_compose_accepts_its_files(files: list[str]) -> None:
    named = [word for file in files for word in ("--file", file)]
    run("docker-compose", *named, "config", "--quiet", MODELS="/models", TARGET="target", DRAFT="draft")


@pytest.mark.parametrize("folder", FOLDERS)
def test_overlays_render_into_valid_objects(folder: str) -> None:
    assert len(rendered(K8S / folder)) > 15


@pytest.mark.parametrize("component", sorted(path.name for path in (K8S / "components").iterdir()))
def test_every_component_fits_the_base(component: str, tmp_path: Path) -> None:
    """Kustomize wants relative paths below one root, so the tree is copied."""
    copied = shutil.copytree(ROOT / "deploy", tmp_path / "deploy") / "k8s" / "overlays" / "one"
    copied.mkdir()
    overlay = {"kind": "Kustomization", "resources": ["../../base"], "components": [f"../../components/{component}"]}
    (copied / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    services = {each["metadata"]["name"] for each in rendered(copied) if each["kind"] == "Service"}
    assert services >= {"gateway", "drafter", "verifier"}
    assert ("redis" in services) == (component != "external-redis")
