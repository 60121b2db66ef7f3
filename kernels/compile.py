"""CUDA C++ to a cubin for one compute capability, through NVRTC, with a cache on disk.

Never PTX: a driver older than the toolkit cannot translate it, while a cubin of the same major
version loads. Nothing here needs a GPU or a driver.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import cache
from .errors import KernelCompileError

_LOG = logging.getLogger(__name__)
_ELF_MAGIC = b"\x7fELF"


def compile_cubin(source: str, name: str, arch: str, options: Sequence[str] = ()) -> bytes:
    """Cubin of CUDA C++ ``source`` for ``arch`` (``sm_90``), from the cache where it is there.

    ``name`` is the file name that the log shows; ``options`` are NVRTC's, such as ``--fmad=false``.
    Raises KernelCompileError where NVRTC is missing, does not know ``arch`` or refuses the source.
    """
    if not re.fullmatch(r"sm_\d+[af]?", arch):
        raise ValueError(f"arch must name a real GPU such as 'sm_90', got {arch!r}.")
    version = nvrtc_version()
    path = _cache_path(source, name, arch, options, version)
    cached = _read_cached(path)
    if cached is not None:
        return cached
    cubin = _compile(source, name, arch, options, version)
    _store(path, cubin)
    return cubin


def compile_file(path: Path, arch: str, options: Sequence[str] = ()) -> bytes:
    """Cubin of the source file ``path``; see ``compile_cubin``."""
    return compile_cubin(path.read_text(encoding="utf-8"), path.name, arch, options)


def nvrtc_version() -> tuple[int, int]:
    """Version (major, minor) of the NVRTC that is loaded; raises KernelCompileError where there is none."""
    try:
        from cuda.bindings import nvrtc

        result, major, minor = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:  # cuda.pathfinder's DynamicLibNotFoundError is a RuntimeError
        raise KernelCompileError(
            f"NVRTC, the compiler of the CUDA kernels, cannot be loaded: {str(error).strip()}. "
            "Install it with: pip install 'nvidia-cuda-nvrtc>=13,<14'"
        ) from error
    if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise KernelCompileError(f"NVRTC gave {result.name} for its version. Reinstall nvidia-cuda-nvrtc.")
    return int(major), int(minor)


def cache_folder() -> Path:
    """Folder of the cached cubins: under VDALI_CACHE, else under the user's cache folder."""
    return cache.cache_folder() / "kernels"


def _cache_path(source: str, name: str, arch: str, options: Sequence[str], version: tuple[int, int]) -> Path:
    key = json.dumps([source, name, arch, list(options), list(version)])
    digest = hashlib.sha256(key.encode()).hexdigest()[:32]
    return cache_folder() / f"{Path(name).stem}-{arch}-{digest}.cubin"


def _read_cached(path: Path) -> bytes | None:
    """Cubin in the cache, or None where there is none or what is there is no ELF file."""
    try:
        cubin = path.read_bytes()
    except OSError:
        return None
    return cubin if cubin.startswith(_ELF_MAGIC) else None


def _store(path: Path, cubin: bytes) -> None:
    """Write ``cubin`` so that a reader sees all of it or nothing.

    A cache that cannot be written (read-only home, full disk) costs a compilation of about 0.2 s per run.
    """
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
        with os.fdopen(handle, "wb") as file:
            file.write(cubin)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        _LOG.warning("Compiled kernel not cached in %s: %s. Set VDALI_CACHE to a writable folder.", path.parent, error)
        if temporary:
            Path(temporary).unlink(missing_ok=True)


def _compile(source: str, name: str, arch: str, options: Sequence[str], version: tuple[int, int]) -> bytes:
    from cuda.bindings import nvrtc

    program = _checked(nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), 0, [], []), name)
    try:
        words = [f"--gpu-architecture={arch}".encode(), *(option.encode() for option in options)]
        (result,) = nvrtc.nvrtcCompileProgram(program, len(words), words)
        if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = _text_of(program, name, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
            raise KernelCompileError(_refusal(name, arch, version, result.name, log.decode().strip("\0\n ")))
        return _text_of(program, name, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _refusal(name: str, arch: str, version: tuple[int, int], result: str, log: str) -> str:
    from cuda.bindings import nvrtc

    text = f"NVRTC {version[0]}.{version[1]} cannot compile {name} for {arch} ({result}):\n{log}"
    known = [f"sm_{number}" for number in _checked(nvrtc.nvrtcGetSupportedArchs(), name)]
    if arch.rstrip("af") in known:
        return text
    return (
        f"{text}\nThis NVRTC knows {', '.join(known)}. For a newer GPU: pip install --upgrade nvidia-cuda-nvrtc. "
        "An older one is no longer supported by CUDA 13."
    )


def _text_of(program: Any, name: str, size_of: Callable[[Any], Any], read: Callable[[Any, bytearray], Any]) -> bytes:
    """Bytes that one of NVRTC's pairs of calls (size, content) gives for ``program``."""
    buffer = bytearray(_checked(size_of(program), name))
    _checked(read(program, buffer), name)
    return bytes(buffer)


def _checked(answer: tuple[Any, ...], name: str) -> Any:
    """Value of an NVRTC answer (result, value); raises KernelCompileError where the result is not success."""
    result, *values = answer
    if result.value != 0:
        raise KernelCompileError(f"NVRTC failed on {name}: {result.name}. Reinstall nvidia-cuda-nvrtc.")
    return values[0] if values else None
