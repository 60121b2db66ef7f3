"""The pictures of the PyTorch and DALI systems are those of the spec, whatever its mode."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from vdali.benchmarks.data import make_jpegs
from vdali.benchmarks.systems.interface import SystemOptions
from vdali.benchmarks.systems.loaders import VdaliLoader
from vdali.benchmarks.systems.torch_photos import pil_photo, tensor_photo
from vdali.engine.batch import Encoded
from vdali.engine.decoders.interface import DecodeOptions
from vdali.engine.decoders.pillow import PillowDecoder
from vdali.engine.errors import DecodeError, ModelError
from vdali.engine.preprocess import Exif, Interpolation, PadPosition, Preprocess, ResizeMode

pytest.importorskip("torchvision")
pytestmark = pytest.mark.filterwarnings("ignore:The image decoding and encoding:DeprecationWarning")

SHORTER = Preprocess(size=(64, 64), resize=(73, 73))
SPECS = {
    "shorter": SHORTER,
    "squash": Preprocess(size=(48, 80), resize=(48, 80), mode=ResizeMode.SQUASH, interpolation=Interpolation.BICUBIC),
    "longest": Preprocess(size=(64, 64), resize=(64, 64), mode=ResizeMode.LONGEST, fill=(10, 20, 30)),
    "corner": Preprocess(size=(64, 64), resize=(64, 64), mode=ResizeMode.LONGEST, pad=PadPosition.CORNER),
    "upright": Preprocess(size=(64, 64), resize=(73, 73), exif=Exif.IGNORE),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Photos of odd sizes, one of them turned by EXIF."""
    folder = tmp_path_factory.mktemp("photos")
    photos = make_jpegs(folder, count=5, width=201, height=149)
    turned = folder / "turned.jpg"
    with Image.open(photos[0]) as image:
        exif = image.getexif()
        exif[0x0112] = 6
        image.save(turned, quality=95, exif=exif)
    return [*photos, turned]


def reference(files: list[Path], spec: Preprocess) -> np.ndarray:
    out = np.empty((len(files), *spec.size, 3), np.uint8)
    batch = PillowDecoder(spec, DecodeOptions()).decode([Encoded(str(path), path.read_bytes()) for path in files], out)
    assert not batch.failures
    return batch.pixels


def difference(a: np.ndarray, b: np.ndarray) -> float:
    """Mean difference in levels of the picture where it is largest."""
    return float(np.abs(a.astype(int) - b.astype(int)).mean(axis=(1, 2, 3)).max())


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_pil_through_torchvision_gives_the_pixels_of_the_spec(files: list[Path], spec: Preprocess):
    pixels = np.stack([np.asarray(pil_photo(path, spec)) for path in files])
    assert difference(pixels, reference(files, spec)) == 0


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_tensors_through_torchvision_give_nearly_the_pixels_of_the_spec(files: list[Path], spec: Preprocess):
    pixels = np.stack([tensor_photo(path, spec).permute(1, 2, 0).numpy() for path in files])
    assert difference(pixels, reference(files, spec)) < 0.5


@pytest.mark.parametrize("name", ["shorter", "squash", "upright"])
def test_dali_gives_nearly_the_pixels_of_the_spec_in_every_pass(files: list[Path], name: str):
    pytest.importorskip("nvidia.dali")
    from vdali.benchmarks.systems.dali_photos import DaliPhotos

    photos = DaliPhotos(files, SPECS[name], SystemOptions(batch_size=4, cpus=2))
    for _ in range(2):
        batches = [(np.array(batch.as_tensor()), started_s) for batch, started_s in photos.batches()]
        assert [len(pixels) for pixels, _ in batches] == [4, 2]
        assert batches[0][1] < batches[1][1]
        pixels = np.concatenate([pixels for pixels, _ in batches])
        assert difference(pixels, reference(files, SPECS[name])) < 0.5


def test_dali_refuses_a_spec_that_pads(files: list[Path]):
    pytest.importorskip("nvidia.dali")
    from vdali.benchmarks.systems.dali_photos import DaliPhotos

    with pytest.raises(ModelError, match="without padding"):
        DaliPhotos(files, SPECS["longest"], SystemOptions(batch_size=4, cpus=2))


@pytest.mark.parametrize("lanes", [1, 3])
def test_lanes_of_vdalis_loader_fill_every_row(files: list[Path], lanes: int):
    loader = VdaliLoader(files * 5, SHORTER, lanes=lanes)
    assert difference(loader.run()["pixels"], reference(files * 5, SHORTER)) < 0.5
    loader.close()


def test_a_photo_that_cannot_be_read_or_decoded_fails_vdalis_loader(files: list[Path], tmp_path: Path):
    damaged = tmp_path / "damaged.jpg"
    damaged.write_bytes(files[0].read_bytes()[:500])
    with pytest.raises(DecodeError, match=r"damaged\.jpg"):
        VdaliLoader([*files, damaged], SHORTER, lanes=2).run()
    with pytest.raises(FileNotFoundError):
        VdaliLoader([*files, tmp_path / "missing.jpg"], SHORTER, lanes=2).run()
