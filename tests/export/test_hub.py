"""Asked once whether the hub is there: against real servers and a closed port of this machine."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from vdali.engine.errors import ModelError
from vdali.export.hub import check_weights_at_hand, is_reachable, offline_unless_reachable

constants = pytest.importorskip("huggingface_hub.constants")


class Refusing(BaseHTTPRequestHandler):
    """Answers every request with 403, as a hub does that wants a token."""

    def do_HEAD(self) -> None:
        self.send_response(403)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = HTTPServer(("127.0.0.1", 0), Refusing)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    is_reachable.cache_clear()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()
    is_reachable.cache_clear()


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An address where nothing listens."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        is_reachable.cache_clear()
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"
        is_reachable.cache_clear()


def test_any_answer_counts_and_silence_does_not(hub: str, nobody: str) -> None:
    assert is_reachable(hub)
    assert not is_reachable(nobody)
    assert not is_reachable("no url at all")


def test_the_client_is_offline_only_where_the_hub_is_away(
    hub: str, nobody: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    for endpoint, offline in ((hub, False), (nobody, True)):
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        with offline_unless_reachable():
            assert constants.HF_HUB_OFFLINE is offline
        assert constants.HF_HUB_OFFLINE is False


def test_weights_that_cannot_be_had_are_told_before_anything_is_built(
    nobody: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", nobody)
    with (
        offline_unless_reachable(),
        pytest.raises(
            ModelError, match=r"timm/resnet50: http://127.* cannot be reached and the local cache has none of"
        ),
    ):
        check_weights_at_hand("timm/resnet50", "timm/no-such-repository", None)


def test_with_a_hub_nothing_is_said_before_it_is_asked(hub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", hub)
    with offline_unless_reachable():
        check_weights_at_hand("timm/resnet50", "timm/no-such-repository", None)
