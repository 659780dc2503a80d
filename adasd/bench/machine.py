"""What figures depend on besides the code: the machine, how busy it was, and versions."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("adasd-serving", "torch", "transformers", "numpy", "grpcio", "redis", "uvicorn", "httpx")
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def machine() -> dict[str, Any]:
    """Facts for people, by name. What this system does not tell is left out."""
    facts = {
        "processor": _found(Path("/proc/cpuinfo"), r"model name\s*: (.*)") or platform.processor() or None,
        "cores": os.cpu_count(),
        "usable cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "memory": _found(Path("/proc/meminfo"), r"MemTotal:\s*(.*)"),
        "GPUs": [_found(path, r"Model:\s*(.*)") for path in Path("/proc/driver/nvidia/gpus").glob("*/information")],
        "load average before": [round(load, 2) for load in os.getloadavg()] if hasattr(os, "getloadavg") else None,
        "system": platform.platform(),
        "python": platform.python_version(),
        "threads": {name: os.environ[name] for name in THREADS if name in os.environ},
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
    }
    return {name: fact for name, fact in facts.items() if fact not in (None, [], {})}


def described(facts: Mapping[str, Any]) -> str:
    """One line a fact."""
    return "\n".join(f"- {name}: {_plain(fact)}" for name, fact in facts.items())


def _plain(fact: Any) -> str:
    if isinstance(fact, dict):
        return ", ".join(f"{name} {value}" for name, value in fact.items())
    return ", ".join(map(str, fact)) if isinstance(fact, list) else str(fact)


def _found(path: Path, pattern: str) -> str | None:
    found = re.search(pattern, path.read_text()) if path.is_file() else None
    return found[1].strip() if found else None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
