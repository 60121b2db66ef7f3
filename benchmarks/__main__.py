"""``python -m vdali.benchmarks``: what `make bench` prints. One JSON document goes to a file.

The counts below are such that all parts together take less than ten minutes on two cores.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ..engine.errors import VdaliError
from ..engine.spec import Task
from ..export.model import export_model
from ..export.options import PRETRAINED, RANDOM, ExportOptions
from .advice import measure_advice
from .bench_file import write_bench
from .compare import compare
from .data import large_jpegs, make_jpegs, make_large_jpegs
from .engines import measure_engines, render_engines
from .loader import compare_loaders
from .measure import Spread
from .render import render
from .robustness import WARM, measure_robustness
from .stages import measure_stages
from .systems.network import spec_of

PARTS = ("loaders", "stages", "models", "robustness", "large", "advice", "engines")
USUAL_PARTS = PARTS[:4]
"""Those that run when none is named; ``large`` joins them where a folder of real photos is given."""

LOADER_PHOTOS = 400
ROBUSTNESS_PHOTOS = 4500
ROBUSTNESS_ROUNDS = 1
ADVICE_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class BenchModel:
    """A model of the benchmark, and so many images that a round of each system takes some seconds on two cores."""

    name: str
    images: int
    weights: str = RANDOM

    @property
    def file_name(self) -> str:
        return f"{self.name.rpartition('/')[2]}-embed.onnx"


MODELS = (
    BenchModel("timm/mobilenetv3_small_100", 384),
    BenchModel("efficientnet_lite0", 64, weights=PRETRAINED),
    BenchModel("timm/resnet50", 64),
    BenchModel("timm/vit_small_patch16_224", 64),
)
SYSTEMS = ("vdali", "torch", "torch-tuned")


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """Where files go, how often each comparison runs, and what to run it on; ``share`` of the images are used."""

    folder: Path
    rounds: int
    large: Path | None = None
    models: Sequence[BenchModel] = MODELS
    systems: Sequence[str] = SYSTEMS
    share: float = 1.0

    def count(self, images: int) -> int:
        return max(1, round(self.share * images))


@click.command()
@click.option("--folder", type=click.Path(path_type=Path), default=Path("bench-out"), show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Rounds of each comparison.")
@click.option(
    "--part",
    "parts",
    multiple=True,
    type=click.Choice(PARTS),
    help=f"Only these parts (default: {', '.join(USUAL_PARTS)}, and large with --large).",
)
@click.option("--model", "names", multiple=True, help="Only these models, by the end of their names (default: all).")
@click.option("--systems", default=",".join(SYSTEMS), show_default=True, help="Systems that run the models.")
@click.option(
    "--large",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder of real JPEGs of 5.5 megapixels or more (with --part large alone, synthetic ones are made).",
)
@click.option(
    "--share",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    show_default=True,
    help="Use this share of the images: 0.1 for a quick look.",
)
def main(parts: tuple[str, ...], names: tuple[str, ...], systems: str, **words: Any) -> None:
    """Measure loaders, stages, models and robustness; print medians (min to max) and write FOLDER/bench.json.

    With --part the file is FOLDER/bench-PART.json.
    """
    started_s = time.monotonic()
    models = [model for model in MODELS if not names or model.name.endswith(names)]
    settings = BenchSettings(models=models, systems=systems.split(","), **words)
    bench = _Bench(settings)
    path = settings.folder / f"{'-'.join(('bench', *parts))}.json"
    document: dict[str, Any] = {"kind": "benchmark"}
    for part in parts or (*USUAL_PARTS, *(["large"] if settings.large else [])):
        document |= bench.measured(part)
        write_bench(path, document)
    print(f"written to {path} after {time.monotonic() - started_s:.0f} s")


class _Bench:
    """The parts of the benchmark; each prints what it found and returns its keys of the bench file."""

    def __init__(self, settings: BenchSettings) -> None:
        self._settings = settings
        self._parts: dict[str, Callable[[], dict[str, Any]]] = {
            "loaders": self._loaders,
            "stages": self._stages,
            "models": self._comparisons,
            "robustness": self._robustness,
            "large": self._large_photos,
            "advice": self._advice,
            "engines": self._engines,
        }

    def measured(self, part: str) -> dict[str, Any]:
        started_s = time.monotonic()
        found = self._parts[part]()
        print(f"{part}: {time.monotonic() - started_s:.0f} s", end="\n\n")
        return found

    def _photos(self, count: int) -> list[Path]:
        """The first ``count`` of the photos of about 500x375, less where a share was asked for."""
        most = max(LOADER_PHOTOS, *(model.images for model in MODELS))
        return make_jpegs(self._settings.folder / f"photos-{most}", count=most)[: self._settings.count(count)]

    def _loaders(self) -> dict[str, Any]:
        photos = self._photos(LOADER_PHOTOS)
        report = compare_loaders(photos, rounds=self._settings.rounds, say=_say, what="photos of about 500x375")
        print(render(report))
        return {"loaders": report.to_json()}

    def _stages(self) -> dict[str, Any]:
        model = self._exported(MODELS[0])
        report = measure_stages(model, self._photos(LOADER_PHOTOS), rounds=self._settings.rounds)
        print(f"whole run of {report['model']} against its stages alone, CPU-ms/image")
        for name, spread in report["cpu_ms_per_sample"].items():
            print(f"  {name:8} {Spread.from_json(spread).text(2)}")
        print(f"whole over the sum of its stages: {Spread.from_json(report['whole_over_sum_of_stages']).text(2)}")
        return {"stages": report}

    def _comparisons(self) -> dict[str, Any]:
        reports = []
        for model in self._settings.models:
            report = compare(
                self._exported(model),
                self._photos(model.images),
                self._settings.systems,
                rounds=self._settings.rounds,
                device="cpu",
                say=_say,
            )
            print(render(report), end="\n\n")
            reports.append(report.to_json())
        return {"comparisons": reports}

    def _robustness(self) -> dict[str, Any]:
        count = max(WARM + 100, self._settings.count(ROBUSTNESS_PHOTOS))
        rounds = min(ROBUSTNESS_ROUNDS, self._settings.rounds)
        found = measure_robustness(self._exported(MODELS[0]), self._photos(LOADER_PHOTOS), rounds, count=count)
        print(f"{found['images']:,} images, {found['bad']:,} of them bad, against as many good ones, rounds: {rounds}")
        for kind, run in found["runs"].items():
            rate, growth = (Spread.from_json(run[key]) for key in ("throughput_samples_per_s", "rss_growth_bytes"))
            print(f"  {kind:5} {rate.text(1)} images/s; memory grows by {growth.high / 2**20:.1f} MiB after {WARM:,}")
        wall, cpu = (Spread.from_json(found[f"{what}_bad_over_clean"]) for what in ("wall", "cpu"))
        print(f"  with bad ones over without: wall clock {wall.text(2)}, CPU time {cpu.text(2)}")
        return {"robustness": found}

    def _large_photos(self) -> dict[str, Any]:
        if self._settings.large is not None:
            sets = dict(zip(("real baseline", "real progressive"), large_jpegs(self._settings.large), strict=True))
        else:
            made = self._settings.folder / "large"
            sets = {
                "synthetic baseline": make_large_jpegs(made, progressive=False),
                "synthetic progressive": make_large_jpegs(made, progressive=True),
            }
        reports = []
        for kind, files in sets.items():
            if files:
                what = f"large {kind} photos"
                report = compare_loaders(
                    files, rounds=self._settings.rounds, say=_say, what=what, batch_size=4, exact=True
                )
                print(render(report), end="\n\n")
                reports.append(report.to_json())
        return {"large": reports}

    def _advice(self) -> dict[str, Any]:
        settings = self._settings
        rounds = max(1, round(settings.share * ADVICE_ROUNDS))
        found = measure_advice(self._exported(MODELS[0]), settings.folder, rounds=rounds, say=print)
        return {"advice": found}

    def _engines(self) -> dict[str, Any]:
        found = measure_engines([model.name for model in self._settings.models], say=_say)
        print(render_engines(found))
        return {"engines": found}

    def _exported(self, model: BenchModel) -> Path:
        """File of ``model``, exported unless an earlier run of the benchmark left it."""
        path = self._settings.folder / model.file_name
        try:
            spec_of(path)
        except VdaliError:
            export_model(model.name, path, ExportOptions(task=Task.EMBED, weights=model.weights), _say)
        return path


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
