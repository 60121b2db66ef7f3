"""Commands that measure: a comparison with PyTorch and others, and what holds a run back."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import click

from .cli_options import FiniteRange, decode_options, gpu_options, input_options, model_options, say, speed_options
from .engine.errors import UsageError


@click.command()
@click.argument("inputs", nargs=-1, metavar="[INPUT]...")
@click.option(
    "-m", "--model", default="efficientnet_lite0", show_default=True, help="Exported FILE.onnx, or a known name."
)
@click.option("--task", type=click.Choice(["classify", "embed"]), help="Task of a model given by name.")
@click.option("--normalize", is_flag=True, help="L2-normalise embeddings of a model given by name.")
@click.option(
    "--weights", type=click.Choice(["pretrained", "random"]), default="pretrained", help="Of a model given by name."
)
@click.option(
    "--against",
    default="torch,torch-tuned,dali-torch",
    show_default=True,
    help="Other systems: torch, torch-tuned, torch-compiled, dali-torch, spdl-torch, ray; with commas between.",
)
@click.option(
    "-p",
    "--precision",
    "--precisions",
    "precision",
    default="fp32",
    show_default=True,
    help="vdali's precisions, with commas between.",
)
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N.")
@click.option("--batch-size", type=click.IntRange(1, 65536), default=32, show_default=True)
@click.option("--images", type=click.IntRange(1), default=256, show_default=True, help="Use the first N images.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Alternating rounds.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write the bench file FILE.json.")
def bench(
    inputs: tuple[str, ...], against: str, precision: str, task: str | None, json_file: Path | None, **options: Any
) -> None:
    """Compare vdali with PyTorch and others, from encoded files to results in memory.

    Every system has a process of its own, one warm-up, and its turn in each round; it gets the same files, sizes,
    batch size and CPUs. Results are compared image by image: a wrong answer is marked, however fast. Where another
    system wins, the table says so. Without INPUT, images are made from the demo photos.

    \b
    Exit status: 0 measured (a system that fails, is not installed or is wrong is a marked row), 2 usage, 3 no usable
    image, 4 device or package missing, 5 model unusable, 6 FILE.json cannot be written.
    """
    from .benchmarks.bench import BenchOptions
    from .benchmarks.bench import bench as measure
    from .benchmarks.bench_file import check_writable, write_bench
    from .benchmarks.render import render
    from .engine.spec import Precision, Task
    from .engine.words import word

    wanted = BenchOptions(
        against=_words(against),
        precisions=tuple(word(Precision, name, "precision") for name in _words(precision)) or (Precision.FP32,),
        task=None if task is None else Task(task),
        **options,
    )
    if json_file is not None:
        check_writable(json_file)
    found = measure(wanted, inputs, say)
    click.echo(render(found.report))
    if json_file is not None:
        write_bench(json_file, found.document())
        say(f"written: {json_file}. Show it with: vdali report {json_file} -o report.html")


@click.command()
@click.argument("inputs", nargs=-1, metavar="[INPUT]...")
@model_options
@input_options
@decode_options
@speed_options
@gpu_options
@click.option(
    "--images", type=click.IntRange(1), default=256, show_default=True, help="Measure stages on the first N images."
)
@click.option(
    "--seconds",
    type=FiniteRange(0, min_open=True),
    default=2.0,
    show_default=True,
    help="Length of each measurement; the whole takes twice that.",
)
@click.option(
    "--scratch",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder on the disk that OUT will be on (default: the temporary folder). Nothing stays there.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the diagnosis as one JSON document.")
def diagnose(
    inputs: tuple[str, ...], images: int, seconds: float, scratch: Path | None, as_json: bool, **options: Any
) -> None:
    """Tell what holds a run of these options back, and what a change of them would give.

    Each stage is measured alone on the first images (read, decode, copies, engine, sink), then the whole. The verdict
    is one sentence: the limit and its numbers, and what to change first with the rate to expect. INPUT is as for
    `vdali run`; give the same options.

    \b
    Exit status: 0 told, 2 usage, 3 no usable image, 4 device or runtime missing, 5 model unusable.
    """
    from .api import run_options
    from .engine.diagnosis.diagnose import diagnose as examine
    from .engine.diagnosis.text import text_of

    folder = scratch or Path(tempfile.gettempdir())
    chosen = run_options(inputs or None, out=folder, report=say, **options)
    found = examine(
        chosen.model,
        chosen.source,
        lanes=chosen.lanes,
        device=chosen.device,
        exif=chosen.exif,
        find_plan=chosen.find_plan,
        tensorrt=chosen.tensorrt,
        images=images,
        seconds=seconds,
        scratch=folder,
        report=say,
    )
    click.echo(json.dumps(found.to_json()) if as_json else text_of(found))


def _words(text: str) -> tuple[str, ...]:
    """``a,b`` as its words, each once; raises UsageError where there is nothing between two commas."""
    words = tuple(dict.fromkeys(name.strip() for name in text.split(","))) if text else ()
    if not all(words):
        raise UsageError(f"'{text}' is no list of words with commas between. Example: torch,torch-tuned")
    return words
