"""Connections that keep a deadline, directly or through the proxy that the environment names."""

from __future__ import annotations

import base64
import http.client
import io
import socket
import ssl
import urllib.parse
import urllib.request
from functools import cache
from typing import Self

from .deadline import Deadline


class Connection:
    """An HTTP connection to the server of one URL, over a socket on which every wait ends at the deadline.

    Raises OSError, HTTPException or ValueError, as http.client does; use it as a context manager.
    """

    def __init__(self, url: str, deadline: Deadline) -> None:
        self._parts = urllib.parse.urlsplit(url)
        self._host = _ascii_host(self._parts)
        self._is_tls = self._parts.scheme.lower() == "https"
        self._port = self._parts.port or (443 if self._is_tls else 80)
        self._deadline = deadline
        self._proxy = _proxy_for(self._parts.scheme.lower(), self._host)
        self._socket: socket.socket | None = None

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        if self._socket is not None:
            self._socket.close()

    def get(self, headers: dict[str, str]) -> http.client.HTTPResponse:
        """Response to a GET of the URL, its body unread."""
        parts = self._parts
        target = _quoted(parts.path or "/") + (f"?{_quoted(parts.query)}" if parts.query else "")
        if self._proxy is not None and not self._is_tls:
            target = f"http://{self._authority()}{target}"
            headers = headers | _proxy_headers(self._proxy)
        return self._request("GET", target, {"Host": self._authority(), "Connection": "close", **headers})

    def _open(self) -> None:
        proxy = self._proxy
        host, port = (proxy.hostname or "", proxy.port or 80) if proxy is not None else (self._host, self._port)
        self._socket = _connected(host, port, self._deadline)
        if self._is_tls:
            if proxy is not None:
                self._open_tunnel(proxy)
            self._socket.settimeout(self._deadline.left())
            self._socket = _tls_context().wrap_socket(self._socket, server_hostname=self._host)

    def _authority(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return host if self._parts.port is None else f"{host}:{self._port}"

    def _open_tunnel(self, proxy: urllib.parse.SplitResult) -> None:
        target = f"{self._host}:{self._port}"
        response = self._request("CONNECT", target, {"Host": target, **_proxy_headers(proxy)})
        if response.status != http.client.OK:
            raise ConnectionError(f"the proxy {proxy.hostname} answers {response.status} {response.reason}")

    def _request(self, method: str, target: str, headers: dict[str, str]) -> http.client.HTTPResponse:
        assert self._socket is not None
        connection = http.client.HTTPConnection(self._host)
        connection.sock = _DeadlineSocket(self._socket, self._deadline)
        connection.request(method, target, headers=headers)
        return connection.getresponse()


class _DeadlineSocket:
    """What http.client uses of a socket; its owner closes the real one."""

    def __init__(self, real: socket.socket, deadline: Deadline) -> None:
        self._real = real
        self._deadline = deadline

    def sendall(self, data: bytes) -> None:
        self._real.settimeout(self._deadline.left())
        self._real.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        assert mode == "rb"
        return io.BufferedReader(_DeadlineReader(self._real, self._deadline))

    def close(self) -> None:
        """Leave the real socket open: http.client calls this while its response is still to be read."""


class _DeadlineReader(io.RawIOBase):
    def __init__(self, real: socket.socket, deadline: Deadline) -> None:
        self._real = real
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # BufferedReader gives no other
        self._real.settimeout(self._deadline.left())
        return self._real.recv_into(buffer)


def _connected(host: str, port: int, deadline: Deadline) -> socket.socket:
    addresses = deadline.call(lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    problem: OSError = OSError(f"no address of {host}")
    for place, (family, kind, protocol, _, address) in enumerate(addresses):
        attempt = socket.socket(family, kind, protocol)
        try:
            attempt.settimeout(deadline.left() / (len(addresses) - place))  # a dead address leaves time for the next
            attempt.connect(address)
        except OSError as error:
            attempt.close()
            problem = error
        else:
            return attempt
    raise problem


def _ascii_host(parts: urllib.parse.SplitResult) -> str:
    if not parts.hostname:
        raise ValueError("names no host")
    return parts.hostname if parts.hostname.isascii() else parts.hostname.encode("idna").decode()


def _quoted(text: str) -> str:
    """Text with spaces, accents and the like percent-encoded, and all that has a meaning in a URL left alone."""
    return urllib.parse.quote(text.encode("utf-8", "surrogateescape"), safe="%/:=&?~+!$,;'@()*[]")


def _proxy_for(scheme: str, host: str) -> urllib.parse.SplitResult | None:
    address = urllib.request.getproxies().get(scheme)
    if not address or urllib.request.proxy_bypass(host):
        return None
    return urllib.parse.urlsplit(address if "://" in address else f"http://{address}")


def _proxy_headers(proxy: urllib.parse.SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    login = f"{urllib.parse.unquote(proxy.username)}:{urllib.parse.unquote(proxy.password or '')}"
    return {"Proxy-Authorization": "Basic " + base64.b64encode(login.encode()).decode()}


@cache
def _tls_context() -> ssl.SSLContext:
    return ssl.create_default_context()
