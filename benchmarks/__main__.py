"""``python -m vdali.benchmarks``: the comparison that `make bench` prints. One JSON document goes to a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from ..engine.job import environment
from ..engine.spec import Task
from ..export.model import export_model
from ..export.options import RANDOM, ExportOptions
from .data import make_jpegs
from .loader import measure_loader
from .whole import measure_against_torch, measure_stages

MODEL = "mobilenetv3_small_100"


@click.command()
@click.option("--folder", type=click.Path(path_type=Path), default=Path("bench-out"), show_default=True)
@click.option("--images", default=400, show_default=True, help="Number of JPEGs of about 500x375 pixels.")
@click.option("--rounds", default=5, show_default=True, help="Alternating rounds of each comparison.")
def main(folder: Path, images: int, rounds: int) -> None:
    """Measure loader, stages and whole run; print medians (min to max) and write FOLDER/bench.json."""
    files = make_jpegs(folder / f"photos-{images}", count=images)
    model = folder / f"{MODEL}.onnx"
    export_model(f"timm/{MODEL}", model, ExportOptions(task=Task.EMBED, weights=RANDOM), _say)
    report: dict[str, Any] = {"environment": environment(), "model": f"{MODEL}, random weights (seed 0), embed"}
    report["loader"] = measure_loader(files, rounds=rounds)
    _print_systems("loader: encoded bytes in memory to uint8 224x224 (shorter side 256, bilinear)", report["loader"])
    _print_ratio("  rate over that of simplejpeg's decode alone (CPU time)", report["loader"]["rate_of_floor"])
    _print_ratio("  two lanes over one", report["loader"]["two_lanes_over_one"])
    report["stages"] = measure_stages(model, files, rounds=rounds)
    print(f"whole run of {report['model']}, batch 32, against its stages alone, CPU ms/image")
    for name, spread in report["stages"]["cpu_ms_per_sample"].items():
        print(f"  {name:28} {_spread(spread, 2)}")
    _print_ratio("  whole over the sum of its stages", report["stages"]["whole_over_sum_of_stages"])
    report["torch"] = measure_against_torch(model, MODEL, files, rounds=rounds)
    _print_systems("whole: files on disk to embeddings in memory", report["torch"])
    _print_ratio("  vdali's throughput over plain PyTorch's", report["torch"]["throughput_over_torch"])
    print(f"  lowest cosine between the two, per image: {report['torch']['lowest_cosine']:.5f}")
    path = folder / "bench.json"
    path.write_text(json.dumps(report, indent=2) + "\n")
    print(f"written to {path}")


def _print_systems(title: str, report: dict[str, Any]) -> None:
    print(f"{title}, {report['images']} images: images/s; CPU ms/image")
    for name, row in report["systems"].items():
        rate, cpu = row["throughput_samples_per_s"], row["cpu_ms_per_sample"]
        print(f"  {name:28} {_spread(rate, 0)}; {_spread(cpu, 2)}")
        if "description" in row:
            print(f"    {row['description']}; peak {row['peak_rss_bytes'] / 2**20:.0f} MiB")


def _print_ratio(title: str, spread: dict[str, float]) -> None:
    print(f"{title}: {_spread(spread, 2)}")


def _spread(spread: dict[str, float], digits: int) -> str:
    return f"{spread['median']:.{digits}f} ({spread['min']:.{digits}f} to {spread['max']:.{digits}f})"


def _say(text: str) -> None:
    print(text, file=sys.stderr)


if __name__ == "__main__":
    main()
