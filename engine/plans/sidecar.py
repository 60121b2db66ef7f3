"""The JSON file beside each plan: what the plan is, how it came about, and what it is bound to.

A plan is opaque and carries no preprocessing, so ``X.plan`` is worth nothing without ``X.plan.json``. The sidecar holds
the SHA-256 of the plan and one of itself (``seal``), which shows edits and damage, not malice.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ModelError
from ..spec import ModelSpec
from .files import sha256_of
from .flavour import TENSORRT_RTX, TITLES, Message
from .header import HEADER_BYTES, read_header
from .key import PlanKey

SIDECAR_VERSION = 1
PLAN_SUFFIX = ".plan"
SIDECAR_SUFFIX = ".json"

PROVEN = "proven"
REFUSED = "refused"
"""How a sidecar's state begins once the plan has been compared with its reference; before, nobody has run it."""


@dataclass(frozen=True, slots=True)
class PlanSidecar:
    """Description of one plan. ``built_at`` is UTC in ISO 8601; ``state`` tells how far the plan has been proven."""

    key: PlanKey
    spec: ModelSpec
    plan_bytes: int
    plan_sha256: str
    build_s: float
    built_at: str
    state: str
    messages: tuple[Message, ...]

    @property
    def holds_host_code(self) -> bool:
        """Whether loading the plan runs code out of it, so that it must come from someone trusted."""
        return self.key.version_compatible

    def __str__(self) -> str:
        return (
            f"{self.spec.name} {self.key.precision}, {TITLES[self.key.flavour]} {self.key.flavour_version} for "
            f"{self.key.bound_to}, batch {self.key.batch}: {self.state}"
        )

    def dumps(self) -> str:
        """JSON text, readable, with the seal."""
        values: dict[str, Any] = {
            "sidecar_version": SIDECAR_VERSION,
            "key_sha256": self.key.digest(),
            "key": self.key.to_json(),
            "plan_bytes": self.plan_bytes,
            "plan_sha256": self.plan_sha256,
            "build_s": self.build_s,
            "built_at": self.built_at,
            "state": self.state,
            "spec": self.spec.to_json(),
            "messages": [list(message) for message in self.messages],
        }
        return json.dumps({**values, "seal": _seal(values)}, indent=1)

    @classmethod
    def loads(cls, text: str, *, file: str) -> PlanSidecar:
        """Sidecar from its text; raises ModelError when it is not one, of another version, or edited."""
        try:
            values = json.loads(text)
            version, seal = values["sidecar_version"], values.pop("seal")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError("sidecar is not readable") from error
        if version != SIDECAR_VERSION:
            raise ModelError(f"sidecar version {version}, expected {SIDECAR_VERSION}")
        if seal != _seal(values):
            raise ModelError("sidecar edited")
        try:
            return cls(
                key=PlanKey.from_json(values["key"]),
                spec=ModelSpec.loads(json.dumps(values["spec"]), file=file),
                plan_bytes=values["plan_bytes"],
                plan_sha256=values["plan_sha256"],
                build_s=values["build_s"],
                built_at=values["built_at"],
                state=values["state"],
                messages=tuple((severity, text) for severity, text in values["messages"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(f"sidecar is incomplete ({error!r})") from error


def sidecar_path(plan: Path) -> Path:
    return plan.with_name(plan.name + SIDECAR_SUFFIX)


def read_sidecar(plan: Path) -> PlanSidecar:
    """Sidecar of the plan file ``plan``; raises ModelError with a short reason."""
    path = sidecar_path(plan)
    try:
        return PlanSidecar.loads(path.read_text(encoding="utf-8"), file=str(path))
    except FileNotFoundError as error:
        raise ModelError("sidecar missing") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"sidecar is not readable ({error})") from error


def read_whole(plan: Path) -> PlanSidecar:
    """Sidecar of a plan that is whole and the one described; raises ModelError with a short reason.

    Reads the plan once. Whether it fits a machine is another question (check).
    """
    sidecar = read_sidecar(plan)
    try:
        found = plan.stat().st_size
        if found != sidecar.plan_bytes or sha256_of(plan) != sidecar.plan_sha256:
            with open(plan, "rb") as file:
                raise ModelError(_what_is_wrong(sidecar, file.read(HEADER_BYTES), found))
    except FileNotFoundError as error:
        raise ModelError("plan missing") from error
    except OSError as error:
        raise ModelError(f"plan is not readable ({error})") from error
    return sidecar


def _what_is_wrong(sidecar: PlanSidecar, start: bytes, found: int) -> str:
    """Why a plan of ``found`` bytes is not the one described."""
    if sidecar.key.flavour == TENSORRT_RTX:
        header = read_header(start)
        if header is None:
            return f"not a TensorRT-RTX plan ({found} bytes)"
        if not f"{sidecar.key.flavour_version}.".startswith(f"{header.version}."):
            return f"plan of TensorRT-RTX {header.version}, expected {sidecar.key.flavour_version}"
        if sidecar.key.targets and sidecar.key.gpu is None and header.targets != sidecar.key.targets:
            return f"plan for {', '.join(header.targets)}, expected {', '.join(sidecar.key.targets)}"
    if found < sidecar.plan_bytes:
        return f"plan truncated: {found} bytes, expected {sidecar.plan_bytes}"
    return "plan changed since it was built: its SHA-256 differs"


def _seal(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
