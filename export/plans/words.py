"""Plan options from words that a user typed."""

from __future__ import annotations

from pathlib import Path

from ...engine.plans.options import BatchProfile, HardwareCompatibility, PlanOptions, parse_targets
from ...engine.words import word


def plan_options_from_words(
    *,
    target: str | None,
    batch_profile: str,
    optimization_level: int,
    hardware_compatibility: str,
    version_compatible: bool,
    timing_cache: Path | None,
) -> PlanOptions:
    """Options of a plan; raises UsageError that names the option and what it takes."""
    return PlanOptions(
        batch=BatchProfile.parse(batch_profile),
        optimization_level=optimization_level,
        hardware_compatibility=word(HardwareCompatibility, hardware_compatibility, "hardware-compatibility"),
        version_compatible=version_compatible,
        targets=parse_targets(target) if target else (),
        timing_cache=timing_cache,
    )
