import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import onnx
import pytest
from models import mean_colour_model, plain_preprocess, tiny_classifier, with_spec
from vdali.engine.errors import ModelError, UsageError, VdaliError
from vdali.engine.plans.flavour import load_flavour
from vdali.engine.plans.options import BatchProfile, PlanOptions
from vdali.engine.plans.sidecar import PlanSidecar, sidecar_path
from vdali.engine.spec import Precision
from vdali.export.plans.cache import NO_PLAN_YET, PlanCache

OPTIONS = PlanOptions(targets=("sm89", "sm120"))

CHILD = """
import json, sys, time
from pathlib import Path
from vdali.engine.errors import VdaliError
from vdali.export.plans.cache import PlanCache
from vdali.engine.plans.options import PlanOptions
from vdali.engine.plans.flavour import load_flavour

model, cache, name, wait_for = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4]

def say(state):
    (model.parent / f"{name}.{state}").touch()

def hold(moment):
    say("building")
    while wait_for != "nothing" and not list(model.parent.glob(wait_for)):
        time.sleep(0.01)

flavour = load_flavour("tensorrt_rtx")
say("ready")
try:
    plan = PlanCache(cache, notice=lambda text: say("waiting")).get_or_build(
        model, PlanOptions(targets=("sm89", "sm120")), flavour=flavour, progress=hold
    )
    print(json.dumps([plan.hit, plan.reason, str(plan.path)]))
except VdaliError as error:
    print(type(error).__name__, error)
"""


@pytest.fixture(scope="module")
def rtx():
    pytest.importorskip("tensorrt_rtx", reason="tensorrt_rtx is not installed: pip install 'vdali[rtx]'")
    return load_flavour("tensorrt_rtx")


@pytest.fixture
def model(tmp_path):
    return tiny_classifier(tmp_path / "model.onnx")


@pytest.fixture
def cache(tmp_path):
    return PlanCache(tmp_path / "cache")


def start(model, cache, name, wait_for="nothing", limit=""):
    command = [sys.executable, "-c", limit + CHILD, str(model), str(cache), name, wait_for]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def wait_until(path: Path):
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} did not come"
        time.sleep(0.01)


def names(cache):
    return sorted(path.name for path in cache.directory.iterdir() if path.suffix != ".lock")


def reseal(plan, **changes):
    """Rewrite a sidecar with some of its key's fields changed, as another version would have written it."""
    sidecar = PlanSidecar.loads(sidecar_path(plan).read_text(), file="sidecar")
    other = dataclasses.replace(sidecar, key=dataclasses.replace(sidecar.key, **changes))
    sidecar_path(plan).write_text(other.dumps())


def test_the_second_time_is_a_hit(rtx, cache, model):
    first = cache.get_or_build(model, OPTIONS, flavour=rtx)
    assert (first.hit, first.reason) == (False, NO_PLAN_YET)
    assert first.sidecar.state == "built, not run"
    assert "for sm89, sm120, batch 1,32,64: built, not run" in str(first.sidecar)
    second = cache.get_or_build(model, OPTIONS, flavour=rtx)
    assert second.hit
    assert "built 2" in second.reason
    assert (second.path, second.sidecar) == (first.path, first.sidecar)
    assert names(cache) == [first.path.name, first.path.name + ".json"]


def test_the_sidecar_can_be_read_by_people(rtx, cache, model):
    plan = cache.get_or_build(model, OPTIONS, flavour=rtx)
    values = json.loads(sidecar_path(plan.path).read_text())
    assert values["key"]["targets"] == ["sm89", "sm120"]
    assert values["key"]["flavour_version"] == rtx.version
    assert values["key"]["batch"] == "1,32,64"
    assert values["key"]["tf32"] is False
    assert values["plan_bytes"] == plan.path.stat().st_size
    assert values["spec"]["name"] == "tiny_classifier"
    assert any("Int64 binding" in text for severity, text in values["messages"] if severity == "warning")


def test_one_changed_weight_is_a_miss_that_says_so(rtx, cache, model):
    cache.get_or_build(model, OPTIONS, flavour=rtx)
    graph = onnx.load(model)
    weight = next(tensor for tensor in graph.graph.initializer if tensor.name == "weight")
    weight.raw_data = b"\0\0\0\0" + weight.raw_data[4:]
    onnx.save(graph, model)
    plan = cache.get_or_build(model, OPTIONS, flavour=rtx)
    assert (plan.hit, plan.reason) == (False, "model content changed")


