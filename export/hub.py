"""The hub that timm's weights come from: asked once whether it is there. Its own client takes most of a minute."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from ..engine.errors import ModelError

WEIGHTS_FILES = ("model.safetensors", "pytorch_model.bin", "open_clip_pytorch_model.bin", "open_clip_model.safetensors")
"""Names that timm looks for in a repository of the hub."""

TIMEOUT_S = 10.0


@contextmanager
def offline_unless_reachable() -> Iterator[None]:
    """Take weights from the local cache alone where the hub cannot be reached; any answer counts as one.

    The client (huggingface_hub 2.4) retries each of its requests for 50 s in all when a name does not resolve.
    """
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or not is_reachable(constants.ENDPOINT)
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def check_weights_at_hand(model: str, repository: str | None, file_name: str | None) -> None:
    """Raise ModelError, before anything is built, where the hub is away and its local cache has no weights."""
    from huggingface_hub import constants, try_to_load_from_cache

    if not constants.HF_HUB_OFFLINE or repository is None:
        return
    names = (file_name,) if file_name else WEIGHTS_FILES
    if not any(isinstance(try_to_load_from_cache(repository, name), str) for name in names):
        raise ModelError(
            f"Cannot get the pretrained weights of {model}: {constants.ENDPOINT} cannot be reached and the local cache "
            f"has none of {repository}. Without a network, give `--weights FILE` (a state dict), or `--weights random` "
            "for a test."
        )


@cache
def is_reachable(url: str) -> bool:
    """Whether anything answers at ``url``, through a proxy where the environment names one."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=TIMEOUT_S):  # noqa: S310 - http too
            return True
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError):
        return False
