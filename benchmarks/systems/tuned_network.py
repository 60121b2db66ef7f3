"""The model as tuned PyTorch runs it: channels last, inference mode, fp16 autocast on a GPU, compiled where asked."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ...engine.errors import DeviceError
from ...engine.spec import ModelSpec
from ...export.torch_model import quiet
from .interface import Outputs, SystemOptions
from .network import Network

Infer = Callable[[Any], tuple[Any, ...]]


class TunedNetwork:
    """Takes uint8 [n, 3, height, width] batches on the host, channels last or not.

    ``compiled`` compiles for full batches with weights frozen; a smaller last batch stays eager. Raises DeviceError
    where that needs a C++ compiler and there is none.
    """

    def __init__(self, spec: ModelSpec, options: SystemOptions, *, compiled: bool = False) -> None:
        import torch

        torch.set_num_threads(options.cpus)
        self._options = options
        self._network = Network(spec, device=options.device, channels_last=True)
        self._infer: Infer = self._network.of_levels
        self._note = "eager"
        if compiled:
            shape = (options.batch_size, 3, *spec.preprocess.size)
            with self._mode():
                self._infer = _compiled(self._infer, self._moved(torch.zeros(shape, dtype=torch.uint8)))
            self._note = "torch.compile with frozen weights"

    def describe(self) -> str:
        import torch

        precision = "fp16 autocast" if self._options.on_gpu else "fp32"
        return (
            f"torch {torch.__version__}, {self._note}, channels-last {precision} on {self._options.device}, inference "
            f"mode, batch {self._options.batch_size}, {torch.get_num_threads()} threads"
        )

    def one_pass(self, batches: Iterable[tuple[Any, float]]) -> tuple[Outputs, list[float]]:
        """As Network.one_pass."""

        def infer(pictures: Any) -> tuple[Any, ...]:
            return self._infer(self._moved(pictures))

        with self._mode():
            return self._network.one_pass(batches, infer, in_flight=2 if self._options.on_gpu else 1)

    def _moved(self, pictures: Any) -> Any:
        import torch

        moved = pictures.to(self._options.device, non_blocking=True)
        return moved.contiguous(memory_format=torch.channels_last)

    @contextmanager
    def _mode(self) -> Iterator[None]:
        import torch

        with torch.inference_mode(), torch.autocast("cuda", torch.float16, enabled=self._options.on_gpu):
            yield


def _compiled(infer: Infer, example: Any) -> Infer:
    """``infer`` compiled for the shape of ``example``, as it is for any other."""
    import torch

    if example.device.type == "cpu" and shutil.which("g++") is None:
        raise DeviceError("torch.compile needs the C++ compiler g++ on a CPU. Install it, or leave torch-compiled out.")
    compiled: Infer = torch.compile(infer, dynamic=False, options={"freezing": True})
    with quiet():
        compiled(example)
    shape = example.shape
    return lambda pictures: compiled(pictures) if pictures.shape == shape else infer(pictures)
