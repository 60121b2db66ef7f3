"""One run from options to report: opens source, engine, decoders and sink, and sends the samples through."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .backends.load import FindPlan, LoadedEngine, load_engine
from .backends.tensorrt import TensorRTOptions
from .cpu import cpu_allowance, cpu_model
from .errors import ModelError, UsageError, VdaliError
from .gpu_probe import probe_gpu
from .lanes import LaneOptions, LanePlan, make_scheduler
from .preprocess import Exif, Preprocess
from .report import Progress, RunReport, Used
from .scheduler import Scheduler
from .session import Session, check_failures
from .sinks.open import open_sink
from .sinks.parquet import PartOptions
from .sinks.run_dir import TELEMETRY_FILE, OutputFormat, RunDirectory, RunStatus
from .sources.interface import Source
from .spec import Precision
from .telemetry.watch import Counts, Telemetry, TelemetryOptions

_PACKAGES = ("numpy", "onnxruntime-gpu", "simplejpeg", "cykooz-resizer", "pillow", "nvidia-dali-cuda120", "pyarrow")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a run needs to know.

    ``inputs`` and ``reading`` (columns, root, kind) only name what ``source`` reads, for OUT's fingerprint;
    ``total_from`` is a second pass over the same entries where one is cheap, so that progress can tell the time left.
    ``report`` takes lines for people. ``find_plan`` gives the TensorRT plan that an ONNX ``model`` runs as on a GPU.
    """

    model: Path
    source: Source
    inputs: tuple[str, ...]
    out: Path
    precision: Precision = Precision.FP32
    device: str = "auto"
    lanes: LaneOptions = field(default_factory=LaneOptions)
    exif: Exif | None = None
    output_format: OutputFormat = OutputFormat.PARQUET
    parts: PartOptions = field(default_factory=PartOptions)
    shard: str | None = None
    limit: int | None = None
    retry_failures: bool = False
    rescan: bool = False
    max_failures: int | None = None
    total_from: Source | None = None
    reading: Mapping[str, str] = field(default_factory=dict)
    telemetry: TelemetryOptions = field(default_factory=TelemetryOptions)
    report: Callable[[str], None] | None = None
    find_plan: FindPlan | None = None
    tensorrt: TensorRTOptions = field(default_factory=TensorRTOptions)


def run(options: RunOptions, *, on_progress: Callable[[Progress], None] | None = None) -> RunReport:
    """Run or resume; returns the report, whose status is finished, already_finished or interrupted.

    Raises the errors of ``engine.errors``; whatever ends a run, all that was written is committed.
    """
    _check_out(options)
    loaded = load_engine(
        options.model,
        device=options.device,
        threads=options.lanes.threads,
        find_plan=options.find_plan,
        tensorrt=options.tensorrt,
    )
    if loaded.fell_back and options.report is not None:
        options.report(loaded.reason)
    with closing(loaded.engine):
        _check_precision(loaded, options)
        spec = loaded.engine.spec
        preprocess = spec.preprocess if options.exif is None else replace(spec.preprocess, exif=options.exif)
        with RunDirectory(
            options.out,
            spec=replace(spec, preprocess=preprocess),
            fingerprint_parts=_fingerprint_parts(options, loaded, preprocess),
            output_format=options.output_format,
            retry_failures=options.retry_failures,
        ) as directory:
            return _run_in(directory, options, loaded, preprocess, on_progress)


def _run_in(
    directory: RunDirectory,
    options: RunOptions,
    loaded: LoadedEngine,
    preprocess: Preprocess,
    on_progress: Callable[[Progress], None] | None,
) -> RunReport:
    if directory.finished and not options.rescan and directory.used.get("limit") == options.limit:
        return _already_finished(directory, options)
    scheduler, plan = make_scheduler(loaded.engine, options.lanes, preprocess)
    report = RunReport(
        options.out, "failed", _used(options, loaded, plan), Progress(), source=options.source.describe()
    )
    with closing(scheduler), _telemetry(directory, options, report.progress, scheduler, loaded.ordinal) as telemetry:
        directory.start(environment(loaded.ordinal))
        with closing(open_sink(directory, options.parts)) as sink:
            session = Session(
                options.source,
                report,
                scheduler,
                on_progress=on_progress,
                total_from=options.total_from if on_progress else None,
                earlier_failures=directory.count().failures,
                max_failures=options.max_failures,
                may_be_empty=options.shard is not None,
            )
            try:
                session.run(sink, plan.micro_batch)
            finally:
                telemetry.stop()
                report.telemetry = telemetry.to_json()
                _finish(directory, options, report)
    return report


