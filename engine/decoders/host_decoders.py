"""Several decoders of the CPU at work on one batch for a GPU: what it cannot decode, or all of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..batch import Decoded, Encoded, Failure
from ..device import Buffer, Device, Stream
from .device_interface import DeviceBatch, Placed, copy_rows
from .interface import Decoder


class StagedPicture(NamedTuple):
    """A picture that the host decoded into row ``row`` of the staged pixels."""

    decoded: Decoded
    row: int


class HostDecoders:
    """``count`` decoders, lent to whoever decodes, on the threads of ``pool``."""

    def __init__(self, new_decoder: Callable[[], Decoder], count: int, pool: ThreadPoolExecutor) -> None:
        self._decoders = [new_decoder() for _ in range(count)]
        self.name = self._decoders[0].name
        self._pool = pool
        self._free: SimpleQueue[Decoder] = SimpleQueue()
        for decoder in self._decoders:
            self._free.put(decoder)

    def decode_all(
        self, samples: Sequence[tuple[int, Encoded]], staged: NDArray[np.uint8]
    ) -> list[StagedPicture | Failure]:
        """Each sample into its row of ``staged``, several at a time; results in the order of ``samples``."""
        return list(self._pool.map(lambda pair: self.decode(pair[1], pair[0], staged), samples))

    def decode(self, sample: Encoded, row: int, staged: NDArray[np.uint8]) -> StagedPicture | Failure:
        """One sample, on the calling thread."""
        decoder = self._free.get()
        try:
            batch = decoder.decode([sample], staged[row : row + 1])
        finally:
            self._free.put(decoder)
        return batch.failures[0] if batch.failures else StagedPicture(batch.decoded[0], row)

    def close(self) -> None:
        for decoder in self._decoders:
            decoder.close()


class UploadingDecoder:
    """Decodes on the host and copies the small result to the GPU: where DALI is not there or not wanted."""

    def __init__(self, host: HostDecoders, device: Device) -> None:
        self.name = host.name
        self._host = host
        self._device = device

    def prepare(self, samples: Sequence[Encoded], staged: NDArray[np.uint8]) -> list[StagedPicture | Failure]:
        return self._host.decode_all(list(enumerate(samples)), staged)

    def start(
        self,
        prepared: list[StagedPicture | Failure],
        staged: NDArray[np.uint8],
        pixels: Buffer,
        *,
        stream: Stream,
    ) -> DeviceBatch:
        pictures = [entry for entry in prepared if isinstance(entry, StagedPicture)]
        copy_rows(self._device, pixels, [Placed(staged, picture.row) for picture in pictures], stream=stream)
        failures = [entry for entry in prepared if isinstance(entry, Failure)]
        return DeviceBatch([picture.decoded for picture in pictures], failures)

    def close(self) -> None:
        self._host.close()
