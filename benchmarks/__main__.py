"""``python -m vdali.benchmarks``: what `make bench` prints. One JSON document goes to a file."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ..engine.errors import VdaliError
from ..engine.spec import Task
from ..export.model import export_model
from ..export.options import PRETRAINED, RANDOM, ExportOptions
from .bench_file import write_bench
from .compare import compare
from .data import large_jpegs, make_jpegs, make_large_jpegs
from .loader import compare_loaders
from .measure import Spread
from .render import render
from .stages import measure_stages
from .systems.network import spec_of

PARTS = ("loaders", "stages", "models", "large")


@dataclass(frozen=True, slots=True)
class BenchModel:
    """A model of the benchmark, and so many images that a round of each system takes some seconds on two cores.

    ``also`` are systems beside SYSTEMS; compiling takes a minute for each model, so only two have it.
    """

    name: str
    images: int
    weights: str = RANDOM
    also: tuple[str, ...] = ()

    @property
    def file_name(self) -> str:
        return f"{self.name.rpartition('/')[2]}-embed.onnx"


MODELS = (
    BenchModel("timm/mobilenetv3_small_100", 512, also=("torch-compiled",)),
    BenchModel("efficientnet_lite0", 256, weights=PRETRAINED),
    BenchModel("timm/resnet50", 64),
    BenchModel("timm/vit_small_patch16_224", 96, also=("torch-compiled",)),
)
SYSTEMS = ("vdali", "torch", "torch-tuned")


@click.command()
@click.option("--folder", type=click.Path(path_type=Path), default=Path("bench-out"), show_default=True)
@click.option("--rounds", default=3, show_default=True, help="Alternating rounds of each comparison.")
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), help="Only these parts (default: all).")
@click.option("--model", "names", multiple=True, help="Only these models, by the end of their names (default: all).")
@click.option("--systems", default="", help="Systems that run the models, with commas between (default: as fits each).")
@click.option(
    "--large",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder of real JPEGs of 5.5 megapixels or more (default: synthetic ones are made).",
)
def main(
    folder: Path, rounds: int, parts: tuple[str, ...], names: tuple[str, ...], systems: str, large: Path | None
) -> None:
    """Measure loaders, stages, models and large photos; print medians (min to max) and write FOLDER/bench.json."""
    started_s = time.monotonic()
    bench = _Bench(folder, rounds, large, names, tuple(systems.split(",")) if systems else ())
    document: dict[str, Any] = {}
    for part in parts or PARTS:
        document |= bench.measured(part)
        write_bench(folder / "bench.json", document)
    print(f"written to {folder / 'bench.json'} after {time.monotonic() - started_s:.0f} s")


class _Bench:
    """The parts of the benchmark; each prints what it found and returns its keys of the bench file."""

    def __init__(
        self, folder: Path, rounds: int, large: Path | None, names: tuple[str, ...], systems: tuple[str, ...]
    ) -> None:
        self._folder = folder
        self._rounds = rounds
        self._large = large
        self._systems = systems
        self._models = [model for model in MODELS if not names or model.name.endswith(names)]
        self._parts: dict[str, Callable[[], dict[str, Any]]] = {
            "loaders": self._loaders,
            "stages": self._stages,
            "models": self._comparisons,
            "large": self._large_photos,
        }

    def measured(self, part: str) -> dict[str, Any]:
        return self._parts[part]()

    def _photos(self, count: int) -> list[Path]:
        most = max(model.images for model in MODELS)
        return make_jpegs(self._folder / f"photos-{most}", count=most)[:count]

    def _loaders(self) -> dict[str, Any]:
        report = compare_loaders(self._photos(400), rounds=self._rounds, say=_say, what="photos of about 500x375")
        print(render(report), end="\n\n")
        return {"loaders": report.to_json()}

    def _stages(self) -> dict[str, Any]:
        report = measure_stages(self._exported(MODELS[0]), self._photos(400), rounds=self._rounds)
        print(f"whole run of {report['model']} against its stages alone, CPU-ms/image")
        for name, spread in report["cpu_ms_per_sample"].items():
            print(f"  {name:8} {Spread.from_json(spread).text(2)}")
        over = Spread.from_json(report["whole_over_sum_of_stages"])
        print(f"whole over the sum of its stages: {over.text(2)}", end="\n\n")
        return {"stages": report}

    def _comparisons(self) -> dict[str, Any]:
        reports = []
        for model in self._models:
            report = compare(
                self._exported(model),
                self._photos(model.images),
                self._systems or (*SYSTEMS, *model.also),
                rounds=self._rounds,
                device="cpu",
                say=_say,
            )
            print(render(report), end="\n\n")
            reports.append(report.to_json())
        return {"comparisons": reports}

    def _large_photos(self) -> dict[str, Any]:
        if self._large is not None:
            sets = dict(zip(("real baseline", "real progressive"), large_jpegs(self._large), strict=True))
        else:
            made = self._folder / "large"
            sets = {
                "synthetic baseline": make_large_jpegs(made, progressive=False),
                "synthetic progressive": make_large_jpegs(made, progressive=True),
            }
        reports = []
        for kind, files in sets.items():
            if files:
                report = compare_loaders(
                    files, rounds=self._rounds, say=_say, what=f"large {kind} photos", batch_size=4, exact=True
                )
                print(render(report), end="\n\n")
                reports.append(report.to_json())
        return {"large": reports}

    def _exported(self, model: BenchModel) -> Path:
        """File of ``model``, exported unless an earlier run of the benchmark left it."""
        path = self._folder / model.file_name
        try:
            spec_of(path)
        except VdaliError:
            export_model(model.name, path, ExportOptions(task=Task.EMBED, weights=model.weights), _say)
        return path


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