@contextmanager
def _telemetry(
    directory: RunDirectory, options: RunOptions, progress: Progress, scheduler: Scheduler, ordinal: int | None
) -> Iterator[Telemetry]:
    """What watches the coming session; a run on the CPU watches every GPU of the machine, which idle."""

    def counts() -> Counts:
        return Counts(progress.rows, progress.failures, scheduler.times())

    with Telemetry(
        directory.path / TELEMETRY_FILE,
        session=directory.sessions + 1,
        counts=counts,
        gpus=None if ordinal is None else [ordinal],
        options=options.telemetry,
    ) as telemetry:
        if telemetry.metrics_port is not None and options.report is not None:
            options.report(f"metrics at http://{options.telemetry.metrics_host}:{telemetry.metrics_port}/metrics")
        yield telemetry


def _finish(directory: RunDirectory, options: RunOptions, report: RunReport) -> None:
    """Write run.json, with what the part files now hold."""
    found = directory.finish(
        RunStatus(report.status),
        used=asdict(report.used) | {"limit": options.limit},
        counts={"inputs": report.progress.listed, "ignored": dict(report.ignored)},
        session=report.to_json(),
    )
    report.rows_total, report.failures_total = found.rows, found.failures
    if report.status == "finished" and found.rows + found.failures < report.progress.listed:
        raise VdaliError(
            f"{report.progress.listed:,} entries were listed but {options.out} holds {found.rows:,} rows and "
            f"{found.failures:,} failures. This is a fault of vdali: please report it with run.json."
        )


def _already_finished(directory: RunDirectory, options: RunOptions) -> RunReport:
    found = directory.count()
    check_failures(found.failures, options.max_failures, options.out)
    used = dict(directory.used)
    used.pop("limit", None)
    report = RunReport(options.out, "already_finished", Used(**used), Progress(), source=options.source.describe())
    report.rows_total, report.failures_total = found.rows, found.failures
    return report


def _used(options: RunOptions, loaded: LoadedEngine, plan: LanePlan) -> Used:
    spec = loaded.engine.spec
    return Used(
        engine=loaded.engine.name,
        reason=loaded.reason,
        decoder=plan.decoder,
        model=spec.name,
        weights=spec.weights,
        precision=spec.precision.value,
        batch_size=options.lanes.batch_size,
        micro_batch=plan.micro_batch,
        lanes=plan.lanes,
        threads_per_lane=plan.threads,
        device=plan.device,
        depth=plan.depth,
        slots=plan.slots,
    )


def _check_precision(loaded: LoadedEngine, options: RunOptions) -> None:
    spec = loaded.engine.spec
    if spec.precision is not options.precision:
        raise ModelError(
            f"{options.model} is {spec.precision}, but --precision {options.precision} was asked for. "
            f"Use --precision {spec.precision}, or export the model at {options.precision}."
        )


def _check_out(options: RunOptions) -> None:
    """Raise UsageError for an output folder that Parquet readers could not open, or that a later run would read."""
    try:
        os.fspath(options.out).encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"The output folder {options.out!r} has a name that is not UTF-8, which Parquet readers cannot open. "
            "Choose another name."
        ) from None
    out = os.path.realpath(options.out)
    for name in options.inputs:
        folder = os.path.realpath(name)
        if os.path.isdir(folder) and os.path.commonpath([out, folder]) == folder:
            raise UsageError(
                f"The output folder {options.out} is inside the INPUT {name}. Choose one outside, so that a later "
                "run does not read what this one wrote."
            )


def _fingerprint_parts(options: RunOptions, loaded: LoadedEngine, preprocess: Preprocess) -> dict[str, str]:
    """What must be the same for two sessions to belong to one run."""
    spec, decode = loaded.engine.spec, options.lanes.decode
    return {
        "model content": loaded.engine.content,
        "preprocessing": json.dumps(preprocess.to_json(), sort_keys=True),
        "precision": spec.precision.value,
        "task": spec.task.value,
        "normalize": str(spec.normalize),
        "decoder": options.lanes.decoder.value,
        "decode": decode.mode.value,
        "truncated": decode.truncated.value,
        "max pixels": str(decode.max_pixels),
        "input": "\n".join(options.inputs),
        "reading": json.dumps(dict(options.reading), sort_keys=True),
        "shard": options.shard or "all",
    }


def environment(gpu: int | None = None) -> dict[str, Any]:
    """Versions and machine, for run.json; with the name of ``gpu``, the CUDA ordinal in use."""
    allowance = cpu_allowance()
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": cpu_model(),
        "cpus_usable": allowance.threads,
        **({} if gpu is None else {"gpus": [probe_gpu().gpus[gpu].name]}),
        "packages": {name: found for name in _PACKAGES if (found := _version(name)) is not None},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
