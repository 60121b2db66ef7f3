"""Housekeeping of a folder of plans: list, verify, collect garbage."""

from __future__ import annotations

import glob
import math
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...engine.errors import ModelError
from ...engine.plans.files import LOCK_SUFFIX, TEMPORARY_SUFFIX, locked
from ...engine.plans.key import DIGEST_LETTERS
from ...engine.plans.sidecar import PLAN_SUFFIX, SIDECAR_SUFFIX, PlanSidecar, read_sidecar, read_whole, sidecar_path


@dataclass(frozen=True, slots=True)
class PlanEntry:
    """One plan of a folder, or what is left of one. ``sidecar`` is None where it is missing, damaged or edited.

    ``stored_bytes`` counts plan and sidecar, ``used_at`` is the time of last use in seconds since 1970.
    """

    plan: Path
    sidecar: PlanSidecar | None
    stored_bytes: int
    used_at: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check of one entry found: ``problem`` is empty for a plan that is whole and well described."""

    entry: PlanEntry
    problem: str


def list_entries(folder: Path) -> list[PlanEntry]:
    """Every plan in the folder, most recently used first; a folder that does not exist is empty."""
    plans = {*folder.glob(f"*{PLAN_SUFFIX}")}
    plans |= {sidecar.with_suffix("") for sidecar in folder.glob(f"*{PLAN_SUFFIX}{SIDECAR_SUFFIX}")}
    return sorted(map(_entry, plans), key=lambda entry: (-entry.used_at, entry.plan.name))


def verify_entries(folder: Path) -> list[Verdict]:
    """Every plan in the folder with what is wrong with it: file missing, cut or changed, sidecar edited, misnamed."""
    return [Verdict(entry, _problem(entry.plan)) for entry in list_entries(folder)]


def collect_garbage(
    folder: Path, *, keep: int | None = None, max_bytes: int | None = None, older_than_s: float | None = None
) -> list[PlanEntry]:
    """Delete plans and return them, least recently used first where there is a choice.

    Entries without plan or readable sidecar always go, as do the leftovers of killed processes. ``keep`` is how many
    plans of each model and precision stay, ``max_bytes`` how many bytes in all, ``older_than_s`` how many seconds ago a
    plan may have been used last. A plan that a process is building is left alone.
    """
    at_most = math.inf if keep is None else keep
    room = math.inf if max_bytes is None else max_bytes
    oldest = -math.inf if older_than_s is None else time.time() - older_than_s
    kept: Counter[tuple[str, str]] = Counter()
    doomed = []
    for entry in list_entries(folder):
        if entry.sidecar is None or not entry.plan.exists():
            doomed.append(entry)
            continue
        group = (entry.sidecar.spec.name, entry.sidecar.key.precision)
        if entry.used_at < oldest or kept[group] >= at_most or entry.stored_bytes > room:
            doomed.append(entry)
        else:
            kept[group] += 1
            room -= entry.stored_bytes
    removed = [entry for entry in reversed(doomed) if _delete(entry.plan)]
    _delete_leftovers(folder)
    return removed


def _entry(plan: Path) -> PlanEntry:
    sidecar = None
    with suppress(ModelError):
        sidecar = read_sidecar(plan)
    states = [path.stat() for path in (plan, sidecar_path(plan)) if path.exists()]
    return PlanEntry(plan, sidecar, sum(s.st_size for s in states), max((s.st_mtime for s in states), default=0.0))


def _problem(plan: Path) -> str:
    try:
        sidecar = read_whole(plan)
    except ModelError as error:
        return str(error)
    return "" if sidecar.key.digest()[:DIGEST_LETTERS] in plan.name else "its name is not that of its key"


def _delete(plan: Path) -> bool:
    """Delete an entry whose lock is free; the lock goes with the leftovers."""
    with locked(plan.with_name(plan.name + LOCK_SUFFIX)) as held:
        if held:
            sidecar_path(plan).unlink(missing_ok=True)
            plan.unlink(missing_ok=True)
        return held


def _delete_leftovers(folder: Path) -> None:
    """Delete locks without an entry and half-written files, unless somebody holds the lock."""
    strays = {*folder.glob(f"*{PLAN_SUFFIX}{LOCK_SUFFIX}"), *folder.glob(f"*{PLAN_SUFFIX}*{TEMPORARY_SUFFIX}")}
    for name in {stray.name.split(PLAN_SUFFIX)[0] + PLAN_SUFFIX for stray in strays}:
        lock = folder / (name + LOCK_SUFFIX)
        with locked(lock) as held:
            if not held:
                continue
            for half in folder.glob(f"{glob.escape(name)}*{TEMPORARY_SUFFIX}"):
                half.unlink(missing_ok=True)
            if not (folder / name).exists():
                lock.unlink(missing_ok=True)
