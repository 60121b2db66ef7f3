"""How many lanes and threads a run takes, from the machine and from what was asked."""

from __future__ import annotations

import subprocess
import sys

import pytest
from models import mean_colour_model
from vdali.engine.backends.onnxruntime import OnnxRuntimeEngine
from vdali.engine.cpu import cpu_allowance
from vdali.engine.decoders.make import DecoderName
from vdali.engine.errors import UsageError
from vdali.engine.lanes import CACHE_MICRO_BATCH, LaneOptions, LanePlan, make_scheduler

ON_ONE_CPU = """
import os, sys
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from pathlib import Path
from vdali.engine.backends.onnxruntime import OnnxRuntimeEngine
from vdali.engine.lanes import LaneOptions, make_scheduler

engine = OnnxRuntimeEngine(Path(sys.argv[1]))
before = len(os.listdir("/proc/self/task"))
scheduler, plan = make_scheduler(engine, LaneOptions(), engine.spec.preprocess)
after = len(os.listdir("/proc/self/task"))
scheduler.close()
print(plan.lanes, plan.threads, after - before)
"""


@pytest.fixture(scope="module")
def engine(tmp_path_factory) -> OnnxRuntimeEngine:
    return OnnxRuntimeEngine(mean_colour_model(tmp_path_factory.mktemp("model") / "m.onnx"))


def plan_of(engine: OnnxRuntimeEngine, options: LaneOptions) -> LanePlan:
    scheduler, plan = make_scheduler(engine, options, engine.spec.preprocess)
    scheduler.close()
    return plan


def test_on_one_usable_cpu_there_is_one_lane_with_one_thread(tmp_path):
    model = mean_colour_model(tmp_path / "m.onnx")
    done = subprocess.run([sys.executable, "-c", ON_ONE_CPU, model], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 1 1\n", "")


@pytest.mark.parametrize("threads", [1, 2, 3, 64])
def test_lanes_times_threads_stay_within_the_allowance_by_default(engine, threads):
    plan = plan_of(engine, LaneOptions(threads=threads))
    allowed = cpu_allowance().threads
    assert plan.threads == threads
    assert plan.lanes >= 1
    assert plan.lanes * threads <= max(allowed, threads)
    assert (plan.lanes + 1) * threads > allowed


def test_lanes_that_are_asked_for_are_taken(engine):
    assert plan_of(engine, LaneOptions(lanes=5)).lanes == 5


@pytest.mark.parametrize(
    ("batch_size", "micro_batch", "chosen"), [(32, None, CACHE_MICRO_BATCH), (3, None, 3), (64, 64, 64), (8, 2, 2)]
)
def test_a_micro_batch_fits_in_the_cache_and_in_the_batch_unless_another_is_asked_for(
    engine, batch_size, micro_batch, chosen
):
    assert plan_of(engine, LaneOptions(batch_size=batch_size, micro_batch=micro_batch)).micro_batch == chosen


def test_a_micro_batch_larger_than_the_batch_is_refused():
    with pytest.raises(UsageError, match=r"A micro-batch of 9 does not fit in a batch of 8\. Raise --batch-size\."):
        LaneOptions(batch_size=8, micro_batch=9)


@pytest.mark.parametrize("name", [DecoderName.TURBO, DecoderName.DALI, DecoderName.PILLOW])
def test_the_plan_names_the_decoder_that_was_asked_for(engine, name):
    assert plan_of(engine, LaneOptions(decoder=name, lanes=1)).decoder == name.value


def test_auto_says_which_decoder_it_took(engine):
    assert plan_of(engine, LaneOptions(lanes=1)).decoder == DecoderName.TURBO.value
