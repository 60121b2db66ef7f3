from __future__ import annotations

import http.server
import importlib.util
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import pytest
from vdali.engine.batch import Sample
from vdali.engine.errors import ReadError
from vdali.engine.sources import connect
from vdali.engine.sources.list import ListSource
from vdali.engine.sources.location import is_url
from vdali.engine.sources.open import open_source
from vdali.engine.sources.url import read_url
from vdali.engine.sources.url_options import UrlOptions

PICTURE = b"\xff\xd8\xff\xe0" + bytes(range(256)) * 400
QUICK = UrlOptions(deadline_s=1.0, max_bytes=1 << 20, max_redirects=3, retries=0)


class _Pages(http.server.BaseHTTPRequestHandler):
    """Answers as the first word of the path says."""

    def do_GET(self) -> None:
        self.server.seen.append(self.path)
        getattr(self, self.path.strip("/").split("/")[0].partition("?")[0].partition(".")[0], self.good)()

    def log_message(self, *args: object) -> None:
        pass

    def _send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in ({"Content_Length": str(len(body))} | headers).items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def good(self) -> None:
        self._send(200, PICTURE)

    def html(self) -> None:
        self._send(200, b"<html>sign in</html>", Content_Type="text/html")

    def moved(self) -> None:
        self._send(302, b"", Location="/good")

    def circle(self) -> None:
        self._send(302, b"", Location="/circle")

    def elsewhere(self) -> None:
        self._send(302, b"", Location="file:///etc/passwd")

    def missing(self) -> None:
        self._send(404, b"no")

    def busy(self) -> None:
        self._send(503, b"wait")

    def flaky(self) -> None:
        self._send(503 if self.server.seen.count(self.path) < 3 else 200, PICTURE)

    def large(self) -> None:
        self._send(200, bytes(QUICK.max_bytes + 1))

    def endless(self) -> None:
        self.send_response(200)
        self.end_headers()
        for _ in range(1000):
            self.wfile.write(bytes(1 << 16))

    def chunked(self) -> None:
        self.protocol_version = "HTTP/1.1"
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for start in range(0, len(PICTURE), 30_000):
            part = PICTURE[start : start + 30_000]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
        if "cut" not in self.path:
            self.wfile.write(b"0\r\n\r\n")

    def short(self) -> None:
        self._send(200, b"only this", Content_Length="500")

    def silent(self) -> None:
        self.server.stop.wait(20)

    def drip(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self._drip()

    def drip_headers(self) -> None:
        self.wfile.write(b"HTTP/1.0 200 OK\r\nX-Long: ")
        self._drip()

    def _drip(self) -> None:
        while not self.server.stop.wait(0.1):
            self.wfile.write(b"x")
            self.wfile.flush()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Pages)
        self.seen: list[str] = []
        self.stop = threading.Event()

    def handle_error(self, *args: object) -> None:
        """Clients go away in the middle here."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Server]:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = _Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield server
    server.stop.set()
    server.shutdown()
    thread.join()
    server.server_close()


def _url(server: _Server, path: str) -> str:
    return f"http://127.0.0.1:{server.server_port}/{path}"


def _error(server: _Server, path: str, options: UrlOptions = QUICK) -> ReadError:
    with pytest.raises(ReadError) as caught:
        read_url(_url(server, path), options)
    assert path in str(caught.value)
    return caught.value


@pytest.mark.parametrize("path", ["good", "moved", "chunked", "good/a b/é.jpg?x=ü", "good?a=1&b=%20"])
def test_a_url_gives_its_content(server: _Server, path: str):
    assert read_url(_url(server, path), QUICK) == PICTURE


def test_odd_characters_are_sent_percent_encoded(server: _Server):
    read_url(_url(server, "good/a b/é%20.jpg?x=ü&y=1"), QUICK)
    assert server.seen == ["/good/a%20b/%C3%A9%20.jpg?x=%C3%BC&y=1"]


def test_a_page_with_status_200_is_content_like_any_other(server: _Server):
    assert read_url(_url(server, "html"), QUICK) == b"<html>sign in</html>"


@pytest.mark.parametrize(
    ("path", "kind", "retryable"),
    [
        ("missing", "http_404", False),
        ("busy", "http_503", True),
        ("circle", "too_many_redirects", False),
        ("elsewhere", "bad_url", False),
        ("large", "too_large", False),
        ("endless", "too_large", False),
        ("short", "incomplete", True),
        ("chunked/cut", "incomplete", True),
        ("silent", "timeout", True),
        ("drip", "timeout", True),
        ("drip_headers", "timeout", True),
    ],
)
def test_each_trouble_has_its_kind_and_ends_in_time(server: _Server, path: str, kind: str, retryable: bool):
    start = time.monotonic()
    error = _error(server, path)
    assert (error.kind, error.retryable) == (kind, retryable)
    assert time.monotonic() - start < QUICK.deadline_s + 1.5


def test_what_may_pass_is_tried_again_and_what_may_not_is_not(server: _Server):
    options = UrlOptions(deadline_s=10, retries=2)
    assert read_url(_url(server, "flaky"), options) == PICTURE
    assert _error(server, "missing", options).kind == "http_404"
    assert _error(server, "busy", options).kind == "http_503"
    assert [server.seen.count(path) for path in ("/flaky", "/missing", "/busy")] == [3, 1, 3]


def test_retries_keep_the_deadline(server: _Server):
    start = time.monotonic()
    assert _error(server, "busy", UrlOptions(deadline_s=1, retries=50)).kind == "http_503"
    assert time.monotonic() - start < 2


def test_a_port_where_nobody_listens_is_a_connection_error():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ReadError) as caught:
        read_url(f"http://127.0.0.1:{port}/x.jpg", QUICK)
    assert (caught.value.kind, caught.value.retryable) == ("connection", True)


def test_a_host_without_address_is_worth_another_try():
    with pytest.raises(ReadError) as caught:
        read_url("http://no-such-host.invalid/x.jpg", UrlOptions(deadline_s=5, retries=0))
    assert caught.value.kind in ("dns", "timeout")
    assert caught.value.retryable


@pytest.mark.parametrize(
    "url", ["http:///x.jpg", "http://h:99999/x", "http://h:x/", "http://[::1/x", "http://" + "a" * 70 + "/"]
)
def test_a_url_that_is_none_is_refused(url: str):
    with pytest.raises(ReadError) as caught:
        read_url(url, QUICK)
    assert (caught.value.kind, caught.value.retryable) == ("bad_url", False)


def test_a_server_that_speaks_no_tls_is_a_connection_error(server: _Server):
    with pytest.raises(ReadError) as caught:
        read_url(f"https://127.0.0.1:{server.server_port}/good", QUICK)
    assert caught.value.kind == "connection"


def test_tls_is_spoken_with_servers_whose_certificate_is_trusted(
    server: _Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here to make a certificate with")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    make += ["-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", certificate]
    subprocess.run(make, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    url = f"https://localhost:{server.server_port}/good"
    with pytest.raises(ReadError) as caught:
        read_url(url, QUICK)
    assert (caught.value.kind, caught.value.retryable) == ("tls", False)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    connect._tls_context.cache_clear()
    try:
        assert read_url(url, QUICK) == PICTURE
    finally:
        connect._tls_context.cache_clear()


def test_a_proxy_of_the_environment_is_used(server: _Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("http_proxy", f"http://user:p%40ss@127.0.0.1:{server.server_port}")
    monkeypatch.setenv("no_proxy", "other.host")
    assert read_url("http://far.away.invalid:8080/good?x", QUICK) == PICTURE
    assert server.seen == ["http://far.away.invalid:8080/good?x"]
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{server.server_port}")
    with pytest.raises(ReadError, match=r"the proxy 127.0.0.1 answers 501"):
        read_url("https://far.away.invalid/good", QUICK)


def test_no_socket_stays_open(server: _Server):
    for path in ("good", "missing", "circle", "short", "large"):
        try:
            read_url(_url(server, path), QUICK)
        except ReadError:
            continue
    assert not any(f"{server.server_port:04X}" in line.split()[2] and line.split()[3] == "01" for line in _tcp_lines())


def _tcp_lines() -> list[str]:
    return Path("/proc/net/tcp").read_text().splitlines()[1:]


def test_bad_urls_do_not_hold_up_a_run(server: _Server, tmp_path: Path):
    good = [_url(server, f"good/{n}.jpg") for n in range(96)]
    bad = [_url(server, path) for path in ("silent", "drip", "circle", "missing")]
    (tmp_path / "urls.txt").write_text("\n".join(bad + good))
    samples = list(ListSource(tmp_path / "urls.txt", url_options=QUICK))
    assert [s.id for s in samples] == bad + good

    def outcome(sample: Sample) -> str:
        try:
            return "row" if sample.read() == PICTURE else "wrong"
        except ReadError as error:
            return error.kind

    start = time.monotonic()
    with ThreadPoolExecutor(8) as lanes:
        outcomes = list(lanes.map(outcome, samples))
    assert outcomes == ["timeout", "timeout", "too_many_redirects", "http_404"] + ["row"] * 96
    assert time.monotonic() - start < 10


def test_other_schemes_are_read_through_fsspec(tmp_path: Path):
    with fsspec.open("memory://bucket/a.jpg", "wb") as file:
        file.write(PICTURE)
    (sample,) = open_source("memory://bucket/a.jpg")
    assert (sample.id, sample.read()) == ("memory://bucket/a.jpg", PICTURE)
    (tmp_path / "x.jpg").write_bytes(PICTURE)
    assert read_url(f"file://{tmp_path}/x.jpg", QUICK) == PICTURE


@pytest.mark.parametrize(
    ("url", "kind", "retryable"),
    [
        ("memory://bucket/gone.jpg", "not_found", False),
        ("nosuch://bucket/a.jpg", "bad_url", False),
        ("s3://bucket/a.jpg", "missing_package", False),
    ],
)
def test_trouble_of_other_schemes_has_a_kind(url: str, kind: str, retryable: bool):
    if kind == "missing_package" and importlib.util.find_spec("s3fs") is not None:
        pytest.skip("s3fs is installed here")
    with pytest.raises(ReadError) as caught:
        read_url(url, QUICK)
    assert (caught.value.kind, caught.value.retryable) == (kind, retryable)


def test_a_remote_file_that_is_too_large_is_refused():
    with fsspec.open("memory://bucket/big.jpg", "wb") as file:
        file.write(bytes(2000))
    with pytest.raises(ReadError) as caught:
        read_url("memory://bucket/big.jpg", UrlOptions(max_bytes=1999))
    assert caught.value.kind == "too_large"
    assert len(read_url("memory://bucket/big.jpg", UrlOptions(max_bytes=2000))) == 2000


def test_a_remote_file_system_that_hangs_keeps_the_deadline():
    class Hanging(fsspec.AbstractFileSystem):
        protocol = "hang"

        def _open(self, path: str, mode: str = "rb", **options: object):
            time.sleep(3)
            raise FileNotFoundError(path)

    fsspec.register_implementation("hang", Hanging, clobber=True)
    start = time.monotonic()
    with pytest.raises(ReadError) as caught:
        read_url("hang://x/a.jpg", UrlOptions(deadline_s=0.3))
    assert (caught.value.kind, caught.value.retryable) == ("timeout", True)
    assert time.monotonic() - start < 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [(b"http://h/x", True), (b"s3://b/x", True), (b"a/b://c", False), (b"1x://y", False), (b"x.jpg", False)],
)
def test_a_url_starts_with_a_scheme(text: bytes, expected: bool):
    assert is_url(text) == expected
