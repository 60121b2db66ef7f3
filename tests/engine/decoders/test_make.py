"""Names to decoders, and what is loaded for it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from decoding import SPECS
from vdali.engine.decoders import DecodeOptions, DecoderName, make_decoder
from vdali.engine.errors import DeviceError

SPEC = SPECS["shorter bilinear"]


@pytest.mark.parametrize(
    ("name", "wanted"), [("auto", "turbo"), ("turbo", "turbo"), ("pillow", "pillow"), ("dali", "dali")]
)
def test_a_name_gives_its_decoder_and_auto_is_turbo(name, wanted):
    decoder = make_decoder(DecoderName(name), SPEC, DecodeOptions(), max_batch=2)
    assert decoder.name == wanted
    decoder.close()


def test_importing_the_decoders_loads_no_decoder_package():
    heavy = "PIL", "nvidia", "simplejpeg", "cykooz_resizer", "pillow_heif", "pillow_jxl"
    code = f"import sys, vdali.engine.decoders; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_turbo_and_pillow_need_no_dali():
    code = (
        "import sys; sys.modules['nvidia'] = None\n"
        "from vdali.engine.decoders import *\n"
        "from vdali.engine.preprocess import Preprocess\n"
        "for name in (DecoderName.TURBO, DecoderName.PILLOW):\n"
        "    print(make_decoder(name, Preprocess((8, 8), (8, 8)), DecodeOptions(), max_batch=1).name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["turbo", "pillow"]


@pytest.mark.parametrize(("name", "package"), [("turbo", "simplejpeg"), ("dali", "nvidia.dali")])
def test_a_missing_package_is_named(name, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"vdali.engine.decoders.{name}", raising=False)
    with pytest.raises(DeviceError, match=package):
        make_decoder(DecoderName(name), SPEC, DecodeOptions(), max_batch=1)
