"""Objects of other libraries, taken by protocol: streams by ``__cuda_stream__``, memory by DLPack or
``__cuda_array_interface__``. None of their packages is named here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

DEFAULT_STREAMS = {0: "the default stream", 1: "the legacy default stream", 2: "the per-thread default stream"}
_DLPACK_CUDA = 2
"""kDLCUDA of DLPack's DLDeviceType."""


@dataclass(frozen=True, slots=True)
class ForeignMemory:
    """Dense memory on a GPU. ``stream`` is the producer's that still has to be waited for, None where none is."""

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    stream: int | None
    owner: object


def stream_handle(stream: object) -> int:
    """The cudaStream_t of anything with ``__cuda_stream__``. Raises TypeError without, ValueError for a default one."""
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is None:
        raise TypeError(f"{type(stream).__name__} has no __cuda_stream__. Give a stream of this device, or wrap yours.")
    version, handle = protocol() if callable(protocol) else protocol
    if version != 0:
        raise TypeError(f"__cuda_stream__ of {type(stream).__name__} has version {version}, 0 is known. Update vdali.")
    if int(handle) in DEFAULT_STREAMS:
        raise ValueError(
            f"{type(stream).__name__} is {DEFAULT_STREAMS[int(handle)]}, on which all other work of the GPU would "
            "wait. Give a non-blocking stream."
        )
    return int(handle)


def foreign_memory(source: object, ordinal: int, stream: int) -> ForeignMemory:
    """Memory of ``source`` on the GPU ``ordinal``, to be used on the cudaStream_t ``stream``.

    DLPack comes first: there the producer itself orders the stream behind its own work, which the other protocol
    leaves open in its older versions. Raises TypeError without a protocol, ValueError for memory that is elsewhere or
    not dense.
    """
    if hasattr(source, "__dlpack_device__"):
        return _from_dlpack(source, ordinal, stream)
    if hasattr(source, "__cuda_array_interface__"):
        return _from_array_interface(source)
    raise TypeError(
        f"{type(source).__name__} has neither DLPack nor __cuda_array_interface__. Copy it to the GPU first."
    )


def _from_dlpack(source: Any, ordinal: int, stream: int) -> ForeignMemory:
    from cuda.core.utils import StridedMemoryView

    kind, number = source.__dlpack_device__()
    if (int(kind), int(number)) != (_DLPACK_CUDA, ordinal):
        raise ValueError(
            f"{type(source).__name__} is on DLPack device ({int(kind)}, {int(number)}), not on cuda:{ordinal}. "
            "Copy it there first."
        )
    view = StridedMemoryView.from_dlpack(source, stream_ptr=stream)
    _check_dense(source, view.shape, view.strides)
    return ForeignMemory(view.ptr, tuple(view.shape), np.dtype(view.dtype), None, view)


def _from_array_interface(source: Any) -> ForeignMemory:
    interface = source.__cuda_array_interface__
    shape, dtype = tuple(interface["shape"]), np.dtype(interface["typestr"])
    strides = interface.get("strides")
    if strides is not None:
        _check_dense(source, shape, tuple(stride // dtype.itemsize for stride in strides))
    return ForeignMemory(int(interface["data"][0]), shape, dtype, interface.get("stream"), source)


def _check_dense(source: object, shape: tuple[int, ...], strides: tuple[int, ...] | None) -> None:
    """Strides are in elements; those of axes of size 1 do not matter."""
    if strides is None:
        return
    dense = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    if any(have != want for have, want, size in zip(strides, dense, shape, strict=True) if size > 1):
        raise ValueError(
            f"{type(source).__name__} of shape {list(shape)} has the strides {list(strides)}, dense would be {dense}. "
            "Make it contiguous first."
        )
