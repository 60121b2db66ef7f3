"""From a decoder's name to a decoder that delivers on a GPU; the packages behind it are imported only then."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor

from ..cuda.device import CudaDevice
from ..errors import DeviceError
from ..preprocess import Preprocess
from .device_interface import DeviceDecoder
from .host_decoders import HostDecoders, UploadingDecoder
from .interface import DecodeOptions, Decoder
from .make import DecoderName, make_decoder

_LOG = logging.getLogger(__name__)
_ON_THE_GPU = (DecoderName.AUTO, DecoderName.DALI)


def make_device_decoder(
    name: DecoderName,
    spec: Preprocess,
    options: DecodeOptions,
    device: CudaDevice,
    pool: ThreadPoolExecutor,
    *,
    max_batch: int,
    threads: int,
) -> DeviceDecoder:
    """Decoder for one lane of ``device``; ``max_batch`` is the most samples of a call, ``threads`` the host's share.

    ``auto`` is DALI on the GPU where that works, else turbo on the host, with a warning that says why. Raises
    DeviceError when what was asked for cannot be loaded or the GPU refuses it.
    """
    fallback = name if name not in _ON_THE_GPU else DecoderName.TURBO

    def new_decoder() -> Decoder:
        return make_decoder(fallback, spec, options, max_batch=1)

    host = HostDecoders(new_decoder, threads, pool)
    if name not in _ON_THE_GPU:
        return UploadingDecoder(host, device)
    try:
        return _dali(spec, options, device, host, max_batch=max_batch, threads=threads)
    except (ImportError, RuntimeError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        if name is DecoderName.DALI:
            raise DeviceError(
                f"Decoder 'dali' cannot use {device.name}: {reason}. Use --decoder turbo, or run `vdali doctor`."
            ) from error
    _LOG.warning("DALI cannot use %s: %s. The host decodes instead (turbo).", device.name, reason)
    return UploadingDecoder(host, device)


def _dali(
    spec: Preprocess, options: DecodeOptions, device: CudaDevice, host: HostDecoders, *, max_batch: int, threads: int
) -> DeviceDecoder:
    """Raises ImportError without DALI, and RuntimeError where it cannot use the GPU."""
    from .dali import built_graph
    from .dali_gpu import DaliGpuDecoder
    from .picture_check import PictureCheck

    ordinal = device.cuda.ordinal
    return DaliGpuDecoder(
        spec,
        options,
        device,
        host,
        max_batch=max_batch,
        new_pipeline=lambda: built_graph("mixed", spec, max_batch=max_batch, threads=threads, ordinal=ordinal),
        check=PictureCheck(ordinal),
    )
