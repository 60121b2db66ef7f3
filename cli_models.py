"""Commands about one model: export to ONNX, validate a precision, build a plan."""

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
@click.option("-p", "--precision", default="fp32", show_default=True, help="fp32, tf32, fp16, bf16, int8 or int8+fp16.")
@click.option(
    "--calibrate", multiple=True, metavar="IMAGES", help="Images that another precision is made and judged on."
)
def export(model: str, out: Path, precision: str, calibrate: tuple[str, ...], **options: Any) -> None:
    """Write MODEL as an ONNX file that holds its own pre- and post-processing, and compare it with its source.

    MODEL is efficientnet_lite0, timm/NAME, torchvision/NAME, package.module:factory, or a plain FILE.onnx.

    \b
    Exit status: 0 written, 2 usage, 4 a package is missing, 5 the model cannot be exported or does not agree.
    """
    from .engine.spec import Precision
    from .engine.words import word
    from .export.at_precision import export_at_precision
    from .export.words import options_from_words

    wanted = word(Precision, precision, "precision")
    spec = export_at_precision(model, out, options_from_words(**options), wanted, list(calibrate) or None, _say)
    _say(f"{out}: {spec.name}, {spec.task}, {spec.precision}, weights {spec.weights}")


@click.command()
@click.argument("model")
@click.argument("images", nargs=-1, metavar="[IMAGES]...")
@click.option("-p", "--precision", required=True, help="Precision to judge: fp16, int8, ...")
@click.option("--reference", help="fp32 file to compare with, where MODEL is a file at another precision already.")
@click.option("--limit", type=click.IntRange(1), default=512, show_default=True, help="Most pictures to judge on.")
@click.option("--cosine-min", type=float, help="Least cosine of any picture.")
@click.option("--cosine-p1", type=float, help="Least first percentile of the cosines.")
@click.option("--cosine-median", type=float, help="Least median of the cosines.")
@click.option("--top1", type=float, help="Least share of pictures with the same best class.")
@click.option("--iou-min", type=float, help="Least mask IoU of any picture.")
@click.option("--iou-mean", type=float, help="Least mean mask IoU.")
@click.option("--norm-difference-max", type=float, help="Greatest relative difference of a vector's length.")
@click.option("--json", "as_json", is_flag=True, help="Print the agreement as one JSON document on stdout.")
def validate(
    model: str,
    images: tuple[str, ...],
    precision: str,
    reference: str | None,
    limit: int,
    as_json: bool,
    **limits: float | None,
) -> None:
    """Compare MODEL at a precision with its fp32 self on IMAGES (default: the demo photos), picture by picture.

    \b
    Exit status: 0 good enough, 3 no usable image, 5 refused: the worst picture and its value are named.
    """
    from .engine.spec import Precision
    from .engine.words import word
    from .export.at_precision import validate_precision

    wanted = word(Precision, precision, "precision")
    agreement = validate_precision(
        model, wanted, list(images) or None, reference=reference, picture_limit=limit, limits=limits, report=_say
    )
    _say(f"good enough: {agreement}, on {agreement.pictures} pictures in batches of {agreement.batches}")
    for respect, worst in agreement.worst.items():
        _say(f"  worst {respect}: {worst.id}: {worst.found}")
    if as_json:
        click.echo(json.dumps(agreement.to_json()))


@click.command()
@click.argument("model")
@click.option("-p", "--precision", help="Default: that of the file MODEL; of a known name fp32.")
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Also copy the plan (and its sidecar) to this file.")
@click.option("--flavour", default="auto", show_default=True, help="auto, tensorrt or tensorrt_rtx.")
@click.option("--target", help="TensorRT-RTX: compute capabilities to build for, such as sm89,sm120. Needs no GPU.")
@click.option("--batch-profile", default="1,32,64", show_default=True, help="Smallest, tuned and largest batch.")
@click.option("--optimization-level", default=3, show_default=True, help="0 (fast build) to 5 (fast plan).")
@click.option("--hardware-compatibility", default="none", show_default=True, help="tensorrt: none, ... or ampere_plus.")
@click.option("--version-compatible", is_flag=True, help="tensorrt: the plan also runs on later versions.")
@click.option("--timing-cache", type=click.Path(path_type=Path), help="tensorrt: file that speeds up later builds.")
@click.option("--reference", help="fp32 file to prove the plan against, where MODEL is a file at another precision.")
@click.option("--images", multiple=True, help="Images to prove it on, where a GPU fits (default: the demo photos).")
@click.option("--json", "as_json", is_flag=True, help="Print the plan's description as one JSON document on stdout.")
def build(
    model: str,
    precision: str | None,
    out: Path | None,
    flavour: str,
    reference: str | None,
    images: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Build a TensorRT plan of MODEL (an exported ONNX file, or a known name), or find it in the cache.

    On a GPU that the plan is for it is run and compared with its fp32 reference; elsewhere it is built, not run.

    \b
    Exit status: 0 built or found, 4 no TensorRT, 5 the model or its plan was refused.
    """
    from .engine.plans.check import copy_plan
    from .engine.plans.flavour import load_flavour
    from .engine.spec import Precision
    from .engine.words import word
    from .export.at_precision import file_at_precision
    from .export.plans.cache import PlanCache
    from .export.plans.words import plan_options_from_words
    from .export.proof import prove_here

    onnx = file_at_precision(model, word(Precision, precision, "precision") if precision else None, _say)
    loaded = load_flavour(flavour)
    plan = PlanCache(notice=_say).get_or_build(
        onnx, plan_options_from_words(**options), flavour=loaded, progress=_Throttled()
    )
    plan = prove_here(plan, loaded, reference or model, list(images) or None, _say)
    _say(f"{'hit' if plan.hit else 'built'}: {plan.reason}")
    _say(f"{plan.path}: {plan.sidecar}")
    if out is not None:
        copy_plan(plan.path, out)
    if as_json:
        click.echo(plan.sidecar.dumps())


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
