"""CUDA graphs of a plan: used for batches that come again, with the same results, and given up where they cannot be."""

from __future__ import annotations

import numpy as np
import pytest
from cuda.bindings import runtime as real_cuda
from fake_plans import LARGEST, Buffers, means, opened, pictures
from fake_tensorrt import counted
from vdali.engine.backends.tensorrt import TensorRTOptions
from vdali.engine.backends.tensorrt_context import MOST_GRAPHS
from vdali.engine.errors import DeviceError

WITH_GRAPHS = TensorRTOptions(cuda_graphs=True)


@pytest.fixture
def graphs(trt, runtime, tmp_path):
    """Engine with graphs, a stream, a context on it, and buffers."""
    engine = opened(trt, runtime, tmp_path, options=WITH_GRAPHS)
    stream = engine.device.new_stream("stream")
    context, buffers = engine.new_context(stream), Buffers(engine, stream)
    yield context, buffers
    context.close()
    buffers.close()
    stream.close()
    engine.close()
    assert counted(trt.trace)["context"] == 0
    assert runtime.graphs == runtime.memory == {}


def check(context, buffers, rows: int, seed: int) -> None:
    pixels = pictures(rows, seed)
    assert np.array_equal(buffers.run(context, pixels)[:rows], means(pixels))


def test_the_third_batch_of_a_kind_is_captured_and_all_later_ones_are_one_call(graphs, trt, runtime):
    context, buffers = graphs
    for seed in range(3):
        assert runtime.launches == 0
        check(context, buffers, LARGEST, seed)
    trt.calls.clear()
    for seed in range(3, 8):
        check(context, buffers, LARGEST, seed)
    assert runtime.launches == 6
    assert trt.calls == []
    assert context.graphs.problem == ""


def test_batches_of_other_sizes_in_between_leave_a_graph_and_their_own_results_right(graphs, runtime):
    context, buffers = graphs
    sizes = [8, 3, 8, 3, 8, 5, 3, 8, 1, 3, 8, 5, 8, 5, 2]
    for seed, rows in enumerate(sizes):
        check(context, buffers, rows, seed)
    assert runtime.launches == sum(max(0, sizes.count(rows) - 2) for rows in set(sizes))


def test_other_buffers_are_another_graph(graphs, runtime):
    context, buffers = graphs
    others = Buffers(buffers.engine, buffers.stream)
    for seed in range(8):
        check(context, (buffers, others)[seed % 2], LARGEST, seed)
    assert runtime.launches == 4
    others.close()


def test_the_input_of_a_graph_is_left_to_the_stream_to_hand_back(graphs, runtime):
    context, buffers = graphs
    for seed in range(4):
        consumed = buffers.stream.new_event()
        before = runtime.events[consumed.handle]
        buffers.run(context, pictures(LARGEST, seed), consumed)
        was_recorded = runtime.events[consumed.handle] is not before
        assert was_recorded == (seed == 0)
        buffers.stream.record(consumed)
        consumed.wait()


def test_addresses_that_change_with_every_batch_end_the_search_for_graphs(graphs, trt, runtime):
    context, buffers = graphs
    kept = [Buffers(buffers.engine, buffers.stream, rows=1) for _ in range(70)]
    for seed, each in enumerate(kept):
        check(context, each, 1, seed)
    for seed in range(5):
        check(context, buffers, LARGEST, seed)
    assert (runtime.launches, context.graphs.problem[:21]) == (0, "the buffers' addresse")
    for each in kept:
        each.close()


def test_a_slot_keeps_a_few_graphs_and_the_rest_runs_as_before(graphs, runtime):
    context, buffers = graphs
    others = [Buffers(buffers.engine, buffers.stream, rows=1) for _ in range(MOST_GRAPHS + 2)]
    for seed in range(4):
        for each in others:
            check(context, each, 1, seed)
    assert runtime.launches == 2 * MOST_GRAPHS
    for each in others:
        each.close()


@pytest.mark.parametrize(
    "function", ["cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaGraphInstantiate", "capture"]
)
def test_work_that_cannot_be_captured_runs_as_before_and_the_reason_is_kept(graphs, trt, runtime, function):
    context, buffers = graphs
    for seed in range(2):
        check(context, buffers, LARGEST, seed)
    if function.startswith("cuda"):
        runtime.fails[function] = iter([real_cuda.cudaError_t.cudaErrorStreamCaptureUnsupported])
    else:
        trt.refuses[function] = "loops cannot be captured"
    check(context, buffers, LARGEST, 2)
    for seed in range(3, 6):
        check(context, buffers, LARGEST, seed)
    assert runtime.launches == 0
    assert ("captured" in context.graphs.problem) or (function in context.graphs.problem)


def test_without_room_for_a_graphs_context_batches_run_as_before(graphs, trt, runtime):
    context, buffers = graphs
    check(context, buffers, LARGEST, 0)
    trt.refuses["create_execution_context"] = "out of memory"
    for seed in range(1, 5):
        check(context, buffers, LARGEST, seed)
    assert runtime.launches == 0
    assert "one more execution context: out of memory" in context.graphs.problem


def test_a_gpu_that_is_lost_in_a_capture_is_an_error_and_closing_hides_nothing(trt, runtime, tmp_path):
    engine = opened(trt, runtime, tmp_path, options=WITH_GRAPHS)
    stream = engine.device.new_stream("stream")
    context, buffers = engine.new_context(stream), Buffers(engine, stream)
    for seed in range(2):
        check(context, buffers, LARGEST, seed)
    runtime.lost = real_cuda.cudaError_t.cudaErrorIllegalAddress
    with pytest.raises(DeviceError, match="Capturing a CUDA graph failed on cuda:0: cudaErrorIllegalAddress"):
        buffers.start(context, LARGEST)
    stream.close()
    engine.close()


@pytest.mark.parametrize("trt", [True], indirect=True, ids=["tensorrt_rtx"])
def test_a_plan_that_tensorrt_rtx_cannot_capture_runs_as_before(graphs, trt, runtime):
    trt.is_capturable = False
    context, buffers = graphs
    for seed in range(5):
        check(context, buffers, LARGEST, seed)
    assert (runtime.launches, context.graphs.problem) == (0, "TensorRT-RTX 1.7.1.116 cannot capture this plan")
