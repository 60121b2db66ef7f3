"""What runs in a child process, one probe each: imports a library, tries the cheapest real thing, tells what it saw."""

from __future__ import annotations

import base64
import ctypes
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from typing import Any

from .isolated import shortened

PICTURE = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAMCAgMCAgMDAwMEAwMEBQgFBQQEBQoHBwYIDAoMDAsKCwsNDhIQDQ4RDgsLEBYQERMUFRUVDA8XGBYU"
    "GBIUFRT/2wBDAQMEBAUEBQkFBQkUDQsNFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBT/wAARCABAAEAD"
    "ASIAAhEBAxEB/8QAFQABAQAAAAAAAAAAAAAAAAAAAAT/xAAUEAEAAAAAAAAAAAAAAAAAAAAA/8QAFgEBAQEAAAAAAAAAAAAAAAAAAAcI/8QAFBEB"
    "AAAAAAAAAAAAAAAAAAAAAP/aAAwDAQACEQMRAD8AkAQ9pAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAB/9k="
)
"""A JPEG of 64 x 64 pixels, all of COLOUR: DALI is not given pictures with a side below 32."""

COLOUR = (200, 100, 50)
MAX_ERROR = 3
"""Largest distance to COLOUR in levels; JPEG decoders differ by 1."""

PILLOW_FEATURES = {"webp": "WebP", "avif": "AVIF", "jpg_2000": "JPEG 2000", "libtiff": "TIFF"}


def main() -> None:
    """Run the probe that the first argument names; the last line of stdout is its answer as JSON."""
    name, *arguments = sys.argv[1:]
    facts, error = {}, ""
    try:
        facts = PROBES[name](*arguments)
    except Exception as caught:  # whatever a foreign library raises is what the report has to tell
        error = f"{type(caught).__name__}: {shortened(str(caught))}"
    print(json.dumps({"facts": facts, "error": error}), flush=True)  # noqa: T201


def gpu() -> dict[str, Any]:
    from ..gpu_probe import probe_gpu

    return asdict(probe_gpu())


def onnxruntime() -> dict[str, Any]:
    import onnxruntime as ort

    return {
        "version": ort.__version__,
        "providers": ort.get_available_providers(),
        "cuda": getattr(ort, "cuda_version", ""),
    }


def onnxruntime_cuda() -> dict[str, Any]:
    """Load the CUDA provider's library as a session would, without a session; needs a driver."""
    import onnxruntime as ort

    ort.preload_dlls()
    folder = os.path.join(os.path.dirname(ort.__file__), "capi")
    for library in ("libonnxruntime_providers_shared.so", "libonnxruntime_providers_cuda.so"):
        ctypes.CDLL(os.path.join(folder, library), mode=ctypes.RTLD_GLOBAL)
    # opened at the first convolution, so its absence would show late
    ctypes.CDLL("libcudnn.so.9")
    return {}


def decoder(name: str) -> dict[str, Any]:
    """Decode the test picture with vdali's own decoder, as a run would."""
    import numpy as np

    from ..batch import Encoded
    from ..decoders.interface import DecodeOptions
    from ..decoders.make import DecoderName, make_decoder
    from ..preprocess import Preprocess

    spec = Preprocess(size=(8, 8), resize=(8, 8))
    instance = make_decoder(DecoderName(name), spec, DecodeOptions(), max_batch=1)
    batch = instance.decode([Encoded("test picture", PICTURE)], np.zeros((1, 8, 8, 3), np.uint8))
    instance.close()
    if batch.failures:
        raise ValueError(batch.failures[0].message)
    if batch.decoded[0].decoder != name:
        raise ValueError(f"{batch.decoded[0].decoder} decoded the test picture in its place")
    _check_colour(batch.pixels)
    return {}


def nvimgcodec() -> dict[str, Any]:
    import numpy as np
    import nvidia.nvimgcodec as codec

    decoder = codec.Decoder(device_id=codec.NVIMGCODEC_DEVICE_CPU_ONLY, backends=[codec.Backend(codec.CPU_ONLY)])
    _check_colour(np.asarray(decoder.decode(PICTURE)))
    return {"version": codec.__version__}


def pillow() -> dict[str, Any]:
    """Decode the test picture with Pillow, and tell which formats this build of it knows."""
    import PIL
    from PIL import features

    decoder("pillow")
    jpeg = "mozjpeg" if features.check("mozjpeg") else "libjpeg-turbo" if features.check("libjpeg_turbo") else ""
    formats: dict[bool, list[str]] = {True: [], False: []}
    for name, words in PILLOW_FEATURES.items():
        formats[bool(features.check(name))].append(words)
    return {"version": PIL.__version__, "jpeg": jpeg, "formats": formats[True], "lacking": formats[False]}


def package(name: str) -> dict[str, Any]:
    """Import a package and tell its version."""
    return {"version": getattr(import_module(name), "__version__", "")}


def _check_colour(pixels: Any) -> None:
    """Raise ValueError unless the decoded picture (uint8 [height, width, 3]) has the colour it was encoded with."""
    got = [float(level) for level in pixels.reshape(-1, 3).mean(axis=0)]
    if max(abs(level - want) for level, want in zip(got, COLOUR, strict=True)) > MAX_ERROR:
        raise ValueError(f"the test picture came out as RGB {got} instead of {COLOUR}")


PROBES: dict[str, Callable[..., dict[str, Any]]] = {
    probe.__name__: probe for probe in (gpu, onnxruntime, onnxruntime_cuda, decoder, pillow, nvimgcodec, package)
}
