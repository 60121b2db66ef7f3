"""The least that must hold on a machine with a GPU before anything else is believed there."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
from PIL import Image
from vdali.engine.gpu_probe import probe_gpu
from vdali.engine.preprocess import Preprocess

from tests.models import mean_colour_model, tiny_classifier

ORIENTATION = 0x0112
"""EXIF tag."""

pytestmark = pytest.mark.gpu


def smooth_jpeg(seed: int, width: int, height: int, subsampling: int, orientation: int) -> bytes:
    """A JPEG of a few random colours, blended: real chroma edges, nothing that only noise would show."""
    blobs = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    picture = Image.fromarray(blobs).resize((width, height), Image.Resampling.BICUBIC)
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=92, subsampling=subsampling, exif=exif)
    return buffer.getvalue()


def test_the_probe_describes_the_gpu():
    found = probe_gpu()
    assert found.count >= 1
    assert found.driver
    assert float(found.cuda) >= 12
    for gpu in found.gpus:
        assert gpu.name
        assert gpu.memory_bytes > 1 << 30
        assert re.fullmatch(r"\d+\.\d", gpu.compute_capability)


def test_the_doctor_finds_the_gpu_and_a_cuda_provider_that_loads():
    from vdali.engine.doctor.examination import examine

    report = examine()
    provider = next(check for check in report.checks if check.name == "CUDA provider")
    assert provider.status == "ok", provider.found
    assert report.verdict.device == "cuda:0"


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_onnxruntime_on_cuda_gives_the_embeddings_of_the_cpu(tmp_path, batch):
    from vdali.engine.backends.load import load_engine

    model = mean_colour_model(tmp_path / "mean.onnx", size=(32, 48))
    pixels = np.random.default_rng(batch).integers(0, 256, (batch, 32, 48, 3), dtype=np.uint8)
    cpu = load_engine(model, device="cpu").engine
    cuda = load_engine(model, device="cuda:0").engine
    assert cuda.name == "onnxruntime:CUDAExecutionProvider"
    wanted, got = cpu.infer(pixels)["embedding"], cuda.infer(pixels)["embedding"]
    assert got.shape == (batch, 3)
    np.testing.assert_allclose(got, wanted, atol=1e-2)


def test_onnxruntime_on_cuda_gives_the_labels_of_the_cpu(tmp_path):
    from vdali.engine.backends.load import load_engine

    model = tiny_classifier(tmp_path / "classes.onnx")
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 16, 3), dtype=np.uint8)
    wanted = load_engine(model, device="cpu").engine.infer(pixels)
    got = load_engine(model, device="cuda:0").engine.infer(pixels)
    np.testing.assert_array_equal(got["top_labels"][:, 0], wanted["top_labels"][:, 0])
    np.testing.assert_allclose(got["top_scores"], wanted["top_scores"], atol=1e-3)


@pytest.mark.parametrize("subsampling", [0, 2], ids=["4:4:4", "4:2:0"])
@pytest.mark.parametrize("orientation", [1, 6])
def test_the_dali_graph_gives_on_the_gpu_what_it_gives_on_the_cpu(subsampling, orientation):
    pictures = [smooth_jpeg(seed, 320 + 16 * seed, 240, subsampling, orientation) for seed in range(4)]
    cpu, mixed = dali_pixels(pictures, "cpu"), dali_pixels(pictures, "mixed")
    assert mixed.shape == cpu.shape == (4, 96, 96, 3)
    assert np.abs(mixed.astype(int) - cpu.astype(int)).mean(axis=(1, 2, 3)).max() <= 1.0


def dali_pixels(pictures: list[bytes], device: str) -> np.ndarray:
    """Pictures as uint8 [n, 96, 96, 3] from the decoders' own graph, fed as they feed it, on ``cpu`` or ``mixed``."""
    from vdali.engine.decoders.dali import built_graph
    from vdali.engine.decoders.dali_jobs import feed, job_of

    spec = Preprocess(size=(96, 96), resize=(110, 110))
    ordinal = 0 if device == "mixed" else None
    pipeline = built_graph(device, spec, max_batch=len(pictures), threads=1, ordinal=ordinal)
    jobs = [job_of(picture, spec, max_pixels=1 << 24) for picture in pictures]
    assert all(jobs)
    feed(pipeline, jobs, spec)
    (outputs,) = pipeline.run()
    if device == "mixed":
        outputs = outputs.as_cpu()
    return np.array(outputs.as_tensor())
