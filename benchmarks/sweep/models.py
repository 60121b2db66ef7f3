"""A model at each precision and resolution of a sweep; one that cannot be had is the reason of a failed cell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ...engine.errors import ModelError, VdaliError
from ...engine.spec import ModelSpec, Precision
from ...export.store import resolve_model
from ..systems.network import spec_of
from .model import Gate, Size, SweepOptions, text_of_size


@dataclass(frozen=True, slots=True)
class ModelAt:
    """A model file, and what the gate said of its precision."""

    path: Path
    gate: Gate


class SweepModels:
    """Files of one model by precision and size, exported and converted when they are first asked for.

    ``base`` is the fp32 file at the model's own ``size``, or the file that was given. Raises what ``resolve_model``
    raises when the model cannot be had at all.
    """

    def __init__(self, options: SweepOptions, say: Callable[[str], None]) -> None:
        self._options = options
        self._say = say
        self._found: dict[tuple[Precision, Size | None], ModelAt | VdaliError] = {}
        self._is_file = Path(options.model).suffix == ".onnx"
        self.base = self._path(Precision.FP32, None)
        self.spec: ModelSpec = spec_of(self.base)
        self.size: Size = self.spec.preprocess.size

    def at(self, precision: Precision, size: Size) -> ModelAt:
        """File at ``precision`` for pictures of ``size`` (height, width).

        Raises VdaliError that says why there is none, the same one each time.
        """
        found = self._found.get((precision, size))
        if found is None:
            found = self._found[precision, size] = self._tried(precision, size)
        if isinstance(found, VdaliError):
            raise found
        return found

    def _tried(self, precision: Precision, size: Size) -> ModelAt | VdaliError:
        try:
            return self._resolved(precision, size if size != self.size else None)
        except VdaliError as error:
            return error
        except Exception as error:  # whatever a network makes of another size is a row of the sweep
            text = " ".join(str(error).split())
            return ModelError(f"{self.spec.name} does not work at {text_of_size(size)}: {type(error).__name__}: {text}")

    def _resolved(self, precision: Precision, crop: Size | None) -> ModelAt:
        if crop is not None and self._is_file:
            raise ModelError(
                f"{self._options.model} takes {text_of_size(self.size)} pixels, and a file cannot be given another "
                "size. Give the model by name, or export it with --crop."
            )
        path = self._path(precision, crop)
        found = spec_of(path).precision
        if found is not precision:
            raise ModelError(f"{path} is {found} and cannot be made {precision}. Give the fp32 file, or the name.")
        if precision is Precision.FP32:
            return ModelAt(path, Gate.REFERENCE)
        given = self._is_file and path == Path(self._options.model)
        return ModelAt(path, Gate.UNKNOWN if given else Gate.PASSED)

    def _path(self, precision: Precision, crop: Size | None) -> Path:
        return resolve_model(
            self._options.model,
            precision=precision,
            task=self._options.task if not self._is_file else None,
            weights=self._options.weights,
            crop=crop,
            report=self._say,
        )
