"""Exceptions of the kernels.

::

    KernelError                what the kernels raise on purpose
    └── KernelCompileError     NVRTC is missing or refused a source

The kernels know nothing of the engine, whose DeviceError wraps these on the way to the command.
"""

from __future__ import annotations


class KernelError(Exception):
    """Base of all errors that the kernels raise on purpose."""


class KernelCompileError(KernelError):
    """No machine code for this GPU: the message holds NVRTC's log with its line numbers."""
