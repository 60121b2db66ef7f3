"""The whole examination: here, with packages that do not import, and with packages that are not installed."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import vdali
from vdali.engine.doctor.examination import examine
from vdali.engine.gpu_probe import probe_gpu

EXAMINE = """
import json
from rich.console import Console
from vdali.engine.doctor.examination import examine
from vdali.engine.doctor.render import render
report = examine()
render(report, Console(stderr=True))
print(json.dumps(report.to_json()))
"""

BLOCKER = """
import os, sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        for hidden in os.environ["HIDDEN"].split():
            if name == hidden or name.startswith(hidden + "."):
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
"""

HIDDEN = [
    ["nvidia", "pynvml"],
    ["onnxruntime", "simplejpeg", "cuda"],
    ["nvidia.nvimgcodec", "cykooz_resizer", "PIL", "psutil", "platformdirs"],
    ["nvidia", "pynvml", "cuda", "onnxruntime", "numpy", "pillow_heif", "pillow_jxl"],
]


BROKEN_BY = {
    "nvidia": ["dali", "nvImageCodec"],
    "nvidia.nvimgcodec": ["nvImageCodec"],
    "onnxruntime": ["ONNX Runtime"],
    "simplejpeg": ["turbo"],
    "cykooz_resizer": ["turbo"],
    "PIL": ["turbo", "pillow"],
    "psutil": ["memory"],
    "platformdirs": ["cache"],
    "numpy": ["turbo", "dali", "pillow"],
    "pillow_heif": ["HEIC"],
    "pillow_jxl": ["JPEG XL"],
}


def examined(python: str, **environment: str) -> dict[str, dict[str, Any]]:
    """Checks by name, from an examination in another process that must say nothing but its report."""
    found = subprocess.run([python, "-c", EXAMINE], capture_output=True, text=True, env={**os.environ, **environment})
    assert found.returncode == 0, found.stderr
    assert "Traceback" not in found.stderr + found.stdout
    return {check["name"]: check for check in json.loads(found.stdout)["checks"]}


@pytest.fixture
def blocker(tmp_path) -> str:
    """Folder for PYTHONPATH that makes the packages in HIDDEN fail to import, in child processes too."""
    (tmp_path / "sitecustomize.py").write_text(BLOCKER)
    return str(tmp_path)


def test_here_everything_of_the_base_install_works():
    report = examine()
    assert report.broken == ()
    assert report.verdict.decoders == ("turbo", "dali", "pillow")
    assert report.verdict.device == ("cuda:0" if probe_gpu().count else "cpu")
    json.dumps(report.to_json())


def test_it_costs_a_few_seconds_of_cpu():
    def spent_s() -> float:
        usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(one.ru_utime + one.ru_stime for one in usage)

    before_s = spent_s()
    examine()
    assert spent_s() - before_s < 8


@pytest.mark.parametrize("hidden", HIDDEN, ids=" ".join)
def test_packages_that_do_not_import_are_lines_of_the_report(blocker, hidden):
    checks = examined(sys.executable, PYTHONPATH=blocker, HIDDEN=" ".join(hidden))
    for name in set(hidden) & set(BROKEN_BY):
        for line in BROKEN_BY[name]:
            assert checks[line]["status"] == "error"
            assert checks[line]["advice"]


def test_packages_that_are_not_installed_are_lines_of_the_report(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    python = tmp_path / "bare" / "bin" / "python"
    (site,) = (tmp_path / "bare").glob("lib/python*/site-packages")
    here = Path(sysconfig.get_path("purelib"))
    for name in ("rich", "markdown_it", "mdurl", "pygments", *(path.name for path in here.glob("vdali-*.dist-info"))):
        (site / name).symlink_to(here / name)
    (site / "vdali").symlink_to(Path(vdali.__file__).parent)
    checks = examined(str(python), PYTHONPATH="")
    assert checks["packages"]["status"] == "error"
    assert "simplejpeg" in checks["packages"]["advice"]
    for name in ("dali", "nvImageCodec", "TensorRT", "TensorRT-RTX", "HEIC", "JPEG XL", "torch extra"):
        assert checks[name]["status"] == "missing", checks[name]
        assert checks[name]["found"] == "not installed"
    for name in ("turbo", "pillow", "ONNX Runtime", "memory", "cache"):
        assert checks[name]["status"] == "error", checks[name]
    assert "cuda-python cannot be imported" in checks["driver"]["found"]
