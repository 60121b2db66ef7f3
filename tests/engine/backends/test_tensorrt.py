"""Plans as engines, on a TensorRT and a GPU that are played: what is called, in which order, and what it costs."""

from __future__ import annotations

import gc
import inspect

import fake_tensorrt
import numpy as np
import pytest
import tensorrt_rtx as real
from cuda.bindings import runtime as real_cuda
from engine_lane import engine_lane
from fake_plans import LARGEST, SIZE, Buffers, means, opened, pictures
from fake_tensorrt import SCRATCH_BYTES, counted
from trt_api import signatures_of
from vdali.engine.backends.cuda_graph import CudaGraph
from vdali.engine.backends.interface import DeviceEngine
from vdali.engine.cuda.device import CudaDevice
from vdali.engine.errors import DeviceError, InferError
from vdali.engine.scheduler import Scheduler
from vdali.engine.slots import BufferSpec


def test_a_plan_is_an_engine_and_a_device_engine(engine, trt):
    assert isinstance(engine, DeviceEngine)
    assert engine.name == f"{trt.flavour.name}:{trt.flavour.version}"
    assert (engine.content, engine.max_batch) == ("c0ffee", LARGEST)
    assert engine.output_specs(5) == {"embedding": BufferSpec((5, 3), np.float32)}


@pytest.mark.parametrize("sizes", [(8, 1, 8), (3, 8, 2, 8)])
def test_infer_gives_exactly_the_rows_of_each_batch_whatever_came_before(engine, sizes):
    for seed, size in enumerate(sizes):
        pixels = pictures(size, seed)
        got = engine.infer(pixels)["embedding"]
        assert got.shape == (size, 3)
        assert np.array_equal(got, means(pixels))


def test_what_infer_has_given_is_not_touched_by_the_next_batch(engine):
    first = engine.infer(pictures(4, 1))["embedding"]
    engine.infer(pictures(4, 2))
    assert np.array_equal(first, means(pictures(4, 1)))


@pytest.mark.parametrize("shape", [(9, *SIZE, 3), (0, *SIZE, 3), (2, 4, 8, 3)])
def test_infer_refuses_a_batch_that_is_none(engine, shape):
    with pytest.raises(InferError, match=r"takes uint8 \[1 to 8, 8, 8, 3\]"):
        engine.infer(np.zeros(shape, np.uint8))


def test_a_batch_writes_its_rows_and_no_more(engine, stream):
    context, buffers = engine.new_context(stream), Buffers(engine, stream)
    pixels = pictures(3)
    poison = buffers.run(context, pictures(LARGEST))[3:]
    got = buffers.run(context, pixels)
    assert np.array_equal(got[:3], means(pixels))
    assert np.array_equal(got[3:], poison)
    context.close()
    buffers.close()


def test_the_input_is_free_before_the_outputs_are_there(engine, stream, runtime):
    context, buffers = engine.new_context(stream), Buffers(engine, stream)
    (output,) = buffers.outputs.values()
    pixels = pictures(LARGEST)
    buffers.run(context, pixels)
    buffers.host[...] = pixels
    buffers.on_stream(lambda: buffers.device.copy(buffers.pixels, buffers.host, stream=stream))
    runtime.array(output).fill(-1)
    consumed = stream.new_event()
    buffers.start(context, LARGEST, consumed)
    stream.record(consumed)  # as the scheduler does: too late, since it is marked by then
    consumed.wait()
    assert runtime.array(buffers.pixels).max() == runtime.array(buffers.pixels).min()  # read, then poisoned
    assert np.all(runtime.array(output) == -1)
    stream.synchronize()
    assert np.array_equal(runtime.array(output), means(pixels))
    context.close()
    buffers.close()


def test_the_event_of_a_batch_is_not_recorded_by_the_next_one(engine, stream, runtime):
    context, buffers = engine.new_context(stream), Buffers(engine, stream)
    consumed = stream.new_event()
    buffers.run(context, pictures(2), consumed)
    record = runtime.events[consumed.handle]
    assert record is not None
    buffers.run(context, pictures(2))
    assert runtime.events[consumed.handle] is record
    context.close()
    buffers.close()


