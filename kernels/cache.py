"""Where everything is kept that can be made again: cubins, exported models, plans."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

CACHE_VARIABLE = "VDALI_CACHE"


def cache_folder() -> Path:
    """``VDALI_CACHE``, else the user's cache folder; it need not exist yet."""
    return Path(os.environ.get(CACHE_VARIABLE) or platformdirs.user_cache_dir("vdali"))
