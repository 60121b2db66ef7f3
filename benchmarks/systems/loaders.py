"""Loaders alone: image files on disk to uint8 pictures of the model's size in host memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...engine.batch import Encoded
from ...engine.decoders.interface import DecodeMode, DecodeOptions, Decoder
from ...engine.decoders.make import DecoderName, make_decoder
from ...engine.errors import DecodeError
from ...engine.lanes import CACHE_MICRO_BATCH
from ...engine.preprocess import Preprocess
from .interface import Outputs, System, SystemOptions


class _Loader:
    """What loaders share: memory for all pictures, filled again in each pass, and no latencies of their own."""

    def __init__(self, files: Sequence[Path], spec: Preprocess, *, channels_first: bool = False) -> None:
        shape = (3, *spec.size) if channels_first else (*spec.size, 3)
        self._files = files
        self._pixels = np.zeros((len(files), *shape), np.uint8)
        self._channels_first = channels_first

    def latencies_s(self) -> Sequence[float]:
        return ()

    def close(self) -> None:
        """Workers end with the process."""

    def _outputs(self) -> Outputs:
        return {"pixels": self._pixels.transpose(0, 2, 3, 1) if self._channels_first else self._pixels}

    def _fill(self, batches: Iterable[Any]) -> Outputs:
        first = 0
        for batch in batches:
            pictures = np.asarray(batch)
            self._pixels[first : first + len(pictures)] = pictures
            first += len(pictures)
        return self._outputs()


class DecodeAlone:
    """The floor of any loader here: libjpeg-turbo's full decode on one thread, and no picture kept."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files

    def describe(self) -> str:
        return "simplejpeg (libjpeg-turbo) full decode to RGB, one thread, no resize"

    def run(self) -> Outputs:
        import simplejpeg

        for path in self._files:
            simplejpeg.decode_jpeg(path.read_bytes(), "RGB")
        return {}

    def latencies_s(self) -> Sequence[float]:
        return ()

    def close(self) -> None:
        """Nothing is open."""


class VdaliLoader(_Loader):
    """vdali's default decoder, one per lane, in micro-batches as in a run."""

    def __init__(
        self,
        files: Sequence[Path],
        spec: Preprocess,
        *,
        lanes: int,
        mode: DecodeMode = DecodeMode.FAST,
        micro_batch: int = CACHE_MICRO_BATCH,
    ) -> None:
        super().__init__(files, spec)
        self._mode = mode
        self._micro_batch = micro_batch
        self._lanes = ThreadPoolExecutor(lanes)
        self._decoders = [
            make_decoder(DecoderName.TURBO, spec, DecodeOptions(mode=mode), max_batch=micro_batch) for _ in range(lanes)
        ]

    def describe(self) -> str:
        lanes = len(self._decoders)
        return f"vdali, decoder turbo ({self._mode}), {lanes} lane{'s' * (lanes > 1)}, micro-batch {self._micro_batch}"

    def run(self) -> Outputs:
        groups = SimpleQueue[int]()
        for first in range(0, len(self._files), self._micro_batch):
            groups.put(first)
        list(self._lanes.map(lambda decoder: self._work(decoder, groups), self._decoders))
        return self._outputs()

    def close(self) -> None:
        self._lanes.shutdown()

    def _work(self, decoder: Decoder, groups: SimpleQueue[int]) -> None:
        """Decode groups of files until none is left; raises DecodeError for the first that fails."""
        with suppress(Empty):
            while True:
                self._decode(decoder, groups.get_nowait())

    def _decode(self, decoder: Decoder, first: int) -> None:
        paths = self._files[first : first + self._micro_batch]
        samples = [Encoded(str(path), path.read_bytes()) for path in paths]
        batch = decoder.decode(samples, self._pixels[first : first + self._micro_batch])
        if batch.failures:
            failure = batch.failures[0]
            raise DecodeError(failure.kind, f"{failure.id}: {failure.message}")


class TorchLoader(_Loader):
    """DataLoader with PIL, or with torchvision.io: uint8 tensors, nothing normalised."""

    def __init__(
        self, files: Sequence[Path], spec: Preprocess, options: SystemOptions, load: Callable[..., Any], words: str
    ) -> None:
        from .torch_photos import batches_of

        super().__init__(files, spec, channels_first=True)
        self._words = f"DataLoader with {options.cpus} workers, {words}, batch {options.batch_size}"
        self._loader = batches_of(files, partial(load, spec=spec), batch_size=options.batch_size, workers=options.cpus)

    def describe(self) -> str:
        import torch

        return f"torch {torch.__version__}, {self._words}"

    def run(self) -> Outputs:
        return self._fill(pictures for pictures, _ in self._loader)

    def close(self) -> None:
        del self._loader  # ends its workers


class DaliLoader(_Loader):
    """DALI's own pipeline on the CPU."""

    def __init__(self, files: Sequence[Path], spec: Preprocess, options: SystemOptions) -> None:
        from .dali_photos import DaliPhotos

        super().__init__(files, spec)
        self._photos = DaliPhotos(files, spec, options)
        self._options = options

    def describe(self) -> str:
        from nvidia import dali

        options = self._options
        return f"DALI {dali.__version__} CPU pipeline, {options.cpus} threads, antialias, batch {options.batch_size}"

    def run(self) -> Outputs:
        return self._fill(pictures.as_tensor() for pictures, _ in self._photos.batches())


def decode_alone(files: Sequence[Path]) -> System:
    return DecodeAlone(files)


def vdali_loader(
    spec: Preprocess, options: SystemOptions, lanes: int, mode: DecodeMode, files: Sequence[Path]
) -> System:
    micro_batch = max(1, min(CACHE_MICRO_BATCH, options.batch_size // options.cpus))
    return VdaliLoader(files, spec, lanes=lanes, mode=mode, micro_batch=micro_batch)


def dali_loader(spec: Preprocess, options: SystemOptions, files: Sequence[Path]) -> System:
    return DaliLoader(files, spec, options)


def pil_loader(spec: Preprocess, options: SystemOptions, files: Sequence[Path]) -> System:
    return TorchLoader(files, spec, options, _pil_levels, "PIL decode and antialiased resize")


def torchvision_loader(spec: Preprocess, options: SystemOptions, files: Sequence[Path]) -> System:
    from .torch_photos import tensor_photo

    return TorchLoader(files, spec, options, tensor_photo, "torchvision.io decode, antialiased resize of tensors")


def _pil_levels(path: Path, *, spec: Preprocess) -> NDArray[np.uint8]:
    """uint8 [3, height, width] of one photo."""
    from torchvision.transforms.v2 import functional

    from .torch_photos import pil_photo

    return functional.pil_to_tensor(pil_photo(path, spec))  # type: ignore[no-any-return]
