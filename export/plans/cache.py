"""Plans kept by what they are made of, so that none is built twice and none is used for what it is not.

``X.plan`` and ``X.plan.json`` (its sidecar) are an entry, ``X.plan.lock`` keeps two processes from building it at once.
X ends in the digest of the PlanKey; no plan's own hash is part of it, since builds are not reproducible bit for bit.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from ...engine.backends.content import model_content, model_spec
from ...engine.errors import ModelError, UsageError
from ...engine.gpu_probe import probe_gpu
from ...engine.plans.files import LOCK_SUFFIX, TEMPORARY_SUFFIX, locked, write_atomically
from ...engine.plans.flavour import Flavour
from ...engine.plans.key import CONTENT_CHANGED, DIGEST_LETTERS, PlanKey, differences, plan_key, spec_differences
from ...engine.plans.options import PlanOptions, check_options
from ...engine.plans.sidecar import PLAN_SUFFIX, PlanSidecar, read_sidecar, read_whole, sidecar_path
from ...engine.spec import ModelSpec, Precision
from ...kernels.cache import cache_folder
from ..computed import check_computed
from ..session import read_model
from .build import BuiltPlan, build_plan
from .progress import OnProgress
from .upkeep import PlanEntry, Verdict, collect_garbage, list_entries, verify_entries

NO_PLAN_YET = "no plan yet"


@dataclass(frozen=True, slots=True)
class CachedPlan:
    """A plan file that is whole. ``hit``: it was there; ``reason``: since when, or why it had to be built."""

    path: Path
    hit: bool
    reason: str
    sidecar: PlanSidecar


@dataclass(frozen=True, slots=True)
class _Request:
    model: Path
    options: PlanOptions
    flavour: Flavour
    spec: ModelSpec
    key: PlanKey
    progress: OnProgress | None

    @property
    def file_name(self) -> str:
        name = re.sub(r"[^A-Za-z0-9+_-]+", "_", f"{self.spec.name[:60]}-{self.key.precision}")
        return f"{name}-{self.key.digest()[:DIGEST_LETTERS]}{PLAN_SUFFIX}"


def default_directory() -> Path:
    """``plans`` in ``VDALI_CACHE``, else in the user's cache folder."""
    return cache_folder() / "plans"


class PlanCache:
    """A folder of plans that several processes may use at once.

    ``notice`` takes sentences for people: a wait for another process, a folder that cannot be written. In the latter
    case plans go to a temporary folder that lives as long as the process.
    """

    def __init__(self, directory: Path | None = None, *, notice: Callable[[str], object] = lambda _: None) -> None:
        self.directory = directory if directory is not None else default_directory()
        self._notice = notice
        self._temporary: Path | None = None

    def get_or_build(
        self, model: Path, options: PlanOptions, *, flavour: Flavour, progress: OnProgress | None = None
    ) -> CachedPlan:
        """The plan of an exported ONNX file, from the cache where it is whole and the right one, else built.

        Raises ModelError for an unusable model, UsageError and DeviceError for options that do not fit, and VdaliError
        when the disk is full; nothing half-written stays behind.
        """
        request = _request(model, options, flavour, progress)
        with ExitStack() as stack:
            try:
                self.directory.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryFile(dir=self.directory):
                    pass  # a folder that cannot be written shows here, before minutes of building
                lock = self.directory / (request.file_name + LOCK_SUFFIX)
                stack.enter_context(locked(lock, on_wait=self._tell_of_wait))
            except OSError as error:
                return self._without_cache(request, error)
            return _find_or_build(self.directory, request)

    def ls(self) -> list[PlanEntry]:
        """Every plan in the folder, most recently used first."""
        return list_entries(self.directory)

    def verify(self) -> list[Verdict]:
        """Every plan in the folder with what is wrong with it, reading each once."""
        return verify_entries(self.directory)

    def gc(
        self, *, keep: int | None = None, max_bytes: int | None = None, older_than_s: float | None = None
    ) -> list[PlanEntry]:
        """Delete plans and return them: see upkeep.collect_garbage."""
        return collect_garbage(self.directory, keep=keep, max_bytes=max_bytes, older_than_s=older_than_s)

    def _tell_of_wait(self) -> None:
        self._notice("Another process is building this plan: waiting for it.")

    def _without_cache(self, request: _Request, error: OSError) -> CachedPlan:
        """A hit needs no writing; a build goes to the temporary folder, and says so."""
        with suppress(ModelError):
            return _hit(self.directory / request.file_name, request.key)
        if self._temporary is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="vdali-plans-"))
            atexit.register(shutil.rmtree, self._temporary, ignore_errors=True)
            self._notice(
                f"The plan cache {self.directory} cannot be written ({error.strerror or error}): plans go to "
                f"{self._temporary} and are lost at the end. Set VDALI_CACHE to a writable folder."
            )
        return _find_or_build(self._temporary, request)


