"""TensorRT plans on the command line of a machine without a GPU: real plans, refused in plain words."""

from __future__ import annotations

import os

import pytest
from commands import run_vdali
from conftest import gpus
from models import mean_colour_model


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """A real plan of TensorRT-RTX for a GPU that is not here, with its sidecar."""
    pytest.importorskip("tensorrt_rtx", reason="tensorrt_rtx is not installed: pip install 'vdali[rtx]'")
    if gpus().count:
        pytest.skip("this machine has a GPU")
    folder = tmp_path_factory.mktemp("plan")
    model = mean_colour_model(folder / "m.onnx")
    environment = {**os.environ, "VDALI_CACHE": str(folder / "cache")}
    built = run_vdali("build", model, "--target", "sm89", "-o", folder / "m.plan", env=environment)
    assert built.returncode == 0, built.stderr
    return folder / "m.plan"


@pytest.fixture
def copy(plan, tmp_path):
    target = tmp_path / "copy.plan"
    for suffix in ("", ".json"):
        (tmp_path / f"copy.plan{suffix}").write_bytes(plan.with_name(plan.name + suffix).read_bytes())
    return target


@pytest.mark.parametrize(
    ("device", "status", "words"),
    [
        ("auto", 4, "is a TensorRT plan, which runs on a GPU only: no NVIDIA driver"),
        ("cuda", 4, "No device 'cuda': no NVIDIA driver"),
        ("cpu", 2, "is a TensorRT plan, which runs on a GPU only. Use the ONNX file that it was built from"),
    ],
)
def test_a_plan_without_a_gpu_ends_with_the_status_of_what_is_missing(tmp_path, plan, pictures, device, status, words):
    done = run_vdali("run", pictures, "-m", plan, "-o", tmp_path / "out", "--device", device)
    assert (done.returncode, done.stdout) == (status, "")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda plan: plan.write_bytes(plan.read_bytes()[:1000]), "plan truncated: 1000 bytes, expected "),
        (lambda plan: plan.write_text("hello\n"), "not a TensorRT-RTX plan (6 bytes)"),
        (lambda plan: plan.with_name("copy.plan.json").unlink(), "sidecar missing"),
        (lambda plan: plan.with_name("copy.plan.json").write_text("{}"), "sidecar is not readable"),
        (lambda plan: plan.unlink(), "No model file at "),
    ],
)
def test_a_file_that_is_no_whole_plan_is_told_before_the_missing_gpu(vdali, tmp_path, copy, pictures, damage, words):
    damage(copy)
    done = vdali("run", pictures, "-m", copy, "-o", tmp_path / "out")
    assert (done.status, done.out) == (5, "")
    assert words in done.err
    assert done.err.count("\n") == 1
