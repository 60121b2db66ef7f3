"""Every test that is marked ``gpu``: run, or not run and why."""

from __future__ import annotations

import functools
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

from .record import Check, CheckFailedError, Found, MissingError

ROOT = Path(__file__).resolve().parents[2]
_TESTS = ROOT / "tests"


def checks() -> Sequence[Check]:
    if not _TESTS.is_dir():
        return (Check("tests marked gpu", _absent),)
    with tempfile.TemporaryDirectory(prefix="vdali-gpu-check-") as folder:
        report = Path(folder) / "report.xml"
        words = ["-m", "pytest", "-m", "gpu", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", str(_TESTS)]
        done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False)
        if not report.exists():
            return (Check("tests marked gpu", functools.partial(_broken, done.stdout + done.stderr)),)
        return checks_of(report.read_text(encoding="utf-8"))


def checks_of(junit: str) -> Sequence[Check]:
    """A check for each test of pytest's report, in its words."""
    cases = ElementTree.fromstring(junit).iter("testcase")  # noqa: S314 - pytest's own
    return tuple(
        Check(f"{case.get('classname')}::{case.get('name')}", functools.partial(_told, case)) for case in cases
    )


def _told(case: ElementTree.Element) -> Found:
    for kind in ("failure", "error"):
        found = case.find(kind)
        if found is not None:
            raise CheckFailedError(" ".join((found.get("message") or found.text or kind).split())[:300])
    skipped = case.find("skipped")
    if skipped is not None:
        raise MissingError(f"not run: {skipped.get('message')}")
    return Found(numbers={"wall_s": float(case.get("time") or 0)})


def _absent() -> Found:
    raise MissingError(f"no tests at {_TESTS}: they come with the sources, not with the package.")


def _broken(words: str) -> Found:
    raise CheckFailedError(f"pytest gave no report: {' '.join(words.split())[-400:]}")
