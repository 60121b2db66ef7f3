"""What a slot has of a TensorRT plan: an execution context, its scratch, and CUDA graphs of batches that come again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..cuda.device import CudaDevice, address_of
from ..cuda.foreign import stream_handle
from ..cuda.stream import CudaEvent
from ..device import Buffer, Event, Stream
from ..errors import DeviceError, InferError
from ..spec import INPUT_NAME
from .buffers import check_batch
from .cuda_graph import CudaGraph
from .tensorrt_plan import LoadedPlan, missing_shapes

if TYPE_CHECKING:
    import tensorrt as trt
    import tensorrt_rtx as rtx

MOST_GRAPHS = 8
"""Per slot: a slot has one set of addresses and few sizes of batch."""

_MOST_KEYS = 64
"""So many different addresses mean that they change with every batch, and no graph would ever be used."""


@dataclass(frozen=True, slots=True)
class BatchKey:
    """What a captured batch is tied to: its shape (rows first) and the address of each tensor."""

    shape: tuple[int, ...]
    addresses: tuple[tuple[str, int], ...]


class TensorRTContext:
    """One batch at a time on one stream. Scratch is this slot's own, so slots overlap."""

    def __init__(self, plan: LoadedPlan, device: CudaDevice, stream: Stream, *, cuda_graphs: bool) -> None:
        self._plan = plan
        self._device = device
        self._stream = stream_handle(stream)
        self._spare: CudaEvent | None = None
        self._has_event = False
        self._scratch: Buffer | None = device.allocate((plan.scratch_bytes,), "uint8")
        try:
            self._context: Any = _with_scratch(plan, self._scratch)
        except BaseException:
            device.release(self._scratch)
            raise
        self.graphs = BatchGraphs(plan, device, self._scratch) if cuda_graphs else None

    def enqueue(
        self,
        pixels: Buffer,
        outputs: Mapping[str, Buffer],
        rows: int,
        *,
        stream: Stream,
        consumed: Event | None = None,
    ) -> None:
        """Start a batch; see Context. A batch smaller than the plan takes is filled up with rows that lie behind it."""
        tensors = self._plan.tensors
        rows = self._filled_up(rows, pixels, outputs)
        check_batch(pixels, outputs, rows, wanted=tensors.pixels, specs=tensors.outputs)
        handle = stream_handle(stream)
        if handle != self._stream:
            raise ValueError("The context was made for another stream. Make one for each.")
        addresses = ((INPUT_NAME, address_of(pixels)), *((name, address_of(outputs[name])) for name in tensors.outputs))
        key = BatchKey((rows, *tensors.pixels.shape[1:]), addresses)
        if self.graphs is not None and self.graphs.start(key, handle):
            return
        _start(self._plan, self._device, self._context, key, handle, event=self._event(consumed))
        if consumed is not None:
            consumed.mark()

    def _event(self, consumed: Event | None) -> int | None:
        """Handle of the event that TensorRT shall record. It goes on with the last one that it was given, which
        belongs to somebody else by then, so a batch that wants none gets a spare one.
        """
        if consumed is None:
            if not self._has_event:
                return None
            consumed = self._spare = self._spare or CudaEvent(self._device.cuda)
        assert isinstance(consumed, CudaEvent), "an event of the engine's device"
        self._has_event = True
        return consumed.handle

    def _filled_up(self, rows: int, pixels: Buffer, outputs: Mapping[str, Buffer]) -> int:
        """Rows to run. Raises InferError where the buffers end before the plan's smallest batch."""
        smallest = self._plan.tensors.smallest
        held = min(buffer.shape[0] for buffer in (pixels, *outputs.values()))
        if rows <= held < smallest:
            raise InferError(
                "runtime_error",
                f"The plan takes batches of {smallest} and more, here are buffers for {held}. Raise --batch-size, or "
                "build it with --batch-profile 1,...",
            )
        return max(rows, smallest) if rows > 0 else rows

    def close(self) -> None:
        """Let go of graphs, then of execution contexts, then of the scratch that they used."""
        scratch, self._scratch = self._scratch, None
        if scratch is None:
            return
        try:
            if self.graphs is not None:
                self.graphs.close()
        finally:
            self._context = None
        self._device.release(scratch)


