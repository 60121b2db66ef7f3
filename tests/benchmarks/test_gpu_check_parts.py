"""The checks of `make gpu-check` on a GPU that is played: they pass where all is right, and tell what is not."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from fake_cuda import FakeCudaRuntime
from fake_gpu import FakeDeviceEngine, FakeMixedPipeline
from vdali.benchmarks.gpu_check import late_affine, part_dali, part_device, part_kernels
from vdali.benchmarks.gpu_check.engine_checks import engine_checks, lowest_cosine
from vdali.benchmarks.gpu_check.late_affine import expected
from vdali.benchmarks.gpu_check.network import SIZE, SPEC, WIDTH, weights, write_onnx
from vdali.benchmarks.gpu_check.record import Check, CheckFailedError, Found
from vdali.engine.backends.interface import DeviceEngine
from vdali.engine.backends.onnxruntime import OnnxRuntimeEngine
from vdali.engine.cuda.device import CudaDevice
from vdali.engine.decoders.dali import built_graph
from vdali.engine.decoders.dali_gpu import DaliGpuDecoder
from vdali.engine.decoders.host_decoders import HostDecoders
from vdali.engine.decoders.interface import DecodeOptions
from vdali.engine.decoders.make import DecoderName, make_decoder
from vdali.engine.decoders.picture_check import PictureCheck
from vdali.engine.preprocess import Preprocess
from vdali.engine.spec import ModelSpec, Task
from vdali.kernels.compile import compile_cubin
from vdali.kernels.launch import Launch
from vdali.kernels.mask_rle import mask_rle_reference
from vdali.kernels.resample import FILTERS, PICTURE_DTYPE, Picture, resample_reference


@pytest.fixture
def runtime():
    return FakeCudaRuntime()


@pytest.fixture
def device(runtime):
    device = CudaDevice(0, runtime=runtime)
    yield device
    device.close()


def run(check: Check) -> Found:
    found = check.work()
    assert all(np.isfinite(number) for number in found.numbers.values())
    return found


def named(checks: Sequence[Check], words: str) -> Check:
    return next(check for check in checks if words in check.name)


def patches(pixels: np.ndarray) -> np.ndarray:
    """Means of 7 x 7 fields: tells pictures apart."""
    fields = pixels.reshape(len(pixels), 7, SIZE // 7, 7, SIZE // 7, 3)
    return fields.mean(axis=(2, 4), dtype=np.float32).reshape(len(pixels), -1)


def fake_engine(device, runtime, function=patches, **options) -> FakeDeviceEngine:
    engine = FakeDeviceEngine(
        device, runtime, SPEC, lambda pixels: {"embedding": function(pixels)}, max_batch=64, **options
    )
    assert isinstance(engine, DeviceEngine)
    return engine


def test_an_engine_that_is_right_passes_all_its_checks(device, runtime):
    checks = engine_checks(lambda: fake_engine(device, runtime), patches, soak=20, repeat=4)
    found = {check.name: run(check) for check in checks}
    assert len(found) == 4
    speed = found["speed with pixels from memory"].numbers
    stages = ("read", "decode", "infer", "copy", "finish")
    slowest = min(speed[f"{stage}_samples_per_s"] for stage in stages)
    assert speed["overlap_efficiency"] == pytest.approx(speed["pipeline_samples_per_s"] / slowest)
    assert speed["compute_idle_share"] == pytest.approx(
        1 - speed["pipeline_samples_per_s"] / speed["infer_samples_per_s"]
    )


def test_an_engine_whose_rows_are_another_pictures_fails(device, runtime):
    checks = engine_checks(lambda: fake_engine(device, runtime, lambda p: patches(p)[::-1]), patches)
    with pytest.raises(CheckFailedError, match=r"is nearer to the CPU's row|has cosine"):
        run(named(checks, "sizes of batches"))


def test_an_engine_that_leaves_rows_unwritten_fails(device, runtime):
    class Lazy(FakeDeviceEngine):
        def new_context(self, stream: Any) -> Any:
            context = super().new_context(stream)
            enqueue = context.enqueue
            context.enqueue = lambda pixels, outputs, rows, **rest: enqueue(pixels, outputs, max(1, rows - 1), **rest)
            return context

    engine = Lazy(device, runtime, SPEC, lambda pixels: {"embedding": patches(pixels)}, max_batch=64)
    with pytest.raises(CheckFailedError, match="not finite"):
        run(named(engine_checks(lambda: engine, patches), "sizes of batches"))


def test_one_bit_of_one_batch_in_the_soak_is_seen(device, runtime):
    calls = itertools.count()

    def once_wrong(pixels: np.ndarray) -> np.ndarray:
        rows = patches(pixels)
        if len(pixels) > 1 and next(calls) == 16 + 29:  # 16 batches are run alone before
            rows.view(np.uint32)[3, 5] ^= 1
        return rows

    checks = engine_checks(lambda: fake_engine(device, runtime, once_wrong), patches, soak=40)
    with pytest.raises(CheckFailedError, match=r"^1 of 40 batches differ from the same ones run alone, first 29$"):
        run(named(checks, "overlapped"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda rows: rows[:2], r"expected rows \[3, 8\], found \[2, 8\]"),
        (lambda rows: np.where(np.arange(8) == 3, np.nan, rows), "3 of 24 values are not finite"),
        (lambda rows: rows[[1, 0, 2]], "row 0 is nearer to the CPU's row 1 than to its own"),
        (lambda rows: rows + 0.2 * rows[:, ::-1] * [[0], [1], [0]], "row 1 has cosine"),
    ],
)
def test_rows_that_are_not_the_cpus_are_told(change, words):
    rows = np.random.default_rng(0).normal(size=(3, 8))
    assert lowest_cosine(rows * 1.0001, rows) > 0.9999
    with pytest.raises(CheckFailedError, match=words):
        lowest_cosine(change(rows), rows)


def test_the_network_is_the_same_in_onnx_and_in_pytorch(tmp_path):
    from vdali.benchmarks.gpu_check.network_torch import cpu_rows
    from vdali.benchmarks.gpu_check.pictures import smooth_pixels

    engine = OnnxRuntimeEngine(write_onnx(tmp_path / "network.onnx"))
    pixels = smooth_pixels(4, SIZE)
    assert engine.spec == SPEC
    found = engine.infer(pixels)["embedding"]
    assert found.shape == (4, WIDTH)
    assert lowest_cosine(found, cpu_rows(pixels)) > 0.999999
    products = sum(layer.weight[0].size * len(layer.weight) for layer in weights().layers)
    assert products > 1_000_000


def late_affine_on(device: CudaDevice, runtime: FakeCudaRuntime, preprocess: Preprocess) -> FakeDeviceEngine:
    spec = ModelSpec("late_affine", Task.EMBED, preprocess, raw_output="embedding", weights="none")
    return FakeDeviceEngine(device, runtime, spec, lambda pixels: {"embedding": expected(pixels)}, max_batch=256)


def test_the_device_part_passes_on_a_gpu_that_keeps_its_order(device, runtime, monkeypatch):
    engine = late_affine_on(device, runtime, Preprocess((32, 32), (32, 32)))
    monkeypatch.setattr(part_device, "_engine", lambda: engine)
    monkeypatch.setattr(part_device, "_COPIED_BYTES", 1 << 16)
    monkeypatch.setattr(part_device, "measured", lambda *words, repeat: measured_less(*words))
    from vdali.benchmarks.gpu_check.lanes_alone import measured, overlapped_equals_alone

    def measured_less(*words: Any) -> Found:
        return measured(*words, repeat=20)

    monkeypatch.setattr(
        part_device,
        "overlapped_equals_alone",
        lambda *words, batches, batch: overlapped_equals_alone(*words, batches=50, batch=batch),
    )
    runtime.fails["cudaMallocFromPoolAsync"] = iter(())
    for check in part_device.checks():
        if "too much" not in check.name:  # memory of a played GPU has no end
            run(check)


def dali_on(
    device: CudaDevice, runtime: FakeCudaRuntime, spec: Preprocess, pool: ThreadPoolExecutor, batch: int
) -> Any:
    options = DecodeOptions()
    host = HostDecoders(lambda: make_decoder(DecoderName.TURBO, spec, options, max_batch=1), 2, pool)
    return DaliGpuDecoder(
        spec,
        options,
        device,
        host,
        max_batch=batch,
        new_pipeline=lambda: FakeMixedPipeline(
            built_graph("cpu", spec, max_batch=batch, threads=1, ordinal=None), device, runtime
        ),
        check=PictureCheck(None),
    )


@pytest.fixture
def dali(device, runtime, monkeypatch):
    monkeypatch.setattr(part_dali, "_device", lambda: device)
    monkeypatch.setattr(part_dali, "PictureCheck", lambda ordinal: PictureCheck(None))
    monkeypatch.setattr(
        part_dali, "_decoder", lambda spec, pool, *, batch=32: dali_on(device, runtime, spec, pool, batch)
    )
    monkeypatch.setattr(part_dali, "LateAffineEngine", lambda device, spec: late_affine_on(device, runtime, spec))
    monkeypatch.setattr(part_dali, "_SOAK_BATCHES", 24)
    monkeypatch.setattr(part_dali, "_SOAK_ROUNDS", 1)
    monkeypatch.setattr(part_dali, "_REPEAT", 2)
    return part_dali.checks()


def test_the_dali_part_passes_on_a_gpu_that_decodes_as_the_cpu_does(dali):
    found = {check.name: run(check) for check in dali}
    assert len(found) == 9
    assert found["pixels of the CPU twin, bilinear"].numbers == {"largest_mean_difference_levels": 0.0}


def test_a_gpu_that_decodes_otherwise_than_the_cpu_fails(dali, monkeypatch):
    decoded = part_dali._decoded

    def brighter(*words: Any) -> Any:
        batch, rows = decoded(*words)
        return batch, np.where(rows > 252, rows, rows + 2)

    monkeypatch.setattr(part_dali, "_decoded", brighter)
    with pytest.raises(CheckFailedError, match=r"picture \d+ differs by [12]\.\d+ levels"):
        run(named(dali, "bilinear"))


class KernelsByReference:
    """Does with the slow references what the kernels do: reads and writes at the addresses of a launch."""

    def __init__(self, runtime: FakeCudaRuntime, *, wrong: bool = False) -> None:
        self._runtime = runtime
        self._wrong = wrong

    def launch(self, launches: Sequence[Launch], *, stream: Any) -> None:
        first, second, last = launches
        if last.kernel == "resample_second_pass":
            self._runtime.enqueue(stream.handle, lambda: self._resample(last, int(first.arguments[2])))
        else:
            self._runtime.enqueue(stream.handle, lambda: self._mask_rle(last, int(second.arguments[2])))

    def _resample(self, last: Launch, filter_number: int) -> None:
        descriptors, _, batch, height, width, fill = (int(argument) for argument in last.arguments)
        rows = at(descriptors, last.grid[2] * PICTURE_DTYPE.itemsize).view(PICTURE_DTYPE)
        name = list(FILTERS)[filter_number]
        colour = (fill & 255, fill >> 8 & 255, fill >> 16)
        out = at(batch, len(rows) * height * width * 3).reshape(len(rows), height, width, 3)
        for row, picture in zip(out, rows, strict=True):
            row[...] = upright(picture, height, width, name, colour)
        if self._wrong:
            out[0, 0, 0, 0] ^= 4

    def _mask_rle(self, last: Launch, totals: int) -> None:
        masks, _, _, positions, values, count, height, width, binary, capacity = (int(a) for a in last.arguments)
        found = [
            mask_rle_reference(mask, bool(binary))
            for mask in at(masks, count * height * width).reshape(count, height, width)
        ]
        at(totals, 4 * count).view(np.int32)[...] = [len(runs.positions) for runs in found]
        starts = np.concatenate([runs.positions for runs in found])
        at(positions, 4 * len(starts)).view(np.int32)[...] = starts
        at(values, len(starts))[...] = np.concatenate([runs.values for runs in found])
        if self._wrong:
            at(values + capacity, 1)[...] = 1


def at(address: int, size: int) -> np.ndarray:
    return np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8)


def upright(picture: np.void, height: int, width: int, name: str, fill: tuple[int, int, int]) -> np.ndarray:
    """The reference on a descriptor, whose turn is in its steps."""
    step_x, step_y, origin = int(picture["step_x"]), int(picture["step_y"]), int(picture["origin"])
    columns, rows = int(picture["width"]), int(picture["height"])
    pixels = np.empty((rows, columns, 3), np.uint8)
    for y in range(rows):
        for x in range(columns):
            pixels[y, x] = at(origin + y * step_y + x * step_x, 3)
    sizes = (int(picture[field]) for field in ("resized_width", "resized_height", "left", "top"))
    plain = Picture(1, columns, rows, 3 * columns, 1, *sizes)
    return resample_reference(pixels, plain, height, width, name, fill)


@pytest.fixture
def kernels(device, runtime, monkeypatch):
    """Checks of the kernels; ``bench`` is what they run on."""
    monkeypatch.setattr(part_kernels, "CudaDevice", lambda ordinal: device)
    monkeypatch.setattr(part_kernels.CudaKernels, "from_file", classmethod(lambda *words: KernelsByReference(runtime)))
    bench = part_kernels._Bench()
    monkeypatch.setattr(part_kernels, "_bench", lambda: bench)
    yield bench, part_kernels.checks()
    bench.stream.close()


@pytest.mark.parametrize("words", ["compiled", "resample, bilinear", "resample, lanczos", "class ids", "binary"])
def test_kernels_that_do_what_their_references_do_pass(kernels, words):
    run(named(kernels[1], words))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("resample, bicubic", "up to 4 levels from the reference, 0 are allowed"),
        ("binary", "written behind its buffer"),
    ],
)
def test_kernels_that_do_not_are_told(kernels, runtime, words, told):
    bench, checks = kernels
    bench.resample = bench.mask_rle = KernelsByReference(runtime, wrong=True)
    with pytest.raises(CheckFailedError, match=told):
        run(named(checks, words))


def test_what_cannot_be_compiled_for_a_gpu_is_a_plain_error(device, runtime, tmp_path, monkeypatch):
    from vdali.engine.cuda.kernels import CudaKernels, architecture_of
    from vdali.engine.errors import DeviceError

    monkeypatch.setenv("VDALI_CACHE", str(tmp_path))
    assert architecture_of(device) == "sm_90"
    runtime.attributes["cudaDevAttrComputeCapabilityMajor"] = 3
    with pytest.raises(DeviceError, match=r"(?s)The kernels of toy.cu cannot be used on cuda:0.*for sm_30"):
        CudaKernels(device, 'extern "C" __global__ void toy() {}', "toy.cu")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
def test_the_kernel_of_the_checks_compiles(arch, tmp_path, monkeypatch):
    monkeypatch.setenv("VDALI_CACHE", str(tmp_path))
    cubin = compile_cubin(late_affine._SOURCE, "late_affine.cu", arch)
    assert b".text.late_affine\0" in cubin


@pytest.mark.parametrize("side", [32, 64, 224])
def test_what_the_kernel_gives_is_exact_in_float32(side):
    pixels = np.full((2, side, side, 3), 255, np.uint8)
    pixels[1] = np.random.default_rng(side).integers(0, 256, pixels[1].shape, np.uint8)
    chunk = side * side * 3 // late_affine.WIDTH
    wanted = pixels.reshape(2, late_affine.WIDTH, chunk).sum(axis=2, dtype=np.int64) * 3 + 2 * np.arange(
        late_affine.WIDTH
    )
    assert np.array_equal(expected(pixels).astype(np.float64) * 2, wanted)