def test_shapes_come_before_addresses_and_these_before_the_start(engine, stream, trt):
    context, buffers = engine.new_context(stream), Buffers(engine, stream)
    trt.calls.clear()
    buffers.start(context, 2, stream.new_event())
    stream.synchronize()
    assert trt.calls == [
        "set_input_shape",
        "infer_shapes",
        "set_tensor_address",
        "set_tensor_address",
        "set_input_consumed_event",
        "execute_async_v3",
    ]
    context.close()
    buffers.close()


@pytest.mark.parametrize(
    ("method", "what"),
    [
        ("set_input_shape", "the shape"),
        ("infer_shapes", r"the shapes of \['images'\]"),
        ("set_tensor_address", "the address of 'images'"),
        ("set_input_consumed_event", "the event"),
        ("execute_async_v3", "the batch"),
    ],
)
def test_whatever_tensorrt_refuses_is_an_infer_error_in_its_words(engine, stream, trt, method, what):
    context, buffers = engine.new_context(stream), Buffers(engine, stream)
    trt.refuses[method] = "too hot today"
    consumed = stream.new_event()
    with pytest.raises(InferError, match=f"refuses {what} of 2 pictures: too hot today") as caught:
        buffers.start(context, 2, consumed)
    assert caught.value.kind == "runtime_error"
    stream.record(consumed)  # nobody has marked it, so the stream does
    consumed.wait()
    trt.refuses.clear()
    assert np.array_equal(buffers.run(context, pictures(2))[:2], means(pictures(2)))
    context.close()
    buffers.close()


def test_shapes_that_tensorrt_cannot_infer_are_an_infer_error(engine, stream, trt, monkeypatch):
    def infer_shapes(self):
        raise RuntimeError("infer_shapes error code: -1")

    context, buffers = engine.new_context(stream), Buffers(engine, stream)
    monkeypatch.setattr(fake_tensorrt.FakeExecutionContext, "infer_shapes", infer_shapes)
    with pytest.raises(InferError, match="infer_shapes error code: -1"):
        buffers.start(context, 2)
    context.close()
    buffers.close()


def test_a_gpu_that_tensorrt_has_lost_is_a_device_error_and_no_failure_of_a_sample(engine, stream, trt, runtime):
    context, buffers = engine.new_context(stream), Buffers(engine, stream)
    trt.refuses["execute_async_v3"] = "CUDA error"
    runtime.last_error = real_cuda.cudaError_t.cudaErrorIllegalAddress
    with pytest.raises(DeviceError, match="TensorRT failed on cuda:0: cudaErrorIllegalAddress"):
        buffers.start(context, 2)
    context.close()
    buffers.close()


def test_another_stream_than_the_contexts_and_buffers_that_do_not_fit_are_faults_of_the_caller(engine, stream):
    context, buffers = engine.new_context(stream), Buffers(engine, stream, rows=2)
    other = engine.device.new_stream("other")
    with pytest.raises(ValueError, match="made for another stream"):
        context.enqueue(buffers.pixels, buffers.outputs, 1, stream=other)
    for rows in (0, 3):
        with pytest.raises(ValueError, match=f"A batch of {rows} does not fit"):
            context.enqueue(buffers.pixels, buffers.outputs, rows, stream=stream)
    with pytest.raises(ValueError, match="Bring those"):
        context.enqueue(buffers.pixels, {}, 1, stream=stream)
    wrong = engine.device.allocate((2, 3), np.float64)
    with pytest.raises(ValueError, match="does not fit in 'embedding': float64"):
        context.enqueue(buffers.pixels, {"embedding": wrong}, 1, stream=stream)
    other.close()
    context.close()
    engine.device.release(wrong)
    buffers.close()


