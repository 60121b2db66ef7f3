"""What a decoder for a GPU is: encoded samples in, rows of a buffer of that GPU out, in two steps.

``prepare`` does what the host must do and may take its time; ``start`` only starts work on a stream. Between them
lies ``staged``, memory of the host from which the GPU copies by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..batch import Decoded, Encoded, Failure
from ..device import Buffer, Device, Stream


@dataclass(slots=True)
class DeviceBatch:
    """Samples whose pixels are, or will be in the stream's order, the first rows of a buffer of the GPU.

    Row i belongs to ``decoded[i]``. ``held`` is memory of others that is copied from: it must live until the device
    is done with the batch.
    """

    decoded: list[Decoded]
    failures: list[Failure]
    held: list[object] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.decoded)


class DeviceDecoder(Protocol):
    """Decodes, resizes and crops into a buffer of a GPU; for one lane, whose two threads call it."""

    name: str

    def prepare(self, samples: Sequence[Encoded], staged: NDArray[np.uint8]) -> Any:
        """What ``start`` needs; pictures that the host decodes are left in ``staged``, of the shape of the pixels.

        Never raises for a bad picture.
        """
        ...

    def start(self, prepared: Any, staged: NDArray[np.uint8], pixels: Buffer, *, stream: Stream) -> DeviceBatch:
        """Fill the first rows of ``pixels``, uint8 [capacity, height, width, 3] RGB, in the order of ``stream``.

        To be called by work that runs on ``stream``. The rows are dense and in the order of the samples; every other
        sample is one of the failures. Never raises for a bad picture; raises DeviceError where the GPU fails.
        """
        ...

    def close(self) -> None:
        """Give everything back; nothing runs any more."""
        ...


class Placed(NamedTuple):
    """Pixels of one picture: row ``row`` of ``source``, uint8 [n, height, width, 3] on the device or pinned."""

    source: Buffer
    row: int


def copy_rows(device: Device, pixels: Buffer, placed: Sequence[Placed], *, stream: Stream) -> None:
    """Copy each picture to its row of ``pixels``, in as few copies as the neighbours in their sources allow."""
    start = 0
    for end in range(1, len(placed) + 1):
        first = placed[start]
        if end < len(placed) and placed[end].source is first.source and placed[end].row == first.row + end - start:
            continue
        source = first.source[first.row : first.row + end - start]
        device.copy(pixels[start:end], source, stream=stream)
        start = end
