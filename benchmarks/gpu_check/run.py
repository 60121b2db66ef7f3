"""What `make gpu-check` starts: works in a checkout where nothing is installed, as far as what is there allows.

Nothing but the standard library is imported before it is known that there is a GPU.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def main() -> int:
    # a script's own folder comes first: its modules must not stand in for others of the same names
    sys.path[:] = [place for place in sys.path if Path(place).resolve() != HERE]
    driver = _module_at("vdali_gpu_driver", HERE / "driver.py")
    reason: str = driver.why_no_gpu()
    if reason:
        print(reason, file=sys.stderr)
        return int(driver.NO_GPU_STATUS)
    if importlib.util.find_spec("vdali") is None:
        _module_at("vdali", ROOT / "__init__.py", package=ROOT)
    from vdali.benchmarks.gpu_check.__main__ import main as check

    status = check(sys.argv[1:])
    if "--child" in sys.argv:
        # What was found is written. Libraries that tear down a GPU in an order of their own must not spoil it.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


def _module_at(name: str, file: Path, *, package: Path | None = None) -> Any:
    """The module or package in ``file``, importable as ``name`` from now on."""
    places = None if package is None else [str(package)]
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=places)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    sys.exit(main())
