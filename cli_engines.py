"""Commands about many models: the engines that are kept, and their upkeep."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from .export.engines import EngineRow


@click.group()
def engines() -> None:
    """Look after the cache of TensorRT plans."""


@engines.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def ls(as_json: bool) -> None:
    """List the plans in the cache, most recently used first."""
    from .export.plans.cache import PlanCache

    cache = PlanCache()
    entries = cache.ls()
    if as_json:
        click.echo(json.dumps([{"plan": str(entry.plan), "stored_bytes": entry.stored_bytes} for entry in entries]))
        return
    for entry in entries:
        click.echo(f"{entry.plan.name}  {entry.stored_bytes / 2**20:.1f} MiB  {entry.sidecar or 'no readable sidecar'}")
    _say(f"{len(entries)} plans in {cache.directory}")


@engines.command()
def verify() -> None:
    """Read every plan in the cache and tell which are damaged; status 5 if any is."""
    from .engine.errors import ModelError
    from .export.plans.cache import PlanCache

    verdicts = PlanCache().verify()
    for verdict in verdicts:
        click.echo(f"{verdict.entry.plan.name}  {verdict.problem or 'ok'}")
    bad = sum(bool(verdict.problem) for verdict in verdicts)
    if bad:
        raise ModelError(
            f"{bad} of {len(verdicts)} plans are damaged. They are rebuilt when used; `vdali engines gc` drops them."
        )


@engines.command()
@click.option("--keep", type=click.IntRange(0), help="Plans of each model and precision that stay.")
@click.option("--max-bytes", type=click.IntRange(0), help="Bytes that all plans together may take.")
@click.option("--older-than-days", type=click.FloatRange(0), help="Days without use after which a plan goes.")
def gc(keep: int | None, max_bytes: int | None, older_than_days: float | None) -> None:
    """Delete damaged plans, leftovers, and what the options say."""
    from .export.plans.cache import PlanCache

    seconds = older_than_days * 86_400 if older_than_days is not None else None
    removed = PlanCache().gc(keep=keep, max_bytes=max_bytes, older_than_s=seconds)
    for entry in removed:
        click.echo(entry.plan.name)
    _say(f"{len(removed)} plans deleted, {sum(entry.stored_bytes for entry in removed) / 2**20:.1f} MiB freed")


@engines.command()
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option("-p", "--precisions", default="fp32,fp16,int8", show_default=True, help="Precisions, with commas.")
@click.option("--images", multiple=True, help="Images to calibrate and judge on (default: the demo photos and crops).")
@click.option("--flavour", default="auto", show_default=True, help="auto, none, tensorrt or tensorrt_rtx.")
@click.option("--target", help="TensorRT-RTX: compute capabilities, such as sm89,sm120.")
@click.option("--batch-profile", default="1,32,64", show_default=True, help="Smallest, tuned and largest batch.")
@click.option("--json", "as_json", is_flag=True, help="Print the table as one JSON document on stdout.")
def make(
    models: tuple[str, ...],
    precisions: str,
    images: tuple[str, ...],
    flavour: str,
    target: str | None,
    batch_profile: str,
    as_json: bool,
) -> None:
    """Export, judge and plan MODELs (default: the four that `make engines` names) at each precision.

    \b
    Exit status: 0 all there, 5 at least one was refused (the table says why).
    """
    from .engine.errors import ModelError
    from .engine.plans.flavour import find_flavour, load_flavour
    from .engine.plans.options import BatchProfile, PlanOptions, parse_targets
    from .engine.spec import Precision
    from .engine.words import word
    from .export.engines import MODELS, EngineMaker
    from .export.plans.cache import PlanCache
    from .export.proof import prover_here

    wanted = [word(Precision, value.strip(), "precision") for value in precisions.split(",")]
    name = find_flavour() if flavour == "auto" else None if flavour == "none" else flavour
    options = PlanOptions(batch=BatchProfile.parse(batch_profile), targets=parse_targets(target) if target else ())
    maker = EngineMaker(
        images=list(images) or None,
        flavour=load_flavour(name) if name else None,
        plan_options=options,
        plans=PlanCache(notice=_say),
        report=_say,
        prover=prover_here(),
    )
    rows = []
    for row in maker.rows(models or MODELS, wanted):
        rows.append(row)
        _say(f"{row.model} {row.precision}: {row.status} {row.why} ({row.seconds:.1f} s)")
    click.echo(json.dumps([row.to_json() for row in rows]) if as_json else _table(rows))
    refused = sum(row.status == "refused" or row.plan == "refused" for row in rows)
    if refused:
        raise ModelError(f"{refused} of {len(rows)} engines were refused; the table says why.")


def _table(rows: Sequence[EngineRow]) -> str:
    """Table of engines, one line each: model, precision, size, agreement, layers kept back, plan, seconds, status."""
    heads = ("model", "precision", "MiB", "agreement", "kept", "plan", "seconds", "status")
    lines = [
        (
            f"{row.model} ({row.weights})",
            row.precision.value,
            f"{row.size_bytes / 2**20:.1f}",
            row.agreement,
            str(len(row.kept)),
            row.plan,
            _seconds(row),
            f"{row.status}{': ' if row.why else ''}{row.why}",
        )
        for row in rows
    ]
    widths = [max(len(line[i]) for line in (heads, *lines)) for i in range(len(heads) - 1)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[-1]])
        for line in (heads, *lines)
    )


def _seconds(row: EngineRow) -> str:
    """Seconds of this call; where something was made in it, with what its steps took."""
    steps = ", ".join(f"{step} {seconds:.1f}" for step, seconds in row.steps_s.items())
    return f"{row.seconds:.1f} ({steps})" if row.status == "built" and steps else f"{row.seconds:.1f}"


def _say(line: str) -> None:
    click.echo(line, err=True)
