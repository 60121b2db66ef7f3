"""Kernels as host C++ under the address and undefined-behaviour sanitizers."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from vdali.kernels.launch import Launch

HERE = Path(__file__).parent
FLAGS = ["-std=c++20", "-O1", "-g", "-ffp-contract=off", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


class SanitizerError(AssertionError):
    """The host program ended badly; the message is what it printed."""


def address_of(buffer: int) -> int:
    """Address that stands for the first byte of buffer number ``buffer``."""
    return (buffer + 1) << 40


@dataclass(frozen=True)
class HostProgram:
    """One kernel source as a program; ``kernels`` are its kernels, in the order of the source."""

    executable: Path
    kernels: list[str]

    def run(
        self,
        buffers: Sequence[np.ndarray],
        launches: Sequence[Launch],
        pointers: Sequence[tuple[int, int]] = (),
        backwards: bool = False,
    ) -> list[np.ndarray]:
        """Contents of ``buffers`` after ``launches``, whose addresses are those of ``address_of``.

        ``pointers`` are (buffer, byte offset) of addresses inside buffers. ``backwards`` runs the threads last
        to first. Raises SanitizerError where the program does not end well.
        """
        paths = self.executable.with_suffix(".in"), self.executable.with_suffix(".out")
        numbers = [int(backwards), len(buffers), *(buffer.nbytes for buffer in buffers)]
        body = b"".join(buffer.tobytes() + b"\0" * (-buffer.nbytes % 8) for buffer in buffers)
        tail = [len(pointers), *(number for pair in pointers for number in pair), len(launches)]
        for launch in launches:
            tail += [self.kernels.index(launch.kernel), *launch.grid, *launch.block, len(launch.arguments)]
            tail += [int(argument) for argument in launch.arguments]
        paths[0].write_bytes(np.array(numbers, np.int64).tobytes() + body + np.array(tail, np.int64).tobytes())
        done = subprocess.run([self.executable, *paths], capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            raise SanitizerError(done.stderr)
        assert done.stderr == ""
        content = paths[1].read_bytes()
        ends = np.cumsum([buffer.nbytes for buffer in buffers])
        return [
            np.frombuffer(content[end - buffer.nbytes : end], buffer.dtype).reshape(buffer.shape)
            for buffer, end in zip(buffers, ends, strict=True)
        ]


@pytest.fixture(scope="session")
def host_program(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], HostProgram]:
    """Builder of a HostProgram from CUDA C++; the test is skipped where g++ is not installed."""
    if shutil.which("g++") is None:
        pytest.skip("no g++ here: kernels cannot be run on the host")

    def build(source: str) -> HostProgram:
        folder = tmp_path_factory.mktemp("kernel")
        (folder / "kernel.cu").write_text(source)
        kernels = re.findall(r"__global__ void (\w+)\(", source)
        command = ["g++", *FLAGS, f'-DKERNEL_FILE="{folder / "kernel.cu"}"']
        command += ["-DKERNELS=" + " ".join(f"KERNEL({kernel})" for kernel in kernels)]
        command += [f"-I{HERE}", str(HERE / "run_on_host.cpp"), "-o", str(folder / "program")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return HostProgram(folder / "program", kernels)

    return build