def test_a_batch_smaller_than_the_plan_takes_is_filled_up_with_what_lies_behind_it(trt, runtime, tmp_path):
    engine = opened(trt, runtime, tmp_path, smallest=4)
    stream = engine.device.new_stream("stream")
    context, buffers = engine.new_context(stream), Buffers(engine, stream)
    pixels = pictures(2)
    assert np.array_equal(buffers.run(context, pixels)[:2], means(pixels))
    with pytest.raises(InferError, match="takes batches of 4 and more, here are buffers for 3"):
        context.enqueue(buffers.pixels[:3], {n: b[:3] for n, b in buffers.outputs.items()}, 2, stream=stream)
    context.close()
    buffers.close()
    stream.close()
    engine.close()


def test_each_slot_has_a_context_and_scratch_of_its_own_so_batches_overlap(engine, trt, runtime):
    batches = [pictures(1 + number % LARGEST, number) for number in range(80)]
    scheduler = Scheduler([engine_lane(engine, slots=3, rows=LARGEST)], depth=5)
    for number, got in enumerate(scheduler.run(batches)):
        assert np.array_equal(got["embedding"], means(batches[number])), number
    scheduler.close()
    assert len({address for address, _ in trt.scratch}) == len(trt.scratch) == 3
    assert all(size >= SCRATCH_BYTES for _, size in trt.scratch)
    assert real.ExecutionContextAllocationStrategy.USER_MANAGED in trt.strategies


def test_contexts_go_before_the_engine_and_that_before_the_runtime_and_no_memory_stays(trt, runtime, tmp_path):
    engine = opened(trt, runtime, tmp_path)
    stream = engine.device.new_stream("stream")
    engine.infer(pictures(2))
    forgotten, closed = engine.new_context(stream), engine.new_context(stream)
    closed.close()
    closed.close()
    stream.close()
    engine.close()
    gc.collect()
    assert not any(counted(trt.trace).values())
    assert trt.trace[-2:] == ["engine gone", "runtime gone"]
    assert runtime.memory == {}
    assert runtime.pools == set()
    del forgotten


def test_too_little_memory_for_scratch_is_an_error_that_leaves_nothing_behind(engine, stream, runtime, trt):
    before = len(runtime.memory)
    runtime.fails["cudaMallocFromPoolAsync"] = iter([real_cuda.cudaError_t.cudaErrorMemoryAllocation])
    with pytest.raises(DeviceError, match="Lower --batch-size or the depth"):
        engine.new_context(stream)
    trt.refuses["create_execution_context"] = "no room"
    with pytest.raises(DeviceError, match=r"one more execution context: no room\. Lower the depth"):
        engine.new_context(stream)
    del trt.refuses["create_execution_context"]
    engine.device.allocate((1,), np.uint8)  # waits for the frees before it
    assert len(runtime.memory) == before + 1


def test_the_played_methods_have_the_parameters_of_the_real_ones():
    played = {
        fake_tensorrt.FakeRuntime: real.Runtime,
        fake_tensorrt.FakeEngine: real.ICudaEngine,
        fake_tensorrt.FakeRuntimeConfig: real.IRuntimeConfig,
        fake_tensorrt.FakeExecutionContext: real.IExecutionContext,
    }
    checked = 0
    for fake, cls in played.items():
        for name, value in vars(fake).items():
            if name.startswith("_"):
                continue
            if isinstance(value, property):
                assert isinstance(getattr(cls, name), property), name
                continue
            signatures = [names for names, _ in signatures_of(getattr(cls, name).__doc__, name)]
            assert list(inspect.signature(value).parameters) in signatures, name
            checked += 1
    assert checked > 15


def test_graph_calls_take_the_arguments_that_they_are_given(runtime):
    if real_cuda.cudaDriverGetVersion()[1]:
        pytest.skip("this machine has a driver, which would follow handles made up here")
    device = CudaDevice(0, runtime=runtime)
    stream = device.new_stream("stream")
    graph = CudaGraph(device.cuda, stream.handle, lambda: None)
    graph.launch(stream.handle)
    graph.close()
    names = [name for name in runtime.calls if "Graph" in name or "Capture" in name]
    assert len(names) == 6
    for name in names:
        status = getattr(real_cuda, name)(*runtime.calls[name])[0]
        assert status == real_cuda.cudaError_t.cudaErrorInsufficientDriver, name
    stream.close()
    device.close()