def _request(model: Path, options: PlanOptions, flavour: Flavour, progress: OnProgress | None) -> _Request:
    content = model_content(model)
    spec = model_spec(model)
    options = replace(options, tf32=_settled_tf32(options, spec.precision))
    gpus = probe_gpu()
    check_options(options, flavour, gpus)
    key = plan_key(content, spec.precision, options, flavour, gpus)
    return _Request(model, options, flavour, spec, key, progress)


def _settled_tf32(options: PlanOptions, precision: Precision) -> bool:
    wanted = precision is Precision.TF32
    if options.tf32 not in {None, wanted}:
        raise UsageError(
            f"tf32={options.tf32} contradicts the model's precision {precision}. Export the model at the precision "
            f"{'tf32' if options.tf32 else 'fp32'}, or leave tf32 out."
        )
    return wanted


def _find_or_build(folder: Path, request: _Request) -> CachedPlan:
    """Hit or build in a folder whose lock is held."""
    path = folder / request.file_name
    try:
        return _hit(path, request.key)
    except ModelError as error:
        problem = str(error)
    nearest = _nearest(folder, request)
    reason = problem if path.exists() or sidecar_path(path).exists() else _why(nearest, request)
    check_computed(read_model(request.model, weights=False), request.spec.precision, file=str(request.model))
    built = build_plan(
        request.model,
        request.options,
        flavour=request.flavour,
        progress=request.progress,
        expected_s=nearest.build_s if nearest is not None else None,
    )
    sidecar = _describe(built, request)
    for leftover in folder.glob(f"{request.file_name}*{TEMPORARY_SUFFIX}"):
        leftover.unlink(missing_ok=True)  # of a process that was killed while it wrote
    write_atomically(path, built.data)
    write_atomically(sidecar_path(path), sidecar.dumps().encode())
    return CachedPlan(path, False, reason, sidecar)


def _hit(path: Path, key: PlanKey) -> CachedPlan:
    """The plan at ``path``; raises ModelError with a short reason when it is not whole or not the one of ``key``."""
    sidecar = read_whole(path)
    if sidecar.key != key:
        raise ModelError("plan of something else: " + ", ".join(differences(sidecar.key, key)))
    with suppress(OSError):  # a read-only cache; the time of last use only steers gc
        os.utime(sidecar_path(path))
    return CachedPlan(path, True, f"built {sidecar.built_at} in {sidecar.build_s:.1f} s", sidecar)


def _nearest(folder: Path, request: _Request) -> PlanSidecar | None:
    """The sidecar of the same model name and precision whose key differs least, the newest of several."""
    found = []
    for plan in folder.glob(f"*{PLAN_SUFFIX}"):
        with suppress(ModelError):
            found.append(read_sidecar(plan))
    same = (s for s in found if s.spec.name == request.spec.name and s.key.precision == request.key.precision)
    newest_first = sorted(same, key=lambda sidecar: sidecar.built_at, reverse=True)
    return min(newest_first, key=lambda sidecar: len(differences(sidecar.key, request.key)), default=None)


def _why(nearest: PlanSidecar | None, request: _Request) -> str:
    """Why there is no plan: what has changed since the nearest one."""
    if nearest is None:
        return NO_PLAN_YET
    words = differences(nearest.key, request.key)
    changed = ", ".join(spec_differences(nearest.spec, request.spec))
    if changed and CONTENT_CHANGED in words:
        words[words.index(CONTENT_CHANGED)] = f"{CONTENT_CHANGED} ({changed})"
    return ", ".join(words)


def _describe(built: BuiltPlan, request: _Request) -> PlanSidecar:
    return PlanSidecar(
        key=request.key,
        spec=request.spec,
        plan_bytes=len(built.data),
        plan_sha256=sha256(built.data).hexdigest(),
        build_s=round(built.build_s, 3),
        built_at=datetime.now(UTC).isoformat(timespec="seconds"),
        state=built.state,
        messages=built.messages,
    )
