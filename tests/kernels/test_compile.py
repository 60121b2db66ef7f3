"""CUDA C++ to cubins, on a machine that needs no GPU for it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from vdali.kernels import mask_rle, resample
from vdali.kernels.compile import cache_folder, compile_cubin, compile_file, nvrtc_version
from vdali.kernels.errors import KernelCompileError

SIMPLE = (
    'extern "C" __global__ void fill(unsigned char* out, int n)\n{\n    if (threadIdx.x < n) out[threadIdx.x] = 1;\n}\n'
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VDALI_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kernels"


def compute_capability(cubin: bytes) -> int:
    """``e_flags`` of the ELF header holds it in its second byte (CUDA 13)."""
    return cubin[49]


@pytest.mark.parametrize("arch", [80, 86, 89, 90, 120])
@pytest.mark.parametrize("kernel", [resample, mask_rle], ids=["resample", "mask_rle"])
def test_every_kernel_compiles_for_every_gpu(kernel: object, arch: int) -> None:
    source, options = kernel.SOURCE, kernel.OPTIONS  # type: ignore[attr-defined]
    cubin = compile_file(source, f"sm_{arch}", options)
    assert cubin.startswith(b"\x7fELF")
    assert compute_capability(cubin) == arch
    names = re.findall(r"__global__ void (\w+)\(", source.read_text())
    assert len(names) == 3
    for name in names:
        assert f".text.{name}\0".encode() in cubin


def test_the_second_time_comes_from_the_cache(cache: Path) -> None:
    first = compile_cubin(SIMPLE, "fill.cu", "sm_90")
    (path,) = cache.iterdir()
    assert re.fullmatch(r"fill-sm_90-[0-9a-f]{32}\.cubin", path.name)
    path.write_bytes(first + b"from the cache")
    assert compile_cubin(SIMPLE, "fill.cu", "sm_90") == first + b"from the cache"


def test_a_cached_file_that_is_damaged_is_compiled_again(cache: Path) -> None:
    first = compile_cubin(SIMPLE, "fill.cu", "sm_90")
    (path,) = cache.iterdir()
    path.write_bytes(b"")
    assert compile_cubin(SIMPLE, "fill.cu", "sm_90") == first
    assert path.read_bytes() == first


def test_source_gpu_and_options_each_have_their_own_cubin(cache: Path) -> None:
    compile_cubin(SIMPLE, "fill.cu", "sm_90")
    compile_cubin(SIMPLE.replace("1", "2"), "fill.cu", "sm_90")
    compile_cubin(SIMPLE, "fill.cu", "sm_80")
    compile_cubin(SIMPLE, "fill.cu", "sm_90", ["--fmad=false"])
    assert len(list(cache.iterdir())) == 4


def test_an_error_has_the_compilers_words_and_line(cache: Path) -> None:
    with pytest.raises(
        KernelCompileError, match=r"(?s)NVRTC \d+\.\d+ cannot compile fill\.cu for sm_90.*fill\.cu\(3\): error.*outt"
    ):
        compile_cubin(SIMPLE.replace("out[", "outt["), "fill.cu", "sm_90")
    assert not cache.exists()


def test_a_gpu_that_nvrtc_does_not_know_is_said_with_those_it_knows() -> None:
    with pytest.raises(KernelCompileError, match=r"(?s)for sm_35 .*This NVRTC knows sm_75.*sm_90"):
        compile_cubin(SIMPLE, "fill.cu", "sm_35")


def test_ptx_cannot_be_asked_for() -> None:
    with pytest.raises(ValueError, match="compute_90"):
        compile_cubin(SIMPLE, "fill.cu", "compute_90")


def test_a_cache_that_cannot_be_written_costs_only_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("VDALI_CACHE", str(tmp_path / "file"))
    assert compile_cubin(SIMPLE, "fill.cu", "sm_90").startswith(b"\x7fELF")
    assert "VDALI_CACHE" in caplog.text


def test_without_the_variable_the_cache_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("VDALI_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / "vdali" / "kernels"


def test_missing_nvrtc_says_what_to_install(tmp_path: Path) -> None:
    """A real interpreter whose packages hold cuda-python and no NVRTC."""
    import cuda.bindings
    import numpy
    import platformdirs

    folders = {
        "cuda": Path(cuda.bindings.__file__).parents[1],
        "numpy": Path(numpy.__file__).parent,
        "numpy.libs": Path(numpy.__file__).parents[1] / "numpy.libs",
        "platformdirs": Path(platformdirs.__file__).parent,
        "vdali/kernels": resample.SOURCE.parent,
    }
    (tmp_path / "vdali").mkdir()
    (tmp_path / "vdali" / "__init__.py").touch()
    for name, folder in folders.items():
        (tmp_path / name).symlink_to(folder)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nfrom vdali.kernels import compile\ncompile.nvrtc_version()"
    )
    done = subprocess.run(
        [os.path.realpath(sys.executable), "-I", "-S", "-c", code],
        capture_output=True, text=True, env={"PATH": os.environ["PATH"]}, check=False,
    )  # fmt: skip
    if done.returncode == 0:
        pytest.skip("an NVRTC of the system is found even without the package")
    assert "KernelCompileError: NVRTC, the compiler of the CUDA kernels, cannot be loaded" in done.stderr
    assert "pip install 'nvidia-cuda-nvrtc>=13,<14'" in done.stderr


def test_the_loaded_nvrtc_is_of_cuda_13() -> None:
    assert nvrtc_version()[0] == 13
