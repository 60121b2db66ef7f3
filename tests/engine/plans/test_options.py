import dataclasses
from pathlib import Path

import pytest
from vdali.engine.errors import MissingExtraError, UsageError
from vdali.engine.gpu_probe import Gpu, GpuProbe
from vdali.engine.plans.flavour import TENSORRT, TENSORRT_RTX, Flavour, find_flavours, load_flavour
from vdali.engine.plans.key import PlanKey, differences, plan_key
from vdali.engine.plans.options import BatchProfile, HardwareCompatibility, PlanOptions, check_options, parse_targets
from vdali.engine.spec import Precision

RTX = Flavour(TENSORRT_RTX, "1.7.1.116", None, None)
TRT = Flavour(TENSORRT, "11.4.0.106", None, None)
L4 = GpuProbe(gpus=(Gpu("NVIDIA L4", 24 << 30, "8.9"),), driver="580.82.07")


@pytest.mark.parametrize("text", ["0,1,2", "2,1,4", "1,4,2", "1,2", "1,2,3,4", "a,b,c", "-1,2,3", ""])
def test_a_batch_profile_out_of_order_is_refused(text):
    with pytest.raises(UsageError, match="such as 1,32,64"):
        BatchProfile.parse(text)


def test_a_batch_profile_is_read_and_written_alike():
    assert BatchProfile.parse("1,32,64") == BatchProfile(1, 32, 64)
    assert str(BatchProfile(2, 4, 8)) == "2,4,8"


def test_targets_are_put_in_order_once():
    assert parse_targets("SM120, sm89,sm89,sm80") == ("sm80", "sm89", "sm120")
    assert PlanOptions(targets=("sm120", "sm89")) == PlanOptions(targets=("sm89", "sm120"))


@pytest.mark.parametrize("text", ["", "8.9", "ada", "sm89,,sm80", "current,sm89"])
def test_targets_that_make_no_sense_are_refused(text):
    with pytest.raises(UsageError):
        parse_targets(text)


@pytest.mark.parametrize("changes", [{"workspace_bytes": 0}, {"optimization_level": 6}, {"aux_streams": -1}])
def test_numbers_out_of_range_are_refused(changes):
    with pytest.raises(UsageError):
        PlanOptions(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"version_compatible": True},
        {"hardware_compatibility": HardwareCompatibility.AMPERE_PLUS},
        {"timing_cache": Path("timing.bin")},
        {"targets": ("sm90",)},
    ],
)
def test_options_that_tensorrt_rtx_has_not_are_refused(changes):
    pytest.importorskip("tensorrt_rtx", reason="tensorrt_rtx is not installed: pip install 'vdali[rtx]'")
    with pytest.raises(UsageError, match=r"TensorRT-RTX 1\..*--flavour tensorrt"):
        check_options(PlanOptions(**changes), load_flavour("tensorrt_rtx"), GpuProbe())


def test_targets_are_refused_by_tensorrt():
    with pytest.raises(UsageError, match="--flavour tensorrt_rtx"):
        check_options(PlanOptions(targets=("sm89",)), TRT, L4)


def test_a_plan_is_bound_to_its_targets_or_else_to_the_gpu():
    for_targets = plan_key("c", Precision.FP32, PlanOptions(targets=("sm89",)), RTX, L4)
    assert for_targets == plan_key("c", Precision.FP32, PlanOptions(targets=("sm89",)), RTX, GpuProbe())
    assert (for_targets.gpu, for_targets.driver_major) == (None, None)
    for key in (
        plan_key("c", Precision.FP32, PlanOptions(), TRT, L4),
        plan_key("c", Precision.FP32, PlanOptions(targets=("current",)), RTX, L4),
    ):
        assert (key.gpu, key.compute_capability, key.driver_major) == ("NVIDIA L4", "8.9", "580")


def test_every_field_of_the_key_changes_its_digest_and_is_told():
    key = plan_key("c", Precision.FP32, PlanOptions(), TRT, L4)
    for field in dataclasses.fields(PlanKey):
        value = ("sm80",) if field.name == "targets" else "other"
        changed = dataclasses.replace(key, **{field.name: TENSORRT_RTX if field.name == "flavour" else value})
        assert changed.digest() != key.digest()
        assert len(differences(key, changed)) == 1
    assert PlanKey.from_json(key.to_json()) == key


def test_the_timing_cache_is_no_part_of_the_key():
    plain = plan_key("c", Precision.FP32, PlanOptions(), TRT, L4)
    assert plan_key("c", Precision.FP32, PlanOptions(timing_cache=Path("timing.bin")), TRT, L4) == plain


def test_another_gpu_and_another_driver_are_told_in_words():
    old = plan_key("c", Precision.FP32, PlanOptions(), TRT, L4)
    h200 = GpuProbe(gpus=(Gpu("NVIDIA H200", 141 << 30, "9.0"),), driver="590.1")
    new = plan_key("c", Precision.FP32, PlanOptions(), TRT, h200)
    assert differences(old, new) == [
        "other GPU: NVIDIA L4 -> NVIDIA H200",
        "compute capability 8.9 -> 9.0",
        "driver major 580 -> 590",
    ]


def test_a_flavour_that_does_not_exist_is_refused():
    with pytest.raises(UsageError, match="Use tensorrt, tensorrt_rtx or auto"):
        load_flavour("openvino")


def test_a_flavour_that_is_not_installed_names_its_extra():
    missing = [status for status in find_flavours() if not status.version]
    if not missing:
        pytest.skip("both flavours are installed")
    assert "pip install 'vdali[" in missing[0].problem
    with pytest.raises(MissingExtraError, match=r"pip install 'vdali\[(tensorrt|rtx)\]'"):
        load_flavour(missing[0].name)
