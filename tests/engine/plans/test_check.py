import dataclasses
from hashlib import sha256

import pytest
from models import plain_preprocess
from vdali.engine.errors import ModelError
from vdali.engine.gpu_probe import Gpu
from vdali.engine.plans.check import check_fit, copy_plan, open_plan, require_fit
from vdali.engine.plans.flavour import TENSORRT, TENSORRT_RTX, Flavour
from vdali.engine.plans.key import PlanKey
from vdali.engine.plans.sidecar import PlanSidecar, sidecar_path
from vdali.engine.spec import ModelSpec, Task

L4 = Gpu("NVIDIA L4", 24 << 30, "8.9")
T4 = Gpu("NVIDIA T4", 16 << 30, "7.5")
H100 = Gpu("NVIDIA H100", 80 << 30, "9.0")
H200 = Gpu("NVIDIA H200", 141 << 30, "9.0")

RTX_17 = Flavour(TENSORRT_RTX, "1.7.1.116", None, None)
TRT_114 = Flavour(TENSORRT, "11.4.0.106", None, None)

FOR_TARGETS = PlanKey(
    model_content="c0ffee",
    precision="fp32",
    batch="1,32,64",
    flavour=TENSORRT_RTX,
    flavour_version="1.7.1.116",
    targets=("sm89", "sm120"),
    gpu=None,
    compute_capability=None,
    driver_major=None,
    tf32=False,
    workspace_bytes=1 << 30,
    optimization_level=3,
    hardware_compatibility="none",
    version_compatible=False,
    aux_streams=0,
)
FOR_ALL = dataclasses.replace(FOR_TARGETS, targets=())
FOR_H100 = dataclasses.replace(
    FOR_ALL,
    flavour=TENSORRT,
    flavour_version="11.4.0.106",
    gpu=H100.name,
    compute_capability=H100.compute_capability,
    driver_major="580",
)


@pytest.fixture
def plan(tmp_path):
    """A plan file with the first bytes of a TensorRT-RTX 1.7.1 plan for sm89 and sm120."""
    header = b"vtrt" + bytes(20) + bytes([1, 7, 1, 116]) + b"vtrt" + bytes([0x18, 0, 0, 0])
    return write(tmp_path / "model.plan", header + bytes(100), FOR_TARGETS)


def write(path, data, key):
    path.write_bytes(data)
    spec = ModelSpec("model", Task.EMBED, plain_preprocess((8, 8)))
    digest = sha256(data).hexdigest()
    sidecar = PlanSidecar(key, spec, len(data), digest, 1.0, "2026-01-01T00:00:00+00:00", "built, not run", ())
    sidecar_path(path).write_text(sidecar.dumps())
    return path


@pytest.mark.parametrize(
    ("key", "flavour", "gpu"),
    [
        (FOR_TARGETS, RTX_17, None),
        (FOR_TARGETS, RTX_17, L4),
        (FOR_ALL, RTX_17, L4),
        (FOR_H100, TRT_114, H100),
        (dataclasses.replace(FOR_H100, hardware_compatibility="same_compute_capability"), TRT_114, H200),
        (dataclasses.replace(FOR_H100, hardware_compatibility="ampere_plus"), TRT_114, L4),
        (
            dataclasses.replace(FOR_H100, version_compatible=True),
            dataclasses.replace(TRT_114, version="11.10.0.1"),
            H100,
        ),
    ],
)
def test_a_plan_fits_where_it_was_built_for(key, flavour, gpu):
    check_fit(key, flavour, gpu)


@pytest.mark.parametrize(
    ("key", "flavour", "gpu", "words"),
    [
        (FOR_TARGETS, TRT_114, None, "built by TensorRT-RTX 1.7.1.116, here is TensorRT 11.4.0.106"),
        (FOR_TARGETS, dataclasses.replace(RTX_17, version="1.8.0.1"), None, "1.7.1.116, here is TensorRT-RTX 1.8.0.1"),
        (FOR_TARGETS, RTX_17, H100, r"built for sm89, sm120, here is NVIDIA H100 \(sm90\)"),
        (FOR_ALL, RTX_17, T4, r"built for sm80 and later, here is NVIDIA T4 \(sm75\)"),
        (FOR_H100, TRT_114, H200, r"built for NVIDIA H100 \(sm90\), here is NVIDIA H200 \(sm90\)"),
        (dataclasses.replace(FOR_H100, hardware_compatibility="same_compute_capability"), TRT_114, L4, "NVIDIA L4"),
        (dataclasses.replace(FOR_H100, hardware_compatibility="ampere_plus"), TRT_114, T4, "NVIDIA T4"),
        (
            dataclasses.replace(FOR_H100, version_compatible=True),
            dataclasses.replace(TRT_114, version="12.0.0.1"),
            H100,
            "here is TensorRT 12",
        ),
        (
            dataclasses.replace(FOR_H100, version_compatible=True),
            dataclasses.replace(TRT_114, version="11.3.9.1"),
            H100,
            "here is TensorRT 11.3",
        ),
    ],
)
def test_a_plan_for_another_machine_says_what_was_expected_and_found(key, flavour, gpu, words):
    with pytest.raises(ModelError, match=words):
        check_fit(key, flavour, gpu)


def test_a_whole_plan_opens_with_its_spec(plan):
    sidecar = open_plan(plan)
    assert sidecar.spec.name == "model"
    assert sidecar.state == "built, not run"
    assert not sidecar.holds_host_code


def test_a_copy_of_a_plan_opens_like_the_plan(plan, tmp_path):
    copy = tmp_path / "copy.plan"
    copy_plan(plan, copy)
    assert open_plan(copy) == open_plan(plan)


def test_a_version_compatible_plan_is_known_to_hold_code(tmp_path):
    plan = write(tmp_path / "model.plan", b"x" * 100, dataclasses.replace(FOR_H100, version_compatible=True))
    assert open_plan(plan).holds_host_code


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda plan: plan.write_bytes(plan.read_bytes()[:90]), "plan truncated: 90 bytes, expected 136"),
        (lambda plan: plan.write_text("hello"), r"not a TensorRT-RTX plan \(5 bytes\)\. Build it again"),
        (lambda plan: plan.write_bytes(plan.read_bytes()[:-1] + b"x"), "its SHA-256 differs"),
        (
            lambda plan: sidecar_path(plan).unlink(),
            r"sidecar missing\. \(Its header: TensorRT-RTX 1\.7\.1, for sm89, s",
        ),
        (lambda plan: sidecar_path(plan).write_bytes(b"\xff"), "sidecar is not readable"),
        (lambda plan: sidecar_path(plan).write_text("[]"), "sidecar is not readable"),
        (lambda plan: plan.unlink(), r"No plan file at .*model\.plan\. Build one: vdali build"),
    ],
)
def test_a_damaged_plan_is_refused_with_what_is_wrong(plan, damage, words):
    damage(plan)
    with pytest.raises(ModelError, match=words):
        open_plan(plan)


def test_a_plan_of_another_version_under_this_name_is_told_by_its_header(plan):
    data = bytearray(plan.read_bytes())
    data[25] = 6
    plan.write_bytes(data)
    with pytest.raises(ModelError, match=r"plan of TensorRT-RTX 1\.6\.1, expected 1\.7\.1\.116"):
        open_plan(plan)


def test_a_plan_for_another_machine_is_refused_with_advice(plan):
    with pytest.raises(ModelError, match=r"Cannot use the plan .*here is NVIDIA H100 \(sm90\).*Build it again"):
        require_fit(plan, open_plan(plan), RTX_17, H100)
