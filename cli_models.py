"""Commands about models: export to ONNX, build plans, look after the cache of plans."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument("model")
@click.option("-o", "--out", "out", type=click.Path(path_type=Path), required=True, help="ONNX file to write.")
@click.option(
    "--task", type=click.Choice(["classify", "embed", "segment"]), help="Default: what the model is made for."
)
@click.option("--weights", default="pretrained", show_default=True, help="pretrained, random, or a file of weights.")
@click.option("--seed", default=0, show_default=True, help="Seed of random weights.")
@click.option("--resize", help="N for the shorter side, or HxW.")
@click.option("--crop", help="Input size of the model, N or HxW.")
@click.option("--mode", help="shorter, squash or longest: how a picture is fitted to --resize.")
@click.option("--interpolation", help="bilinear, bicubic or lanczos.")
@click.option("--mean", help="R,G,B of levels 0..1.")
@click.option("--std", help="R,G,B of levels 0..1.")
@click.option("--fill", help="R,G,B levels 0..255 of padding.")
@click.option("--pad", help="center or corner: where a padded picture sits.")
@click.option("--exif", type=click.Choice(["apply", "ignore"]), help="EXIF orientation rule (default: apply).")
@click.option("--color-order", help="rgb or bgr, as the network wants its channels.")
@click.option("--output", help="Name of the output to use, where the model has several.")
@click.option("--classes", type=click.Path(path_type=Path), help="File with the class names, one a line.")
@click.option(
    "--label-offset", type=click.IntRange(0), default=0, help="Leading logits to drop (1: class 0 is background)."
)
@click.option("--normalize", is_flag=True, help="L2-normalise embeddings inside the graph.")
def export(model: str, out: Path, **options: Any) -> None:
    """Write MODEL as an ONNX file that holds its own pre- and post-processing, and compare it with its source.

    MODEL is efficientnet_lite0, timm/NAME, torchvision/NAME, package.module:factory, or a plain FILE.onnx.

    \b
    Exit status: 0 written, 2 usage, 4 a package is missing, 5 the model cannot be exported or does not agree.
    """
    from .export.model import export_model
    from .export.words import options_from_words

    spec = export_model(model, out, options_from_words(**options), _say)
    click.echo(f"{out}: {spec.name}, {spec.task}, {spec.precision}, weights {spec.weights}", err=True)


@click.command()
@click.argument("model")
@click.option("-p", "--precision", default="fp32", show_default=True, help="Precision of a model given by name.")
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Also copy the plan (and its sidecar) to this file.")
@click.option("--flavour", default="auto", show_default=True, help="auto, tensorrt or tensorrt_rtx.")
@click.option("--target", help="TensorRT-RTX: compute capabilities to build for, such as sm89,sm120. Needs no GPU.")
@click.option("--batch-profile", default="1,32,64", show_default=True, help="Smallest, tuned and largest batch.")
@click.option("--optimization-level", default=3, show_default=True, help="0 (fast build) to 5 (fast plan).")
@click.option("--hardware-compatibility", default="none", show_default=True, help="tensorrt: none, ... or ampere_plus.")
@click.option("--version-compatible", is_flag=True, help="tensorrt: the plan also runs on later versions.")
@click.option("--timing-cache", type=click.Path(path_type=Path), help="tensorrt: file that speeds up later builds.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan's description as one JSON document on stdout.")
def build(model: str, precision: str, out: Path | None, flavour: str, as_json: bool, **options: Any) -> None:
    """Build a TensorRT plan of MODEL (an exported ONNX file, or a known name), or find it in the cache."""
    from .engine.spec import Precision
    from .engine.words import word
    from .export.plan_cache import PlanCache
    from .export.plan_check import copy_plan
    from .export.plan_words import plan_options_from_words
    from .export.store import resolve_model
    from .export.tensorrt_flavour import load_flavour

    onnx = resolve_model(model, precision=word(Precision, precision, "precision"), report=_say)
    plan = PlanCache(notice=_say).get_or_build(
        onnx, plan_options_from_words(**options), flavour=load_flavour(flavour), progress=_Throttled()
    )
    _say(f"{'hit' if plan.hit else 'built'}: {plan.reason}")
    _say(f"{plan.path}: {plan.sidecar}")
    if out is not None:
        copy_plan(plan.path, out)
    if as_json:
        click.echo(plan.sidecar.dumps())


@click.group()
def engines() -> None:
    """Look after the cache of TensorRT plans."""


@engines.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def ls(as_json: bool) -> None:
    """List the plans in the cache, most recently used first."""
    from .export.plan_cache import PlanCache

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
    from .export.plan_cache import PlanCache

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
    from .export.plan_cache import PlanCache

    seconds = older_than_days * 86_400 if older_than_days is not None else None
    removed = PlanCache().gc(keep=keep, max_bytes=max_bytes, older_than_s=seconds)
    for entry in removed:
        click.echo(entry.plan.name)
    _say(f"{len(removed)} plans deleted, {sum(entry.stored_bytes for entry in removed) / 2**20:.1f} MiB freed")


class _Throttled:
    """Prints progress of a build at most once a second on a terminal, every ten seconds elsewhere."""

    def __init__(self) -> None:
        self._interval_s = 1.0 if sys.stderr.isatty() else 10.0
        self._shown_s = time.monotonic()

    def __call__(self, progress: object) -> None:
        now = time.monotonic()
        if now - self._shown_s >= self._interval_s:
            self._shown_s = now
            _say(str(progress))


def _say(line: str) -> None:
    click.echo(line, err=True)
