"""Commands that look for the best setting: sweep."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .cli_options import say

if TYPE_CHECKING:
    from .benchmarks.sweep_model import SweepOptions
    from .benchmarks.sweep_models import SweepModels


@click.command()
@click.argument("inputs", nargs=-1, metavar="[INPUT]...")
@click.option(
    "-m", "--model", default="efficientnet_lite0", show_default=True, help="Exported FILE.onnx, or a known name."
)
@click.option("--precisions", default="fp32", show_default=True, help="With commas: fp32,fp16,int8,...")
@click.option("--decoders", default="turbo", show_default=True, help="With commas: turbo,dali,pillow.")
@click.option("--resolutions", help="With commas: 160,224 or 192x256 (default: the model's own).")
@click.option("--max-batch", type=click.IntRange(1, 65536), default=64, show_default=True, help="Largest batch size.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N.")
@click.option("--lanes", type=click.IntRange(1, 1024), help="Workers (default: one per usable CPU).")
@click.option("--threads", type=click.IntRange(1, 1024), default=1, show_default=True, help="Engine threads of a lane.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Passes that measure a point.")
@click.option(
    "--seconds", type=click.FloatRange(0, min_open=True), default=1.0, show_default=True, help="Length of a pass."
)
@click.option("--images", type=click.IntRange(1), default=256, show_default=True, help="Most images taken from INPUT.")
@click.option("--task", type=click.Choice(["classify", "embed", "segment"]), help="Task of a model given by name.")
@click.option("--weights", default="pretrained", show_default=True, help="pretrained or random: speed is the same.")
@click.option("--retry-failures", is_flag=True, help="Measure points that failed in an earlier session again.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), required=True, help="JSON file of the sweep."
)
@click.option("--json", "as_json", is_flag=True, help="Print the document on stdout instead of the plot.")
def sweep(inputs: tuple[str, ...], output: Path, retry_failures: bool, as_json: bool, **words: Any) -> None:
    """Find the batch size, precision, resolution and decoder to run at: images/s, latency and memory of each.

    Batch sizes are doubled from 1 until that gains less than 5 % or memory ends. Each point is measured in a process
    of its own; one that fails is a row. Every finished point is in the file of -o at once, and the same command goes
    on from there. `vdali report FILE -o sweep.html` draws it. INPUT is as for `vdali run`; without it, photos of
    about 500x375 are made from the demo photos.

    \b
    Exit status: 0 done (failed points are rows), 2 usage, 3 no input found, 5 model unusable, 6 FILE holds another
    sweep.
    """
    from .benchmarks.staged import staged_images
    from .benchmarks.sweep import sweep as run_sweep
    from .benchmarks.sweep_text import sweep_text

    options = _options(**words)
    with tempfile.TemporaryDirectory(prefix="vdali-sweep-") as folder:

        def stage(models: SweepModels) -> tuple[list[Path], dict[str, str]]:
            return staged_images(inputs, Path(folder) / "images", models.spec.preprocess, limit=options.images)

        names = [os.path.abspath(name) for name in inputs]
        document = run_sweep(options, names, stage, output, retry_failures=retry_failures, say=say)
    click.echo(json.dumps(document) if as_json else sweep_text(document))
    say(f"written to {output}")


def _options(
    *, precisions: str, decoders: str, resolutions: str | None, device: str, task: str | None, **plain: Any
) -> SweepOptions:
    from .benchmarks.compare import device_of
    from .benchmarks.sweep_model import SweepOptions, size_from_text
    from .engine.decoders.make import DecoderName
    from .engine.spec import Precision, Task
    from .engine.words import word

    return SweepOptions(
        precisions=tuple(word(Precision, text.strip(), "precision") for text in precisions.split(",")),
        decoders=tuple(word(DecoderName, text.strip(), "decoder") for text in decoders.split(",")),
        resolutions=tuple(map(size_from_text, resolutions.split(","))) if resolutions else (),
        device=device_of(device),
        task=word(Task, task, "task") if task is not None else None,
        **plain,
    )
