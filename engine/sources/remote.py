"""Files of remote file systems (s3://, gs://, hf://, memory:// and others), through fsspec."""

from __future__ import annotations

import fsspec

from ..errors import ReadError
from .deadline import Deadline
from .files import is_retryable, kind_of, reason_of
from .ids import shown
from .url_options import UrlOptions


def read_remote(url: str, options: UrlOptions) -> bytes:
    """Content of a remote file; raises ReadError."""
    try:
        data = Deadline(options.deadline_s).call(lambda: _content(url, options.max_bytes))
    except TimeoutError as error:
        message = f"{shown(url)}: not read within {options.deadline_s:g} s"
        raise ReadError("timeout", message, retryable=True) from error
    except ImportError as error:
        raise ReadError("missing_package", f"{shown(url)}: {error}") from error
    except OSError as error:
        raise _os_read_error_from(error, url) from error
    except ValueError as error:  # no such protocol
        raise ReadError("bad_url", f"{shown(url)}: {error}") from error
    except Exception as error:  # each file system raises types of its own, of which none is known here
        raise ReadError("io_error", f"{shown(url)}: {error!r}", retryable=True) from error
    if len(data) > options.max_bytes:
        raise ReadError("too_large", f"{shown(url)}: more than the {options.max_bytes} bytes that are read")
    return data


def _os_read_error_from(error: OSError, url: str) -> ReadError:
    kind, retryable = kind_of(error), is_retryable(error)
    # remote file systems raise these two without a number
    if isinstance(error, FileNotFoundError):
        kind, retryable = "not_found", False
    elif isinstance(error, PermissionError):
        kind, retryable = "permission", False
    return ReadError(kind, f"{shown(url)}: {reason_of(error)}", retryable=retryable)


def _content(url: str, max_bytes: int) -> bytes:
    with fsspec.open(url, "rb") as file:
        data: bytes = file.read(max_bytes + 1)
    return data