def test_a_change_in_external_data_is_a_miss(rtx, cache, model):
    split = model.with_name("split.onnx")
    onnx.save(onnx.load(model), split, save_as_external_data=True, location="weights.bin", size_threshold=1024)
    cache.get_or_build(split, OPTIONS, flavour=rtx)
    assert cache.get_or_build(split, OPTIONS, flavour=rtx).hit
    weights = split.with_name("weights.bin")
    weights.write_bytes(b"\x01" + weights.read_bytes()[1:])
    assert cache.get_or_build(split, OPTIONS, flavour=rtx).reason == "model content changed"


def test_changed_mean_and_std_are_a_miss_that_names_them(rtx, cache, model):
    cache.get_or_build(model, OPTIONS, flavour=rtx)
    preprocess = plain_preprocess((16, 16))
    with_spec(model, preprocess=dataclasses.replace(preprocess, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)))
    assert cache.get_or_build(model, OPTIONS, flavour=rtx).reason == "model content changed (mean, std)"


def test_another_tensorrt_version_is_a_miss_that_names_both(rtx, cache, model):
    old = dataclasses.replace(rtx, version="1.6.0.9")
    cache.get_or_build(model, OPTIONS, flavour=old)
    plan = cache.get_or_build(model, OPTIONS, flavour=rtx)
    assert (plan.hit, plan.reason) == (False, f"TensorRT-RTX version 1.6.0.9 -> {rtx.version}")
    assert cache.get_or_build(model, OPTIONS, flavour=old).hit


def test_other_options_are_a_miss_against_the_nearest_plan(rtx, cache, model):
    cache.get_or_build(model, OPTIONS, flavour=rtx)
    wider = dataclasses.replace(OPTIONS, batch=BatchProfile(1, 8, 128))
    assert cache.get_or_build(model, wider, flavour=rtx).reason == "batch 1,32,64 -> 1,8,128"
    ampere = dataclasses.replace(wider, targets=("sm80",))
    assert cache.get_or_build(model, ampere, flavour=rtx).reason == "targets sm89, sm120 -> sm80"
    assert len(cache.ls()) == 3


def test_another_model_has_no_plan_yet(rtx, cache, model):
    cache.get_or_build(model, OPTIONS, flavour=rtx)
    other = mean_colour_model(model.with_name("other.onnx"))
    assert cache.get_or_build(other, OPTIONS, flavour=rtx).reason == NO_PLAN_YET


def cut(plan):
    os.truncate(plan, 1000)


def overwrite_with_text(plan):
    plan.write_text("not a plan " * 1000)


def flip_a_bit(plan):
    data = bytearray(plan.read_bytes())
    data[-100] ^= 1
    plan.write_bytes(data)


def edit_sidecar(plan):
    text = sidecar_path(plan).read_text()
    sidecar_path(plan).write_text(text.replace('"build_s": ', '"build_s": 9'))


def break_sidecar(plan):
    sidecar_path(plan).write_text("{")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (cut, "plan truncated: 1000 bytes, expected "),
        (overwrite_with_text, "not a TensorRT-RTX plan (11000 bytes)"),
        (flip_a_bit, "plan changed since it was built: its SHA-256 differs"),
        (edit_sidecar, "sidecar edited"),
        (break_sidecar, "sidecar is not readable"),
        (lambda plan: sidecar_path(plan).unlink(), "sidecar missing"),
        (lambda plan: plan.unlink(), "plan missing"),
        (lambda plan: reseal(plan, flavour_version="1.6.0"), "plan of something else: TensorRT-RTX version 1.6.0 -> "),
        (lambda plan: reseal(plan, gpu="NVIDIA L4"), "plan of something else: other GPU: NVIDIA L4 -> None"),
    ],
)
def test_a_damaged_entry_is_rebuilt_with_its_reason(rtx, cache, model, damage, reason):
    first = cache.get_or_build(model, OPTIONS, flavour=rtx)
    damage(first.path)
    again = cache.get_or_build(model, OPTIONS, flavour=rtx)
    assert not again.hit
    assert again.reason.startswith(reason)
    assert cache.get_or_build(model, OPTIONS, flavour=rtx).hit
    assert [verdict.problem for verdict in cache.verify()] == [""]


def test_the_plan_of_other_targets_under_this_name_is_rebuilt(rtx, cache, model):
    plan = cache.get_or_build(model, OPTIONS, flavour=rtx)
    other = cache.get_or_build(model, PlanOptions(targets=("sm80",)), flavour=rtx)
    plan.path.write_bytes(other.path.read_bytes())
    assert cache.get_or_build(model, OPTIONS, flavour=rtx).reason == "plan for sm80, expected sm89, sm120"


def test_progress_of_a_rebuild_knows_how_long_the_last_build_took(rtx, cache, model):
    first = cache.get_or_build(model, OPTIONS, flavour=rtx)
    seen = []
    cache.get_or_build(model, PlanOptions(targets=("sm80",)), flavour=rtx, progress=seen.append)
    assert {moment.expected_s for moment in seen} == {first.sidecar.build_s}