class BatchGraphs:
    """CUDA graphs of one slot, by shape and addresses.

    A graph needs its execution context frozen, so each has its own; they share the slot's scratch, since a slot's
    batches follow each other. The first batch of a key runs as any other. The second is the plain run that has to come
    before a capture, on the context of the graph. From the third on the graph runs. ``problem`` says why no graph is
    used, empty while all is well.
    """

    def __init__(self, plan: LoadedPlan, device: CudaDevice, scratch: Buffer) -> None:
        self.problem = ""
        self._plan = plan
        self._device = device
        self._scratch = scratch
        self._seen: Counter[BatchKey] = Counter()
        self._contexts: dict[BatchKey, Any] = {}
        self._graphs: dict[BatchKey, CudaGraph] = {}

    def start(self, key: BatchKey, stream: int) -> bool:
        """Start the batch; False where somebody else has to."""
        if key in self._graphs:
            self._graphs[key].launch(stream)
            return True
        if self.problem or (key not in self._contexts and not self._is_worth_one(key)):
            return False
        if key not in self._contexts:
            return self._run_before_capture(key, stream)
        return self._capture(key, stream)

    def close(self) -> None:
        try:
            while self._graphs:
                self._graphs.popitem()[1].close()
        finally:
            self._contexts.clear()

    def _is_worth_one(self, key: BatchKey) -> bool:
        if len(self._contexts) == MOST_GRAPHS:
            return False
        self._seen[key] += 1
        if len(self._seen) > _MOST_KEYS:
            self.problem = "the buffers' addresses change from batch to batch"
            self._seen.clear()
        return self._seen[key] > 1

    def _run_before_capture(self, key: BatchKey, stream: int) -> bool:
        try:
            context = _with_scratch(self._plan, self._scratch)
        except DeviceError as error:  # there is no room for what only saves time
            self._give_up(str(error))
            return False
        _start(self._plan, self._device, context, key, stream, event=None)
        self._contexts[key] = context
        return True

    def _capture(self, key: BatchKey, stream: int) -> bool:
        context = self._contexts[key]
        if self._plan.flavour.is_rtx and not _is_capturable(context, stream):
            self.problem = f"{self._plan.flavour.title} cannot capture this plan"
            return False
        try:
            graph = CudaGraph(self._device.cuda, stream, lambda: _execute(self._plan, context, key, stream))
        except (InferError, DeviceError) as error:
            self._give_up(str(error))
            return False
        self._graphs[key] = graph
        graph.launch(stream)
        return True

    def _give_up(self, problem: str) -> None:
        self._device.cuda.check_alive("Capturing a CUDA graph")
        self.problem = problem


def _with_scratch(plan: LoadedPlan, scratch: Buffer) -> trt.IExecutionContext:
    context: trt.IExecutionContext = plan.new_execution_context()
    context.set_device_memory(scratch.address, scratch.nbytes)
    return context


def _start(
    plan: LoadedPlan,
    device: CudaDevice,
    context: trt.IExecutionContext,
    key: BatchKey,
    stream: int,
    *,
    event: int | None,
) -> None:
    """Shape before addresses before the call that starts the work."""
    try:
        if not context.set_input_shape(INPUT_NAME, key.shape):
            raise _refusal(plan, key, "the shape")
        if missing := missing_shapes(context):
            raise _refusal(plan, key, f"the shapes of {missing}")
        for name, address in key.addresses:
            if not context.set_tensor_address(name, address):
                raise _refusal(plan, key, f"the address of '{name}'")
        if event is not None and not context.set_input_consumed_event(event):
            raise _refusal(plan, key, "the event")
        _execute(plan, context, key, stream)
    except InferError:
        device.cuda.check_alive("TensorRT")
        raise


def _execute(plan: LoadedPlan, context: trt.IExecutionContext, key: BatchKey, stream: int) -> None:
    if not context.execute_async_v3(stream):
        raise _refusal(plan, key, "the batch")


def _is_capturable(context: rtx.IExecutionContext, stream: int) -> bool:
    return bool(context.is_stream_capturable(stream))


def _refusal(plan: LoadedPlan, key: BatchKey, what: str) -> InferError:
    said = plan.flavour.log.last_error() or "it does not say why"
    return InferError("runtime_error", f"{plan.flavour.title} refuses {what} of {key.shape[0]} pictures: {said}.")
