"""vdali: batch vision inference, from millions of encoded images to embeddings, labels and masks.

``run`` is the whole job in one call. The parts are here too, each behind one interface: a source yields
samples, a decoder turns their bytes into one uint8 batch, an engine infers it, a sink keeps each result once.
Importing this package loads none of the runtimes; each is loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import run
    from .engine.backends.load import load_engine
    from .engine.batch import Failure, Rows, Sample
    from .engine.decoders.interface import DecodeOptions
    from .engine.decoders.make import make_decoder
    from .engine.errors import VdaliError
    from .engine.preprocess import Preprocess
    from .engine.sinks.open import open_sink
    from .engine.sinks.run_dir import RunDirectory
    from .engine.sources.open import open_source
    from .engine.spec import ModelSpec
    from .export.model import export_model

from .engine.version import __version__

__all__ = [
    "DecodeOptions",
    "Failure",
    "ModelSpec",
    "Preprocess",
    "Rows",
    "RunDirectory",
    "Sample",
    "VdaliError",
    "__version__",
    "export_model",
    "load_engine",
    "make_decoder",
    "open_sink",
    "open_source",
    "run",
]

_HOMES = {
    "DecodeOptions": ".engine.decoders.interface",
    "Failure": ".engine.batch",
    "ModelSpec": ".engine.spec",
    "Preprocess": ".engine.preprocess",
    "Rows": ".engine.batch",
    "RunDirectory": ".engine.sinks.run_dir",
    "Sample": ".engine.batch",
    "VdaliError": ".engine.errors",
    "export_model": ".export.model",
    "load_engine": ".engine.backends.load",
    "make_decoder": ".engine.decoders.make",
    "open_sink": ".engine.sinks.open",
    "open_source": ".engine.sources.open",
    "run": ".api",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'vdali' has no attribute '{name}'")
    value = getattr(import_module(home, __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
