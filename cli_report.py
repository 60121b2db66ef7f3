"""Commands about what was measured: what images cost, and the page that shows a run or a benchmark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from .cli_options import options_of, say
from .engine.errors import UsageError

_PATH = click.Path(path_type=Path)

price_options = options_of(
    click.option("--price-per-hour", type=float, help="What an hour of the machine costs."),
    click.option("--prices", type=_PATH, help="Your file of prices, TOML or JSON (see `vdali cost --example-prices`)."),
    click.option("--machine", help="Machine of --prices, where the file has several."),
    click.option("--currency", default="USD", show_default=True, help="Currency of --price-per-hour."),
    click.option("--images", type=int, help="Also the cost of so many images."),
    click.option("--system", help="System of a bench file whose rate is taken (default: vdali's own)."),
    click.option("--model", help="Model of a bench file, where it compares several."),
)


@click.command()
@click.option("--throughput", type=float, help="Rate in images/s.")
@click.option("--run", type=_PATH, help="OUT of a finished run, whose rate is taken.")
@click.option("--bench", type=_PATH, help="File of `vdali bench`, or of `vdali sweep` (its recommended point).")
@price_options
@click.option("--assume", multiple=True, metavar="NAME=TEXT", help="What --throughput holds for: model=resnet50, ...")
@click.option("--example-prices", is_flag=True, help="Print an example of a price file, and end.")
@click.option("--json", "as_json", is_flag=True, help="Print the cost as one JSON document.")
def cost(assume: tuple[str, ...], example_prices: bool, as_json: bool, **words: Any) -> None:
    """Tell what a million and a billion images cost, with every assumption behind the numbers.

    The rate is one of --throughput, --run and --bench; the price one of --price-per-hour and --prices. There are no
    prices built in.

    \b
    Exit status: 0 told, 2 usage (also a price or a rate that is not above 0, or a run that is not finished),
    3 no such run.
    """
    from .benchmarks.cost import cost as cost_of
    from .benchmarks.price import EXAMPLE_PRICES

    if example_prices:
        click.echo(EXAMPLE_PRICES.read_text(encoding="utf-8"), nl=False)
        return
    if assume and words["throughput"] is None:
        raise UsageError("--assume says what --throughput holds for; a run and a bench file say it themselves.")
    found = cost_of(holds_for=dict(_pair(text) for text in assume), **words)
    click.echo(json.dumps(found.to_json()) if as_json else "\n".join(found.lines()))


@click.command()
@click.argument("source", type=_PATH, metavar="OUT|FILE.json")
@click.option("-o", "--output", type=_PATH, required=True, help="Page to write: FILE.html or FILE.md.")
@click.option("--diagnosis", type=_PATH, help="What `vdali diagnose --json` printed, beside a run's own numbers.")
@price_options
def report(source: Path, output: Path, diagnosis: Path | None, **words: Any) -> None:
    """Write one page about OUT (a run's folder) or FILE.json (of `vdali bench`, `sweep` or `diagnose`).

    The page needs no network: verdict, stages, timeline, comparisons, sweeps, cost (where a price is given) and the
    environment. FILE.md is the same as Markdown.

    \b
    Exit status: 0 written, 1 the page cannot be written, 2 usage (also a file of another version), 3 nothing to
    report there.
    """
    from .benchmarks.cost import cost as cost_of
    from .benchmarks.report.write import write_report

    asked = any(words[name] is not None for name in words if name != "currency")
    words["bench" if source.is_file() else "run"] = source
    found = cost_of(**words) if asked else None
    say(f"written: {write_report(source, output, cost=found, diagnosis=diagnosis)}")


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise UsageError(f"--assume takes NAME=TEXT, got '{text}'. Example: --assume model=resnet50")
    return name, value
