"""The library's front door: words and paths in, one call into the engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from .engine.batch import Sample
    from .engine.job import RunOptions
    from .engine.report import Progress, RunReport
    from .engine.sources.interface import Source
    from .engine.sources.kind import SourceKind

Input = str | os.PathLike[str]
InMemory = Iterable["Sample | tuple[str, bytes]"]


def run(
    inputs: Input | Sequence[Input] | InMemory | None,
    *,
    out: Input,
    on_progress: Callable[[Progress], None] | None = None,
    **options: Any,
) -> RunReport:
    """Infer every image of ``inputs``: one row or one recorded failure each, in the folder ``out``.

    ``inputs`` are folders, list files, globs, tar shards, Parquet files or images, or Samples or (id, encoded bytes)
    pairs in memory; None takes the demo photos. The same call again resumes. ``options`` are those of
    ``run_options``. Raises the errors of ``vdali.engine.errors``.
    """
    from .engine.job import run as run_job

    return run_job(run_options(inputs, out=out, **options), on_progress=on_progress)


def run_options(
    inputs: Input | Sequence[Input] | InMemory | None,
    *,
    out: Input,
    model: Input = "efficientnet_lite0",
    precision: str = "fp32",
    task: str | None = None,
    normalize: bool = False,
    device: str = "auto",
    decoder: str = "auto",
    decode: str = "fast",
    truncated: str = "fail",
    exif: str | None = None,
    max_pixels: int | None = None,
    batch_size: int = 32,
    micro_batch: int | None = None,
    lanes: int | None = None,
    threads: int = 1,
    format: str = "parquet",  # noqa: A002 - the option's name
    part_rows: int = 4096,
    part_seconds: float = 60.0,
    kind: str = "auto",
    id_column: str | None = None,
    path_column: str | None = None,
    image_column: str | None = None,
    root: Input | None = None,
    shard: str | None = None,
    limit: int | None = None,
    retry_failures: bool = False,
    rescan: bool = False,
    max_failures: int | None = None,
    telemetry: TextIO | None = None,
    metrics_port: int | None = None,
    metrics_host: str = "127.0.0.1",
    depth: int | None = None,
    slots: int | None = None,
    cuda_graphs: bool = False,
    trust_plan: bool = False,
    report: Callable[[str], None] | None = None,
) -> RunOptions:
    """Checked options of a run, with the model resolved (exported first, where it is a known name).

    ``batch_size`` is the most images per engine call; on a CPU ``micro_batch`` (default: at most 8) is what is used.
    ``lanes`` decode and infer side by side (default: one per usable CPU, one on a GPU), each with ``threads`` engine
    threads and ``depth`` batches in flight; on a GPU these share ``slots`` sets of buffers.
    ``part_rows`` and ``part_seconds`` bound what a kill can cost. ``max_failures`` ends a run with
    TooManyFailuresError. ``telemetry`` takes one JSON document a second, each a line; ``metrics_port`` serves the same
    to Prometheus at ``metrics_host`` (0: any free port). ``model`` may be a TensorRT plan; ``trust_plan`` loads one
    that runs code out of the file, and ``cuda_graphs`` replays a GPU's batches with one call each. ``report`` takes
    lines for people. Raises UsageError for words that are not known.
    """
    from .engine.backends.tensorrt import TensorRTOptions
    from .engine.decoders.interface import DEFAULT_MAX_PIXELS, DecodeMode, DecodeOptions, Truncated
    from .engine.decoders.make import DecoderName
    from .engine.errors import UsageError
    from .engine.job import RunOptions
    from .engine.lanes import LaneOptions
    from .engine.plans.sidecar import PLAN_SUFFIX
    from .engine.preprocess import Exif
    from .engine.sinks.parquet import PartOptions
    from .engine.sinks.run_dir import OutputFormat
    from .engine.sources.kind import SourceKind
    from .engine.sources.shard import Shard
    from .engine.spec import Precision, Task
    from .engine.telemetry.watch import TelemetryOptions
    from .engine.words import word
    from .export.plans.search import find_plan
    from .export.store import resolve_model

    wanted = word(Precision, precision, "precision")
    decoding = DecodeOptions(
        max_pixels=max_pixels or DEFAULT_MAX_PIXELS,
        truncated=word(Truncated, truncated, "truncated"),
        mode=word(DecodeMode, decode, "decode"),
    )
    words: dict[str, Any] = {
        "kind": word(SourceKind, kind, "kind"),
        "id_column": id_column,
        "path_column": path_column,
        "image_column": image_column,
        "root": root,
        "shard": Shard.parse(shard) if shard is not None else None,
        "limit": limit,
    }
    source, total_from, names = _sources(inputs, words)
    lane_options = LaneOptions(
        word(DecoderName, decoder, "decoder"), decoding, batch_size, lanes, threads, micro_batch, depth, slots
    )
    wanted_task = word(Task, task, "task") if task is not None else None
    if (task or normalize) and Path(model).suffix in (".onnx", PLAN_SUFFIX):
        raise UsageError(
            f"--task and --normalize are for models given by name; {os.fspath(model)} has its own task and output. "
            "Leave them out, or export the model again with them."
        )
    return RunOptions(
        model=Path(model)
        if Path(model).suffix == PLAN_SUFFIX
        else resolve_model(os.fspath(model), precision=wanted, task=wanted_task, normalize=normalize, report=report),
        source=source,
        inputs=names,
        reading=_reading(words),
        out=Path(out),
        precision=wanted,
        device=device,
        lanes=lane_options,
        exif=word(Exif, exif, "exif") if exif is not None else None,
        output_format=word(OutputFormat, format, "format"),
        parts=PartOptions(rows=part_rows, seconds=part_seconds),
        shard=shard,
        limit=limit,
        retry_failures=retry_failures,
        rescan=rescan,
        max_failures=max_failures,
        total_from=total_from,
        telemetry=TelemetryOptions(stream=telemetry, metrics_port=metrics_port, metrics_host=metrics_host),
        report=report,
        find_plan=find_plan,
        tensorrt=TensorRTOptions(cuda_graphs=cuda_graphs, trust_host_code=trust_plan),
    )


def _sources(
    inputs: Input | Sequence[Input] | InMemory | None, words: dict[str, Any]
) -> tuple[Source, Source | None, tuple[str, ...]]:
    """Source to read, a second one to count where counting reads no image, and the names of what they read."""
    from .engine.sources.open import open_source

    if inputs is None:
        return _in_memory(_demo_samples(), words), None, ("demo photos",)
    paths = _paths(inputs)
    if paths is None:
        return _in_memory(cast("InMemory", inputs), words), None, (f"{type(inputs).__name__} in memory",)
    total_from = open_source(paths, **words) if _is_cheap_to_list(paths, words["kind"]) else None
    return open_source(paths, **words), total_from, tuple(os.path.abspath(path) for path in paths)


def _paths(inputs: Input | Sequence[Input] | InMemory) -> list[str] | None:
    """INPUTs as text, or None where the samples themselves were given."""
    if isinstance(inputs, str | os.PathLike):
        return [os.fspath(inputs)]
    if isinstance(inputs, Sequence) and all(isinstance(value, str | os.PathLike) for value in inputs):
        return [os.fspath(cast("Input", value)) for value in inputs]
    return None


def _reading(words: dict[str, Any]) -> dict[str, str]:
    """What was said of how to read the inputs: another column or root gives other ids or pictures."""
    said = {name: words[name] for name in ("id_column", "path_column", "image_column") if words[name] is not None}
    if words["root"] is not None:
        said["root"] = os.path.abspath(words["root"])
    return said if words["kind"] == "auto" else said | {"kind": words["kind"].value}


def _is_cheap_to_list(paths: Sequence[str], kind: SourceKind) -> bool:
    from .engine.sources.kind import SourceKind, kind_of_input

    kinds = {kind_of_input(os.fsencode(path), kind) for path in paths}
    return kinds <= {SourceKind.FOLDER, SourceKind.LIST, SourceKind.IMAGE}


def _in_memory(samples: InMemory, words: dict[str, Any]) -> Source:
    """Samples in memory behind the same wrappers that ``open_source`` puts around files."""
    from .engine.sources.limit import LimitSource
    from .engine.sources.memory import MemorySource
    from .engine.sources.shard import ShardSource
    from .engine.sources.unique import UniqueSource

    source: Source = MemorySource(samples)
    if words["shard"] is not None:
        source = ShardSource(source, words["shard"])
    source = UniqueSource(source)
    return LimitSource(source, words["limit"]) if words["limit"] is not None else source


def _demo_samples() -> list[Sample]:
    from .engine.batch import Sample
    from .engine.demo import demo_photos

    return [Sample(path.name, path.read_bytes) for path in demo_photos()]
