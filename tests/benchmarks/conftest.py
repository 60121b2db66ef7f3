"""Makes toy_systems importable, here and in the processes that the tests start."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = str(Path(__file__).parent)

if HERE not in sys.path:
    sys.path.append(HERE)
