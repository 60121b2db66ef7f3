"""Options that several commands share: what INPUT is, how it is decoded, what works at it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def options_of(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several options as one decorator; help lists them in this order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


class FiniteRange(click.FloatRange):
    """A range of numbers without ``nan`` and ``inf``, which click's own lets pass."""

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> Any:
        number = super().convert(value, param, context)
        if not math.isfinite(number):
            self.fail(f"{value} is no length of time: give a number.", param, context)
        return number


model_options = options_of(
    click.option(
        "-m",
        "--model",
        default="efficientnet_lite0",
        show_default=True,
        help="Exported FILE.onnx, FILE.plan, or a known name.",
    ),
    click.option(
        "-p", "--precision", default="fp32", show_default=True, help="fp32, tf32, fp16, bf16, int8 or int8+fp16."
    ),
    click.option("--task", type=click.Choice(["classify", "embed", "segment"]), help="Task of a model given by name."),
    click.option("--normalize", is_flag=True, help="L2-normalise embeddings of a model given by name."),
)

input_options = options_of(
    click.option("--kind", default="auto", help="What INPUT is: auto, folder, list, glob, tar, parquet or image."),
    click.option("--id-column", help="Column with the ids of a list or Parquet INPUT."),
    click.option("--path-column", help="Column with the paths of a list INPUT (default: path)."),
    click.option("--image-column", help="Column with the image bytes of a Parquet INPUT (default: found by its type)."),
    click.option("--root", help="Folder that relative paths of a list INPUT start from (default: the list's folder)."),
    click.option("--shard", help="i/n: take only part i of n, i from 0. Every part keeps its own OUT."),
    click.option("--limit", type=click.IntRange(1), help="Take only the first N entries."),
)

decode_options = options_of(
    click.option("--decoder", default="auto", show_default=True, help="auto, turbo, dali or pillow."),
    click.option(
        "--decode",
        type=click.Choice(["fast", "exact"]),
        default="fast",
        show_default=True,
        help="fast: JPEGs far larger than needed are decoded at a reduced scale.",
    ),
    click.option(
        "--truncated",
        type=click.Choice(["fail", "salvage"]),
        default="fail",
        show_default=True,
        help="What a picture that ends early becomes: a failure, or a row flagged `salvaged`.",
    ),
    click.option("--exif", type=click.Choice(["apply", "ignore"]), help="Overrides the model's EXIF orientation rule."),
    click.option(
        "--max-pixels", type=click.IntRange(1), help="Pictures of more pixels are failures (default 178956970)."
    ),
)

speed_options = options_of(
    click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N."),
    click.option("--batch-size", type=click.IntRange(1, 65536), default=32, show_default=True),
    click.option(
        "--lanes", type=click.IntRange(1, 1024), help="Workers that decode and infer (default: one per usable CPU)."
    ),
    click.option(
        "--threads", type=click.IntRange(1, 1024), default=1, show_default=True, help="Engine threads of each lane."
    ),
    click.option(
        "--micro-batch", type=click.IntRange(1, 65536), help="Images per engine call on a CPU (default: up to 8)."
    ),
)

gpu_options = options_of(
    click.option("--depth", type=click.IntRange(1, 64), help="Batches in flight per lane (default: GPU 5, CPU 2)."),
    click.option("--slots", type=click.IntRange(1, 64), help="Sets of buffers of a GPU's lane (default: 3)."),
    click.option("--cuda-graphs", is_flag=True, help="Replay a GPU's batches with one call each (TensorRT plans)."),
    click.option("--trust-plan", is_flag=True, help="Load a version-compatible plan, which runs code out of the file."),
)


def say(line: str) -> None:
    """A line for people: on stderr, since stdout is for results."""
    click.echo(line, err=True)
