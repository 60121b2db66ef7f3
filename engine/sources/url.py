"""Downloads with one deadline for everything: name look-up, connection, redirects, retries and every byte."""

from __future__ import annotations

import http.client
import socket
import ssl
import time
import urllib.parse

from ..errors import ReadError
from .connect import Connection
from .deadline import Deadline
from .ids import shown
from .url_options import UrlOptions

_REDIRECTS = frozenset([301, 302, 303, 307, 308])
_RETRYABLE_STATUS = frozenset([408, 425, 429])
_PART_BYTES = 1 << 16
_FIRST_PAUSE_S = 0.25
_HEADERS = {"User-Agent": "vdali", "Accept": "image/*,*/*;q=0.5", "Accept-Encoding": "identity"}


def read_url(url: str, options: UrlOptions) -> bytes:
    """Content of a URL: http and https here, all other schemes through fsspec.

    Raises ReadError of kind ``timeout``, ``connection``, ``dns``, ``tls``, ``http_404`` (or another
    status), ``too_many_redirects``, ``too_large``, ``incomplete``, ``bad_url``, or one that local files have.
    """
    if not _is_http(url):
        from .remote import read_remote  # fsspec is loaded only where one of its schemes is met

        return read_remote(url, options)
    deadline = Deadline(options.deadline_s)
    for tries in range(options.retries):
        try:
            return _read_http(url, options, deadline)
        except ReadError as error:
            pause = _FIRST_PAUSE_S * 2**tries
            if not error.retryable or not deadline.leaves(pause):
                raise
        time.sleep(pause)
    return _read_http(url, options, deadline)


def _is_http(url: str) -> bool:
    return url.partition(":")[0].lower() in ("http", "https")


def _read_http(url: str, options: UrlOptions, deadline: Deadline) -> bytes:
    at = url
    try:
        for _ in range(options.max_redirects + 1):
            with Connection(at, deadline) as connection:
                response = connection.get(_HEADERS)
                location = response.getheader("Location")
                if response.status not in _REDIRECTS or location is None:
                    return _body(response, url, options)
            at = urllib.parse.urljoin(at, location)
            if not _is_http(at):
                raise ReadError("bad_url", f"{shown(url)}: redirected to {shown(at)}, which is not http or https")
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _read_error_from(error, url, options) from error
    raise ReadError("too_many_redirects", f"{shown(url)}: redirected more than {options.max_redirects} times")


def _body(response: http.client.HTTPResponse, url: str, options: UrlOptions) -> bytes:
    status = response.status
    if status != http.client.OK:
        retryable = status >= 500 or status in _RETRYABLE_STATUS
        message = f"{shown(url)}: the server answers {status} {response.reason}"
        raise ReadError(f"http_{status}", message, retryable=retryable)
    parts: list[bytes] = []
    room = options.max_bytes
    if response.length is not None and response.length > room:
        raise _too_large(url, options)
    while part := response.read1(_PART_BYTES):
        parts.append(part)
        room -= len(part)
        if room < 0:
            raise _too_large(url, options)
    if response.length:  # what the server promised and did not send
        raise ReadError("incomplete", f"{shown(url)}: {response.length} bytes are missing at the end", retryable=True)
    return b"".join(parts)


def _too_large(url: str, options: UrlOptions) -> ReadError:
    return ReadError("too_large", f"{shown(url)}: more than the {options.max_bytes} bytes that are read")


def _read_error_from(error: Exception, url: str, options: UrlOptions) -> ReadError:
    where = shown(url)
    if isinstance(error, TimeoutError):
        return ReadError("timeout", f"{where}: not read within {options.deadline_s:g} s", retryable=True)
    if isinstance(error, socket.gaierror):
        return ReadError("dns", f"{where}: its host has no address now ({error.strerror})", retryable=True)
    if isinstance(error, ssl.SSLCertVerificationError):
        return ReadError("tls", f"{where}: its certificate is not accepted ({error.verify_message})")
    if isinstance(error, http.client.IncompleteRead):
        return ReadError("incomplete", f"{where}: the connection ended inside the content", retryable=True)
    if isinstance(error, http.client.InvalidURL) or not isinstance(error, OSError | http.client.HTTPException):
        return ReadError("bad_url", f"{where}: {error}")
    return ReadError("connection", f"{where}: {error or type(error).__name__}", retryable=True)
