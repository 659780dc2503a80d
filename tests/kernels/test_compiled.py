"""What is kept of compiled functions belongs to the sources it was made from."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import adasd
from adasd.kernels.compiled import ALSO, release

PACKAGE = Path(adasd.__file__).parent


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return Path(shutil.copytree(PACKAGE, tmp_path / "adasd"))


def test_what_is_kept_lies_with_its_release() -> None:
    told = "from adasd.kernels.compiled import KEEPS, config; print(KEEPS, config.CACHE_DIR)"
    kept, folder = subprocess.run(
        [sys.executable, "-c", told], capture_output=True, text=True, check=True
    ).stdout.split()
    assert (kept, Path(folder).name) == ("True", release(PACKAGE))


@pytest.mark.parametrize(
    "name", ["kernels/tiles.py", "kernels/exponentials.py", "kernels/entries.py", "runtime/fused.py", "core/worth.py"]
)
def test_another_source_is_another_release(package: Path, name: str) -> None:
    assert release(package) == release(PACKAGE)
    changed = package / name
    changed.write_text(changed.read_text() + "# changed\n")
    assert release(package) != release(PACKAGE)


def test_what_is_not_compiled_does_not_matter(package: Path) -> None:
    (package / "core/errors.py").write_text("# changed\n")
    assert release(package) == release(PACKAGE)


def test_nothing_is_compiled_of_which_no_release_knows() -> None:
    """Functions of files that say nothing of compiling are in `ALSO`."""
    asked = re.compile(r"as_written\((\w+)\.\w+\)")
    named = {name for path in PACKAGE.rglob("*.py") for name in asked.findall(path.read_text())}
    assert named == {Path(file).stem for file in ALSO}
