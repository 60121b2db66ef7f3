"""DALI's GPU half without a GPU: what a bad picture costs a batch, and who says which one it was.

Pictures, DALI and nvImageCodec are real and on the CPU; only the device that they deliver to is played.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from decoding import SPECS, encode, mean_difference, orientation_exif, photo
from fake_cuda import FakeCudaRuntime
from fake_gpu import FakeMixedPipeline, FakeOutputs
from vdali.engine.batch import Encoded
from vdali.engine.cuda.device import CudaDevice
from vdali.engine.decoders.dali import DaliDecoder, built_graph
from vdali.engine.decoders.dali_gpu import DaliGpuDecoder
from vdali.engine.decoders.dali_jobs import feed, in_runs, job_of
from vdali.engine.decoders.device_interface import DeviceBatch, DeviceDecoder
from vdali.engine.decoders.host_decoders import HostDecoders, UploadingDecoder
from vdali.engine.decoders.interface import DecodeOptions
from vdali.engine.decoders.make import DecoderName, make_decoder
from vdali.engine.decoders.make_on_device import make_device_decoder
from vdali.engine.decoders.picture_check import PictureCheck
from vdali.engine.errors import DeviceError
from vdali.engine.gpu_probe import probe_gpu
from vdali.engine.preprocess import Preprocess

SPEC = SPECS["shorter bilinear"]
BATCH = 8
POISON = 0xA5


@pytest.fixture
def runtime():
    return FakeCudaRuntime()


@pytest.fixture
def device(runtime):
    device = CudaDevice(0, runtime=runtime)
    yield device
    device.close()


@pytest.fixture
def pool():
    with ThreadPoolExecutor(2) as pool:
        yield pool


class Gpu:
    """A decoder for the played GPU, and the rows that it leaves there. ``pipelines`` are all that it has made."""

    def __init__(self, device: CudaDevice, runtime: FakeCudaRuntime, pool: ThreadPoolExecutor, spec=SPEC) -> None:
        self._device, self._runtime, self._spec = device, runtime, spec
        self._stream = device.new_stream("in")
        self._options = DecodeOptions()
        self._host = HostDecoders(lambda: make_decoder(DecoderName.TURBO, spec, self._options, max_batch=1), 2, pool)
        self.pipelines: list[Any] = []
        self._decoders: list[DaliGpuDecoder] = []
        self.decoder = self.new_decoder(self._new_pipeline)

    def new_decoder(self, new_pipeline: Any) -> DaliGpuDecoder:
        decoder = DaliGpuDecoder(
            self._spec,
            self._options,
            self._device,
            self._host,
            max_batch=BATCH,
            new_pipeline=new_pipeline,
            check=PictureCheck(None),
        )
        self._decoders.append(decoder)
        return decoder

    def _new_pipeline(self) -> FakeMixedPipeline:
        graph = built_graph("cpu", self._spec, max_batch=BATCH, threads=1, ordinal=None)
        self.pipelines.append(FakeMixedPipeline(graph, self._device, self._runtime))
        return self.pipelines[-1]

    def decode(self, files: dict[str, bytes], decoder: DeviceDecoder | None = None) -> tuple[DeviceBatch, np.ndarray]:
        """Batch and its rows, out of memory that is poisoned before."""
        decoder = decoder or self.decoder
        samples = [Encoded(key, data) for key, data in files.items()]
        shape = (max(len(samples), 1), *self._spec.size, 3)
        staged = self._device.allocate_pinned(shape, np.uint8)
        pixels = self._device.allocate(shape, np.uint8)
        self._runtime.array(pixels).fill(POISON)
        staged.fill(POISON)
        found: list[Any] = []

        def work() -> None:
            try:
                found.append(decoder.start(decoder.prepare(samples, staged), staged, pixels, stream=self._stream))
            except BaseException as error:
                found.append(error)

        self._stream.submit(work)
        self._stream.synchronize()
        (batch,) = found
        if isinstance(batch, BaseException):
            raise batch
        content = self._runtime.array(pixels).copy()
        batch.held.clear()
        assert (content[len(batch) :] == POISON).all()
        return batch, content[: len(batch)]

    def close(self) -> None:
        for decoder in self._decoders:
            decoder.close()
        self._stream.close()


@pytest.fixture
def gpu(device, runtime, pool):
    gpu = Gpu(device, runtime, pool)
    yield gpu
    gpu.close()


def whole(count: int) -> dict[str, bytes]:
    return {f"good {i}": encode(photo(100 + 10 * i, 90, seed=i)) for i in range(count)}


def refused_by_dali() -> bytes:
    """A JPEG that Pillow reads and DALI does not: junk between two markers."""
    data = encode(photo(100, 80))
    quantization = data.index(b"\xff\xdb")
    return data[:quantization] + b"junk!" + data[quantization:]


def broken() -> bytes:
    """A JPEG that looks whole from outside and that nobody reads: its Huffman tables are gone."""
    data = encode(photo(100, 80))
    start = data.index(b"\xff\xc4") + 4
    return data[:start] + b"\xff" * 20 + data[start + 20 :]


def not_for_dali() -> dict[str, bytes]:
    """Pictures that never go to the GPU: other formats, CMYK, too small."""
    return {
        "png": encode(photo(120, 90), "PNG"),
        "cmyk": encode(photo(90, 70).convert("CMYK")),
        "tiny": encode(photo(20, 16)),
    }


@pytest.mark.parametrize("name", SPECS)
def test_rows_of_every_source_are_those_of_the_decoders_of_the_cpu(device, runtime, pool, name):
    gpu = Gpu(device, runtime, pool, SPECS[name])
    files = {f"turn {turn}": encode(photo(160, 120, seed=turn), exif=orientation_exif(turn)) for turn in (1, 3, 6)}
    files |= not_for_dali()
    files["last"] = encode(photo(99, 140))
    batch, rows = gpu.decode(files)
    assert [decoded.id for decoded in batch.decoded] == list(files)
    assert [decoded.decoder for decoded in batch.decoded] == [
        *["dali-gpu"] * 3, "pillow", "pillow", "turbo", "dali-gpu",
    ]  # fmt: skip
    assert (batch.decoded[2].width, batch.decoded[2].height) == (120, 160)
    dali = DaliDecoder(SPECS[name], DecodeOptions(), max_batch=BATCH)
    wanted = dali.decode([Encoded(*pair) for pair in files.items()], np.empty((7, *SPECS[name].size, 3), np.uint8))
    for row, decoded in enumerate(batch.decoded):
        if decoded.decoder == "dali-gpu":
            assert np.array_equal(rows[row], wanted.pixels[row])
        assert mean_difference(rows[row], wanted.pixels[row]) <= 0.5
    dali.close()
    gpu.close()


@pytest.mark.parametrize("position", [0, 3, 6])
@pytest.mark.parametrize(("bad", "ends_as"), [(refused_by_dali, "pillow"), (broken, "failure")])
def test_a_lost_batch_is_run_again_without_the_picture_that_lost_it(gpu, position, bad, ends_as):
    good = whole(6)
    _, wanted = gpu.decode(good)
    names = [*good]
    files = {name: good[name] for name in names[:position]} | {"bad": bad()} | good
    batch, rows = gpu.decode(files)
    by_id = {decoded.id: row for row, decoded in enumerate(batch.decoded)}
    assert [decoded.id for decoded in batch.decoded] == [name for name in files if name in by_id]
    for number, name in enumerate(names):
        assert np.array_equal(rows[by_id[name]], wanted[number])
        assert batch.decoded[by_id[name]].decoder == "dali-gpu"
    if ends_as == "failure":
        ((failure),) = batch.failures
        assert (failure.id, failure.stage, failure.retryable) == ("bad", "decode", False)
    else:
        assert batch.decoded[by_id["bad"]].decoder == "pillow"
        assert batch.failures == []
    assert len(gpu.pipelines) == 1
    assert gpu.pipelines[0].runs == 3  # the good ones, the lost run, the survivors
    assert np.array_equal(gpu.decode(good)[1], wanted)


def test_several_bad_pictures_are_all_found_at_once(gpu):
    good = whole(3)
    _, wanted = gpu.decode(good)
    batch, rows = gpu.decode({"a": broken(), **good, "b": broken(), "c": refused_by_dali()})
    assert [failure.id for failure in batch.failures] == ["a", "b"]
    assert [decoded.id for decoded in batch.decoded] == [*good, "c"]
    assert np.array_equal(rows[:3], wanted)
    assert gpu.pipelines[0].runs == 3


def test_a_batch_of_nothing_but_bad_pictures_and_an_empty_one_are_no_trouble(gpu):
    batch, _ = gpu.decode({"a": broken(), "b": broken()})
    assert [failure.id for failure in batch.failures] == ["a", "b"]
    batch, _ = gpu.decode({})
    assert (batch.decoded, batch.failures) == ([], [])


def test_outputs_that_lie_apart_are_copied_one_by_one(gpu, monkeypatch):
    files = whole(3) | {"png": encode(photo(90, 80), "PNG")} | {"last": encode(photo(77, 70))}
    _, wanted = gpu.decode(files)
    monkeypatch.setattr(FakeOutputs, "is_dense", False)
    assert np.array_equal(gpu.decode(files)[1], wanted)


class Stumbling:
    """A pipeline that loses so many runs, or every run of more than ``most`` pictures, and says ``words``."""

    def __init__(self, pipeline: FakeMixedPipeline, words: str, *, times: int = 0, most: int = BATCH) -> None:
        self._pipeline, self._words, self._times, self._most = pipeline, words, times, most
        self._fed = 0

    def feed_input(self, name: str, values: list[Any]) -> None:
        self._fed = len(values)
        self._pipeline.feed_input(name, values)

    def run(self, stream: Any) -> Any:
        if self._times > 0 or self._fed > self._most:
            self._times -= 1
            self._pipeline.lose_run()
            raise RuntimeError(self._words)
        return self._pipeline.run(stream)


def test_a_pipeline_that_stays_spoiled_is_made_anew(gpu):
    good = whole(4)
    _, wanted = gpu.decode(good)
    spoiled = iter([2, 0])
    decoder = gpu.new_decoder(lambda: Stumbling(gpu._new_pipeline(), "Unknown error", times=next(spoiled)))
    batch, rows = gpu.decode(good, decoder)
    assert np.array_equal(rows, wanted)
    assert [decoded.decoder for decoded in batch.decoded] == ["dali-gpu"] * 4
    assert len(gpu.pipelines) == 3
    assert np.array_equal(gpu.decode(good, decoder)[1], wanted)
    assert len(gpu.pipelines) == 3


def test_what_only_a_whole_run_stumbles_over_is_run_one_by_one(gpu, caplog):
    good = whole(4)
    _, wanted = gpu.decode(good)
    decoder = gpu.new_decoder(lambda: Stumbling(gpu._new_pipeline(), "nvImageCodec failure: '#2'", most=1))
    batch, rows = gpu.decode(good, decoder)
    assert np.array_equal(rows, wanted)
    assert len(batch) == 4
    assert "each is tried alone: nvImageCodec failure: '#2'" in caplog.text


def test_what_dali_never_takes_is_decoded_by_the_host(gpu):
    good = whole(3)
    decoder = gpu.new_decoder(lambda: Stumbling(gpu._new_pipeline(), "nvImageCodec failure: '#2'", most=0))
    batch, _ = gpu.decode(good, decoder)
    assert [decoded.decoder for decoded in batch.decoded] == ["turbo"] * 3


@pytest.mark.parametrize(
    "words",
    [
        "CUDA runtime API error cudaErrorIllegalAddress (700):\nan illegal memory access was encountered",
        "CUDA driver API error CUDA_ERROR_OUT_OF_MEMORY (2)",
        "CUDA allocation failed",
    ],
)
def test_a_failing_gpu_is_no_pictures_fault(gpu, words):
    decoder = gpu.new_decoder(lambda: Stumbling(gpu._new_pipeline(), words, times=1))
    with pytest.raises(DeviceError, match=r"^DALI failed on the GPU: CUDA .*Lower --batch-size if memory ran out; .*"):
        gpu.decode(whole(2), decoder)


def test_more_pixels_than_the_gpu_may_hold_are_split():
    jobs = [job_of(encode(photo(100, 80, seed=i)), SPEC, max_pixels=1 << 20) for i in range(7)]
    runs = list(in_runs(jobs, max_batch=3, max_pixels=1 << 20))
    assert [len(run) for run in runs] == [3, 3, 1]
    assert [len(run) for run in in_runs(jobs, max_batch=9, max_pixels=16_000)] == [2, 2, 2, 1]
    assert [len(run) for run in in_runs(jobs, max_batch=9, max_pixels=1)] == [1] * 7
    assert [job for run in runs for job in run] == jobs
    assert list(in_runs([], max_batch=3, max_pixels=9)) == []


def test_nvimagecodec_refuses_what_dali_refuses(shared_data):
    """Each JPEG of the awkward ones that would be sent to DALI, alone in a run, and asked for alone."""
    check = PictureCheck(None)
    graph = built_graph("cpu", SPEC, max_batch=1, threads=1, ordinal=None)
    files = {path.name: path.read_bytes() for path in sorted((shared_data / "awkward").iterdir())}
    files |= {"refused": refused_by_dali(), "broken": broken()}
    seen: dict[bool, int] = {False: 0, True: 0}
    for name, data in files.items():
        job = job_of(data, SPEC, max_pixels=1 << 25)
        if job is None:
            continue
        feed(graph, [job], SPEC)
        try:
            graph.run()
            lost = False
        except RuntimeError:
            lost = True
        assert check.refused([data]) == [lost], name
        seen[lost] += 1
    assert seen[True] >= 2
    assert seen[False] >= 10
    check.close()


def test_bad_pictures_are_told_without_nvimagecodecs_words_on_stderr(capfd):
    assert PictureCheck(None).refused([broken(), encode(photo(40, 40)), b"", b"text", refused_by_dali()]) == [
        True, False, True, True, True,
    ]  # fmt: skip
    assert "codec" not in capfd.readouterr().err


def test_decoders_of_the_host_alone_serve_a_gpu_too(device, runtime, pool, gpu):
    options = DecodeOptions()
    decoder = make_device_decoder(DecoderName.PILLOW, SPEC, options, device, pool, max_batch=BATCH, threads=2)
    assert isinstance(decoder, UploadingDecoder)
    files = {"bad": broken(), **whole(3), "cut": encode(photo(90, 90))[:500], **not_for_dali()}
    batch, rows = gpu.decode(files, decoder)
    assert [decoded.id for decoded in batch.decoded] == [*whole(3), *not_for_dali()]
    assert [failure.id for failure in batch.failures] == ["bad", "cut"]
    pillow = make_decoder(DecoderName.PILLOW, SPEC, options, max_batch=1)
    for row, decoded in enumerate(batch.decoded):
        wanted = pillow.decode([Encoded("one", files[decoded.id])], np.empty((1, *SPEC.size, 3), np.uint8))
        assert np.array_equal(rows[row], wanted.pixels[0])
    decoder.close()


@pytest.fixture
def no_gpu() -> None:
    if probe_gpu().count:
        pytest.skip("this machine has a GPU")


def test_dali_that_finds_no_gpu_is_a_plain_error(no_gpu, device, pool):
    """The real pipeline for a GPU is built here, and DALI's own refusal is what is told."""
    with pytest.raises(
        DeviceError, match=r"^Decoder 'dali' cannot use cuda:0: .*Use --decoder turbo, or run `vdali doctor`\.$"
    ):
        make_device_decoder(DecoderName.DALI, SPEC, DecodeOptions(), device, pool, max_batch=BATCH, threads=1)


def test_where_dali_cannot_be_had_auto_takes_the_host_and_says_why(no_gpu, device, pool, gpu, caplog):
    decoder = make_device_decoder(DecoderName.AUTO, SPEC, DecodeOptions(), device, pool, max_batch=BATCH, threads=2)
    assert decoder.name == "turbo"
    assert "DALI cannot use cuda:0: " in caplog.text
    batch, _ = gpu.decode(whole(3), decoder)
    assert [decoded.decoder for decoded in batch.decoded] == ["turbo"] * 3
    decoder.close()


def test_a_spec_without_the_exif_rule_or_with_padding_feeds_what_its_graph_reads(device, runtime, pool):
    spec = Preprocess((64, 96), (64, 96), mode=SPECS["longest center"].mode, exif=SPEC.exif)
    gpu = Gpu(device, runtime, pool, spec)
    batch, rows = gpu.decode(whole(3))
    assert rows.shape == (3, 64, 96, 3)
    assert len(batch) == 3
    gpu.close()
