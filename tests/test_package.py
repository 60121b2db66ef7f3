"""The wheel holds the package as it is tracked: nothing missing, nothing more."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from vdali.engine.version import __version__

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGED = {".css", ".cu", ".py", ".toml", ".typed"}


@pytest.fixture(scope="module")
def tracked() -> list[str]:
    """Tracked files that exist, relative to the root."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("this is no git checkout, so nothing tells which files belong to the package")
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory, tracked) -> zipfile.ZipFile:
    """Wheel built from a copy of the tracked files, so that nothing else can get in or be left behind."""
    copy = tmp_path_factory.mktemp("copy")
    for name in tracked:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "dist"]
    built = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = (copy / "dist").iterdir()
    with zipfile.ZipFile(path) as opened:
        yield opened


def is_packaged(name: str) -> bool:
    top = name.partition("/")[0]
    return Path(name).suffix in PACKAGED and top not in ("tests", "docs", ".ci", "pyproject.toml")


def test_the_wheel_holds_exactly_the_tracked_files_of_the_package(wheel, tracked):
    inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert inside == {f"vdali/{name}" for name in tracked if is_packaged(name)}
    assert "vdali/py.typed" in inside
    assert any(name.endswith(".cu") for name in inside)


def test_the_wheel_brings_the_command_and_the_licence(wheel):
    (metadata,) = [name.partition("/")[0] for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    assert metadata == f"vdali-{__version__}.dist-info"
    assert "vdali = vdali.__main__:start" in wheel.read(f"{metadata}/entry_points.txt").decode()
    assert f"{metadata}/licenses/LICENSE" in wheel.namelist()


def test_every_package_folder_is_listed(tracked):
    folders = {Path(name).parent for name in tracked if is_packaged(name) and Path(name).suffix != ".typed"}
    expected = {".".join(["vdali", *folder.parts]) for folder in folders}
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == expected
    assert all((ROOT / folder / "__init__.py").is_file() for folder in folders)


def test_the_version_is_the_same_everywhere():
    assert PROJECT["project"]["version"] == __version__


def test_no_file_of_the_package_names_the_machine_it_was_made_on(tracked):
    for name in tracked:
        if is_packaged(name):
            text = (ROOT / name).read_text()
            assert "/home/" not in text, name
            assert f"{ROOT}/" not in text, name
