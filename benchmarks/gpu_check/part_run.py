"""Whole runs as a user starts them, on the GPU and on the CPU, row by row; then where the time of the GPU's goes."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...engine.backends.onnxruntime_cuda import OnnxRuntimeCudaEngine
from ...engine.cuda.device import CudaDevice
from ...engine.decoders.device_interface import DeviceDecoder
from ...engine.decoders.interface import DecodeOptions
from ...engine.decoders.make import DecoderName
from ...engine.decoders.make_on_device import make_device_decoder
from ...engine.report import RunReport
from .engine_checks import lowest_cosine
from .lanes_alone import measured, samples_of
from .network import SPEC
from .part_onnxruntime import network_file
from .pictures import broken_jpeg, photo_sized_jpegs, smooth_jpeg
from .record import Check, CheckFailedError, Found

_PICTURES, _BAD = 200, (7, 77, 78, 150)
_BATCH, _REPEAT, _THREADS = 32, 60, 8


def checks() -> Sequence[Check]:
    return (
        Check("rows and failures equal the CPU's", _equal),
        Check("speed of decode, engine and all, JPEGs from memory", _speed),
    )


def _equal() -> Found:
    folder = Path(tempfile.mkdtemp(prefix="vdali-gpu-check-"))
    _write_pictures(folder / "in")
    cpu, _ = _run(folder, "cpu")
    gpu, report = _run(folder, "cuda:0")
    if list(cpu) != list(gpu):
        raise CheckFailedError(f"rows for other pictures than on the CPU: {sorted(set(cpu) ^ set(gpu))[:5]}")
    lowest = lowest_cosine(np.stack(list(gpu.values())), np.stack(list(cpu.values())))
    decoders = ", ".join(f"{name} {count}" for name, count in sorted(report.decoded_by.items()))
    return Found(
        f"{report.used.engine}; {len(gpu)} rows, {report.progress.failures} failures; decoded by {decoders}",
        {"lowest_cosine": lowest},
    )


def _write_pictures(folder: Path) -> None:
    """JPEGs, some PNGs, and bad ones."""
    import io

    from PIL import Image

    folder.mkdir()
    for number in range(_PICTURES):
        data = smooth_jpeg(number, 300 + number, 240, orientation=1 + number % 8)
        if number in _BAD:
            data = broken_jpeg()
        elif number % 20 == 0:
            file = io.BytesIO()
            Image.open(io.BytesIO(data)).save(file, "PNG")
            data = file.getvalue()
        (folder / f"{number:04d}.jpg").write_bytes(data)


def _run(folder: Path, device: str) -> tuple[dict[str, NDArray[Any]], RunReport]:
    """Embeddings by id, in order, and the report."""
    import pyarrow.parquet as pq

    from ...api import run

    out = folder / device.partition(":")[0]
    report = run(folder / "in", out=out, model=network_file(), device=device)
    table = pq.read_table(out / "rows")
    rows = zip(table["id"].to_pylist(), table["embedding"].to_pylist(), strict=True)
    return {sample_id: np.array(vector) for sample_id, vector in sorted(rows)}, report


def _speed() -> Found:
    device = CudaDevice(0)
    engine = OnnxRuntimeCudaEngine(network_file(), device)
    files = photo_sized_jpegs(4 * _BATCH)
    works = [samples_of(files[at : at + _BATCH]) for at in range(0, len(files), _BATCH)]
    return measured(engine, functools.partial(_decoder, device), works, repeat=_REPEAT)


def _decoder(device: CudaDevice, pool: ThreadPoolExecutor) -> DeviceDecoder:
    return make_device_decoder(
        DecoderName.AUTO, SPEC.preprocess, DecodeOptions(), device, pool, max_batch=_BATCH, threads=_THREADS
    )
