"""The command ``vdali``: words to objects, one library call, errors to messages and exit statuses.

Results and JSON go to stdout, everything else to stderr. Nothing heavy is imported before a command needs it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

import click

from .cli_bench import bench, diagnose
from .cli_engines import engines
from .cli_models import build, export, validate
from .cli_options import decode_options, gpu_options, input_options, model_options, options_of, say, speed_options
from .cli_report import cost, report
from .cli_sweep import scenario, sweep
from .engine.errors import UsageError, VdaliError
from .engine.version import __version__

INTERRUPTED = 130


class ErrorsToMessages(click.Group):
    """Group whose commands end in a message and a status where the library raises VdaliError."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except VdaliError as error:
            click.echo(f"vdali: {error}", err=True)
            context.exit(error.exit_status)
        except KeyboardInterrupt:
            click.echo("vdali: interrupted. Run the same command again to go on.", err=True)
            context.exit(INTERRUPTED)
        except OSError as error:
            if sys.stdout is not None:
                # where stdout went away or is full, a second error at exit would only repeat that
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if not isinstance(error, BrokenPipeError):
                click.echo(f"vdali: {error}. Mend that, then run the same command again.", err=True)
            context.exit(1)


@click.group(cls=ErrorsToMessages, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="vdali")
def main() -> None:
    """Batch vision inference: encoded images in, embeddings, labels and masks out."""
    _stop_on_sigterm()


output_options = options_of(
    click.option(
        "-o", "--output", type=click.Path(path_type=Path), help="Output folder OUT. Needed, save for the demo."
    ),
    click.option("--format", "format_", type=click.Choice(["parquet", "npy"]), default="parquet", show_default=True),
    click.option(
        "--part-rows",
        type=click.IntRange(1),
        default=4096,
        show_default=True,
        help="Rows after which a part file is written (whole batches).",
    ),
    click.option(
        "--part-seconds",
        type=click.FloatRange(0, min_open=True),
        default=60.0,
        show_default=True,
        help="Longest time between commits.",
    ),
    click.option("--rescan", is_flag=True, help="List INPUT again although the run is finished: it may have grown."),
    click.option("--retry-failures", is_flag=True, help="Try permanent failures of earlier sessions again too."),
    click.option(
        "--max-failures", type=click.IntRange(0), help="End with status 7 once more samples than this have failed."
    ),
    click.option("--strict", is_flag=True, help="Same as --max-failures 0."),
    click.option("--json", "as_json", is_flag=True, help="Print the run's report as one JSON document on stdout."),
)

telemetry_options = options_of(
    click.option(
        "--telemetry",
        type=click.Choice(["jsonl"]),
        help="Also print a line of JSON on stdout each second: what OUT/telemetry.parquet gets.",
    ),
    click.option(
        "--metrics-port", type=click.IntRange(0, 65535), help="Serve the same to Prometheus here (0: any free port)."
    ),
    click.option("--metrics-host", default="127.0.0.1", show_default=True, help="Address that --metrics-port is of."),
)


@main.command()
@click.argument("inputs", nargs=-1, metavar="[INPUT]...")
@model_options
@output_options
@input_options
@decode_options
@speed_options
@gpu_options
@telemetry_options
def run(inputs: tuple[str, ...], **options: Any) -> None:
    """Infer every image of INPUT: one row or one recorded failure each, in OUT.

    INPUT is a folder, a list file (.txt, .csv, .jsonl, .parquet), a glob pattern, tar shards, Parquet with image
    bytes, or one image. Without INPUT the demo photos are used. The same command again resumes.

    \b
    Exit status: 0 done (failures are recorded), 2 usage, 3 no input found, 4 device or runtime missing,
    5 model unusable, 6 OUT belongs to another run, 7 too many failures, 130 interrupted (all so far is kept).
    """
    from .display import ProgressDisplay, labels_table, summary_of
    from .engine.job import run as run_job

    as_json, lines = options.pop("as_json"), options.pop("telemetry")
    if as_json and lines:
        raise UsageError("--json and --telemetry jsonl both write to stdout. Leave one of them out.")
    demo = not inputs
    with _json_lines(lines) as stream:
        prepared = _prepared(inputs, options | {"telemetry": stream})
        with ProgressDisplay() as display:
            report = run_job(prepared, on_progress=display.update)
    click.echo(summary_of(report), err=True)
    if demo:
        click.echo(labels_table(report.out), err=as_json or lines is not None)
    if as_json:
        click.echo(json.dumps(report.document()))
    if report.status == "interrupted":
        sys.exit(INTERRUPTED)


def _prepared(inputs: tuple[str, ...], options: dict[str, Any]) -> Any:
    """RunOptions from the command's words."""
    from .api import run_options

    output = options.pop("output")
    if output is None:
        if inputs:
            raise UsageError("No output folder was given. Add -o OUT.")
        output = Path("demo-out")
    if options.pop("strict"):
        options["max_failures"] = 0
    return run_options(inputs or None, out=output, format=options.pop("format_"), report=say, **options)


@contextmanager
def _json_lines(wanted: str | None) -> Iterator[TextIO | None]:
    """Stdout for telemetry's lines, by a file of its own: a reader that goes away ends the lines, not the run."""
    if wanted is None:
        yield None
        return
    stream = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    try:
        yield stream
    finally:
        with suppress(OSError):
            stream.close()


def _stop_on_sigterm() -> None:
    """A spot machine's notice ends the run as Ctrl-C does: what was done is committed."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print the findings as one JSON document.")
def doctor(as_json: bool) -> None:
    """Tell what works on this machine and why the rest does not: GPU, runtimes, decoders, limits."""
    from rich.console import Console

    from .engine.doctor.examination import examine
    from .engine.doctor.render import render

    report = examine()
    if as_json:
        click.echo(json.dumps(report.to_json(), indent=2))
    else:
        render(report, Console())


main.add_command(export)
main.add_command(validate)
main.add_command(build)
main.add_command(engines)
main.add_command(bench)
main.add_command(diagnose)
main.add_command(cost)
main.add_command(report)
main.add_command(sweep)
main.add_command(scenario)