def test_a_refused_model_leaves_nothing_behind(rtx, cache, model):
    with pytest.raises(ModelError, match="Consider increase the allowed workspace"):
        cache.get_or_build(model, dataclasses.replace(OPTIONS, workspace_bytes=1024), flavour=rtx)
    assert names(cache) == []


def test_models_that_are_none_are_refused(rtx, cache, tmp_path):
    with pytest.raises(ModelError, match=r"gone\.onnx"):
        cache.get_or_build(tmp_path / "gone.onnx", OPTIONS, flavour=rtx)
    (tmp_path / "text.onnx").write_text("hello")
    with pytest.raises(ModelError, match=r"text\.onnx"):
        cache.get_or_build(tmp_path / "text.onnx", OPTIONS, flavour=rtx)


def test_tf32_is_a_precision_of_the_model_and_not_a_wish(rtx, cache, model):
    with pytest.raises(UsageError, match="contradicts the model's precision fp32"):
        cache.get_or_build(model, dataclasses.replace(OPTIONS, tf32=True), flavour=rtx)
    with_spec(model, precision=Precision.TF32)
    assert cache.get_or_build(model, OPTIONS, flavour=rtx).sidecar.key.tf32


def test_two_processes_build_once_and_both_end_right(rtx, model, tmp_path):
    """Whoever builds holds the build until the other says that it waits."""
    processes = [start(model, tmp_path / "cache", name, wait_for="*.waiting") for name in ("a", "b")]
    results = [json.loads(process.communicate(timeout=60)[0]) for process in processes]
    assert sorted(hit for hit, _, _ in results) == [False, True]
    assert len({path for _, _, path in results}) == 1
    assert len(list(tmp_path.glob("*.building"))) == 1
    assert [verdict.problem for verdict in PlanCache(tmp_path / "cache").verify()] == [""]


def test_a_killed_build_holds_nobody_up(rtx, model, tmp_path):
    process = start(model, tmp_path / "cache", "a", wait_for="never")
    wait_until(tmp_path / "a.building")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    cache = PlanCache(tmp_path / "cache")
    assert names(cache) == []
    assert cache.get_or_build(model, OPTIONS, flavour=rtx).reason == NO_PLAN_YET


def test_leftovers_of_a_kill_while_writing_go_with_the_next_build(rtx, cache, model):
    path = cache.get_or_build(model, OPTIONS, flavour=rtx).path
    path.unlink()
    leftover = path.with_name(f"{path.name}.4711.tmp")
    leftover.write_bytes(b"half")
    cache.get_or_build(model, OPTIONS, flavour=rtx)
    assert not leftover.exists()


def test_a_full_disk_is_one_message_and_leaves_nothing_half_written(rtx, model, tmp_path):
    """A limit on file size, as a full disk is not to be had: the plan is 570 kB."""
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
    output, _ = start(model, tmp_path / "cache", "a", limit=limit).communicate(timeout=60)
    assert output.startswith(VdaliError.__name__)
    assert "File too large. Free some space" in output
    assert names(PlanCache(tmp_path / "cache")) == []


def test_a_cache_that_cannot_be_written_warns_once_and_works(rtx, model, tmp_path):
    (tmp_path / "file").write_text("in the way")
    notices = []
    cache = PlanCache(tmp_path / "file" / "cache", notice=notices.append)
    first = cache.get_or_build(model, OPTIONS, flavour=rtx)
    assert first.path.is_file()
    assert not first.path.is_relative_to(tmp_path)
    assert cache.get_or_build(model, OPTIONS, flavour=rtx).hit
    assert len(notices) == 1
    assert "cannot be written (Not a directory)" in notices[0]
    assert "Set VDALI_CACHE" in notices[0]


def test_a_cache_that_can_only_be_read_still_hits(rtx, model, tmp_path):
    """The lock cannot be opened, as in a folder of somebody else's; modes would not stop root."""
    path = PlanCache(tmp_path / "cache").get_or_build(model, OPTIONS, flavour=rtx).path
    lock = path.with_name(path.name + ".lock")
    lock.unlink()
    lock.mkdir()
    notices = []
    cache = PlanCache(tmp_path / "cache", notice=notices.append)
    again = cache.get_or_build(model, OPTIONS, flavour=rtx)
    assert (again.hit, again.path, notices) == (True, path, [])


def test_the_folder_is_vdali_cache_unless_another_is_given(monkeypatch, tmp_path):
    monkeypatch.setenv("VDALI_CACHE", str(tmp_path))
    assert PlanCache().directory == tmp_path / "plans"
    assert PlanCache(tmp_path / "own").directory == tmp_path / "own"
