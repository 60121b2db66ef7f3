"""Commands that look for the best setting and for its limits: sweep, scenario."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .cli_options import FiniteRange, model_options, say

if TYPE_CHECKING:
    from .benchmarks.scenario.run import ScenarioOptions
    from .benchmarks.sweep.model import SweepOptions
    from .benchmarks.sweep.models import SweepModels


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
@click.option("--seconds", type=FiniteRange(0, min_open=True), default=1.0, show_default=True, help="Length of a pass.")
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
    Exit status: 0 done (failed points are rows), 2 usage, 3 no input found, 4 device missing, 5 model unusable,
    6 FILE holds another sweep or cannot be written.
    """
    from .benchmarks.staged import staged_images
    from .benchmarks.sweep.run import sweep as run_sweep
    from .benchmarks.sweep.text import sweep_text

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
    from .benchmarks.sweep.model import SweepOptions, size_from_text
    from .engine.decoders.make import DecoderName
    from .engine.spec import Precision, Task
    from .engine.words import word

    _check_by_name(plain["model"], task=task, normalize=False, weights=plain["weights"])
    return SweepOptions(
        precisions=tuple(word(Precision, text.strip(), "precision") for text in precisions.split(",")),
        decoders=tuple(word(DecoderName, text.strip(), "decoder") for text in decoders.split(",")),
        resolutions=tuple(map(size_from_text, resolutions.split(","))) if resolutions else (),
        device=device_of(device),
        task=word(Task, task, "task") if task is not None else None,
        **plain,
    )


@click.command()
@click.argument("name", type=click.Choice(["offline", "single-stream", "server", "all"]))
@click.argument("inputs", nargs=-1, metavar="[INPUT]...")
@model_options
@click.option("--weights", default="pretrained", show_default=True, help="pretrained or random: speed is the same.")
@click.option("--decoder", default="auto", show_default=True, help="auto, turbo, dali or pillow.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N.")
@click.option("--lanes", type=click.IntRange(1, 1024), help="Workers (default: one per usable CPU).")
@click.option("--threads", type=click.IntRange(1, 1024), default=1, show_default=True, help="Engine threads of a lane.")
@click.option(
    "--micro-batch",
    type=click.IntRange(1, 65536),
    default=8,
    show_default=True,
    help="Most waiting images that a lane takes at once.",
)
@click.option(
    "--seconds", type=FiniteRange(0, min_open=True), default=4.0, show_default=True, help="Length of a trial."
)
@click.option(
    "--min-queries", type=click.IntRange(1), default=200, show_default=True, help="Fewest queries of a server trial."
)
@click.option(
    "--bound-ms",
    type=FiniteRange(0, min_open=True),
    default=100.0,
    show_default=True,
    help="p99 latency that a server rate must hold.",
)
@click.option("--max-trials", type=click.IntRange(1), default=60, show_default=True, help="Most trials of the search.")
@click.option("--images", type=click.IntRange(1), default=256, show_default=True, help="Most images taken from INPUT.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Also write the document to this JSON file."
)
@click.option("--json", "as_json", is_flag=True, help="Print the document on stdout instead of the declared results.")
def scenario(
    name: str,
    inputs: tuple[str, ...],
    images: int,
    output: Path | None,
    as_json: bool,
    **words: Any,
) -> None:
    """Load decoder and engine with MLPerf-style traffic; each scenario ends with its one declared result.

    \b
    offline        all samples at once: samples/s
    single-stream  one after the other: p90 latency
    server         arrivals at random: the largest rate whose p99 latency holds --bound-ms, confirmed 3 times
    all            these three in turn

    MLPerf's load generator makes the traffic (pip install 'vdali[loadgen]'); it is MLPerf-style, not a submission.
    INPUT is as for `vdali run`; without it, photos of about 500x375 are made from the demo photos.
    """
    from .benchmarks.bench_file import check_writable, write_bench
    from .benchmarks.scenario.load import ScenarioName, load_generator
    from .benchmarks.scenario.run import run_scenarios
    from .benchmarks.staged import staged_images
    from .benchmarks.systems.network import spec_of

    load_generator()
    if output is not None:
        check_writable(output)
    model = {key: words.pop(key) for key in ("model", "precision", "task", "normalize", "weights")}
    options = _scenario_options(**words)
    path = _model_file(**model)
    with tempfile.TemporaryDirectory(prefix="vdali-scenario-") as folder:
        files, left_out = staged_images(inputs, Path(folder), spec_of(path).preprocess, limit=images)
        pictures = [file.read_bytes() for file in files]
    if left_out:
        say(f"{len(left_out)} entries of the input were left out: they do not decode")
    names = list(ScenarioName) if name == "all" else [ScenarioName(name)]
    document = run_scenarios(names, path, pictures, options, say)
    if output is not None:
        write_bench(output, document)
        say(f"written to {output}")
    click.echo(json.dumps(document) if as_json else "\n".join(result["declared"] for result in document["results"]))


def _model_file(*, model: str, precision: str, task: str | None, normalize: bool, weights: str) -> Path:
    """File of the model that the words name; raises UsageError and ModelError as `vdali run` does."""
    from .benchmarks.systems.network import spec_of
    from .engine.errors import ModelError
    from .engine.spec import Precision, Task
    from .engine.words import word
    from .export.store import resolve_model

    _check_by_name(model, task=task, normalize=normalize, weights=weights)
    wanted_task = word(Task, task, "task") if task is not None else None
    wanted = word(Precision, precision, "precision")
    path = resolve_model(model, precision=wanted, task=wanted_task, normalize=normalize, weights=weights, report=say)
    found = spec_of(path).precision
    if found is not wanted:
        raise ModelError(f"{path} is {found}, but --precision {wanted} was asked for. Use --precision {found}.")
    return path


def _check_by_name(model: str, *, task: str | None, normalize: bool, weights: str) -> None:
    """Raise UsageError where options of models that are given by name come with a file."""
    from .engine.errors import UsageError

    if Path(model).suffix == ".onnx" and (task or normalize or weights != "pretrained"):
        raise UsageError(
            f"--task, --normalize and --weights are for models given by name; {model} has its own. Leave them out."
        )


def _scenario_options(
    *,
    decoder: str,
    device: str,
    lanes: int | None,
    threads: int,
    micro_batch: int,
    seconds: float,
    min_queries: int,
    bound_ms: float,
    max_trials: int,
) -> ScenarioOptions:
    from .benchmarks.compare import device_of
    from .benchmarks.scenario.run import ScenarioOptions
    from .engine.decoders.make import DecoderName
    from .engine.words import word

    return ScenarioOptions(
        decoder=word(DecoderName, decoder, "decoder"),
        device=device_of(device),
        lanes=lanes,
        threads=threads,
        most=micro_batch,
        seconds=seconds,
        fewest=min_queries,
        bound_s=bound_ms / 1e3,
        most_trials=max_trials,
    )
