"""Exceptions of vdali and the exit status that the command gives each.

::

    VdaliError                    1   anything below, or a failure of the machine (disk full, ...)
    ├── UsageError                2   words that make no sense together
    ├── InputNotFoundError        3   no sample found
    ├── DeviceError               4   a device or runtime that was asked for is missing
    │   └── MissingExtraError     4   a Python package of an extra is missing
    ├── ModelError                5   model unusable
    │   └── AgreementError        5   model disagrees with its reference
    ├── OutputError               6   OUT belongs to another run
    ├── TooManyFailuresError      7   more failures than allowed
    └── SampleError               -   loss of one sample; the pipeline turns it into a Failure
        ├── ReadError                 its bytes could not be had
        ├── DecodeError               its bytes are not a usable picture
        └── InferError                the engine gave nothing usable for it

Every message says what happened, what was found, and what to do.
"""

from __future__ import annotations

from typing import ClassVar


class VdaliError(Exception):
    """Base of all errors that vdali raises on purpose."""

    exit_status: ClassVar[int] = 1


class UsageError(VdaliError):
    """Options that make no sense, alone or together."""

    exit_status = 2


class InputNotFoundError(VdaliError):
    """An INPUT that does not exist or holds no sample."""

    exit_status = 3


class DeviceError(VdaliError):
    """A device or a runtime that was asked for and is missing."""

    exit_status = 4


class MissingExtraError(DeviceError):
    """A Python package that only an extra of vdali installs."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the Python package '{package}', which is not installed. "
            f"Install it with: pip install 'vdali[{extra}]'"
        )
        self.package = package
        self.extra = extra


class ModelError(VdaliError):
    """A model file that cannot be used."""

    exit_status = 5


class AgreementError(ModelError):
    """A model whose outputs differ too much from its reference."""


class OutputError(VdaliError):
    """An output folder that belongs to another run."""

    exit_status = 6


class TooManyFailuresError(VdaliError):
    """More failed samples than ``--max-failures`` or ``--strict`` allows."""

    exit_status = 7


class SampleError(VdaliError):
    """Loss of one sample: caught by the pipeline and recorded as a Failure.

    ``kind`` is a short stable word such as ``truncated``; ``retryable`` says whether the same
    sample may succeed later (a time-out) or not (a corrupt file).
    """

    stage: ClassVar[str] = "unknown"

    def __init__(self, kind: str, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.kind = kind
        self.retryable = retryable


class ReadError(SampleError):
    """Bytes that could not be read."""

    stage = "read"


class DecodeError(SampleError):
    """Bytes that are not a usable picture."""

    stage = "decode"


class InferError(SampleError):
    """A sample for which the engine gave nothing usable."""

    stage = "infer"
