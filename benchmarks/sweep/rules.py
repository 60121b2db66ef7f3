"""Where a series ends, and which point of a sweep is recommended. Pure rules over cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ...engine.spec import Precision
from ..render import MUCH_ELSEWHERE
from .model import LEAST_GAIN, Cell, Gate, SeriesNote

INT8_PAYS = 1.1
"""int8 costs accuracy and calibration: below this gain over the best other precision it is not advised."""

NO_VNNI = "this CPU has no VNNI, so int8 is computed in fp32"
_INT8 = frozenset({Precision.INT8.value, Precision.INT8_FP16.value})
_MEMORY_WORDS = ("memoryerror", "out of memory", "failed to allocate memory", "bad_alloc", "lack of memory")


class End(StrEnum):
    """Why a series has no larger batch."""

    PLATEAU = "plateau"
    MEMORY = "memory ended"
    FAILED = "failed"
    LIMIT = "largest batch"


def end_of(cells: Sequence[Cell], max_batch: int) -> End | None:
    """Why ``cells``, a series in order of batch size, is finished; None where the next batch is to be measured."""
    if not cells:
        return None
    last = cells[-1]
    if last.error is not None:
        return End.MEMORY if is_lack_of_memory(last.error) else End.FAILED
    if last.is_flat:
        return End.PLATEAU
    return End.LIMIT if 2 * last.batch_size > max_batch else None


def is_lack_of_memory(error: str) -> bool:
    """Whether what a failed system said means that memory had ended."""
    text = error.lower()
    return any(words in text for words in _MEMORY_WORDS)


def plateau_of(cells: Sequence[Cell]) -> Cell | None:
    """Smallest batch of a series, in order, whose double is not worth it; None where no plateau was reached."""
    return cells[-2] if len(cells) > 1 and cells[-1].is_flat else None


def best_of(cells: Sequence[Cell]) -> Cell | None:
    """The point to take of a series, in order: its plateau, else the fastest; None where nothing was measured."""
    measured = [cell for cell in cells if cell.throughput is not None]
    return plateau_of(cells) or max(measured, key=lambda cell: cell.rate, default=None)


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The point to run at, and why, in one sentence."""

    cell: Cell
    reason: str


def recommend(
    series: Sequence[Sequence[Cell]], notes: Mapping[tuple[str, str, str], SeriesNote], *, resolution: str, vnni: bool
) -> Recommendation | None:
    """The point to run at among ``series``, each in order of batch size; None where nothing was measured.

    ``resolution`` is the model's own. Only points there compete, because a smaller picture is always faster and what it
    costs in accuracy is not measured here; where none was measured there, the largest resolution stands in. Another
    float precision than fp32 must gain LEAST_GAIN, int8 INT8_PAYS and a passed gate. ``vnni``: int8 is computed as
    such.
    """
    found = [(cells, best) for cells in series if (best := best_of(cells)) is not None]
    if not found:
        return None
    at = resolution if any(best.series[1] == resolution for _, best in found) else _largest(found)
    points = [best for _, best in found if best.series[1] == at]
    floats = [point for point in points if point.series[0] not in _INT8]
    chosen = _best_float(floats)
    best_int8 = max((point for point in points if point.series[0] in _INT8), key=lambda point: point.rate, default=None)
    why_int8 = ""
    if best_int8 is not None:
        refusal = _against_int8(best_int8, chosen, notes.get(best_int8.series), vnni=vnni)
        why_int8 = refusal or f"{best_int8.series[0]} gains {_gain(best_int8, chosen)} and passed the gate"
        chosen = best_int8 if chosen is None or not refusal else chosen
    assert chosen is not None, "there is a point at this resolution"
    cells = next(cells for cells, best in found if best is chosen)
    reasons = [_batch_reason(cells, chosen), *_others(points, chosen, why_int8), *_resolutions(found, chosen)]
    return Recommendation(chosen, "; ".join(reason for reason in reasons if reason))


def crowding(cells: Sequence[Cell]) -> str:
    """A sentence where other processes had much of the CPUs meanwhile, else empty."""
    shares = [cell.others_share for cell in cells if cell.others_share is not None]
    disturbed = [share for share in shares if share > MUCH_ELSEWHERE]
    if not disturbed:
        return ""
    return (
        f"other processes used up to {100 * max(disturbed):.0f} % of the CPUs during {len(disturbed)} of {len(cells)} "
        "points: their images/s are too low, and gains uncertain. Measure again on a quiet machine"
    )


def _largest(found: Sequence[tuple[Sequence[Cell], Cell]]) -> str:
    def pixels(resolution: str) -> int:
        height, width = resolution.split("x")
        return int(height) * int(width)

    return max((best.series[1] for _, best in found), key=pixels)


def _best_float(points: Sequence[Cell]) -> Cell | None:
    """Fastest fp32 point, unless another float precision is worth its loss."""
    fp32 = [point for point in points if point.series[0] == Precision.FP32]
    best = max(points, key=lambda point: point.rate, default=None)
    plain = max(fp32, key=lambda point: point.rate, default=None)
    return plain if plain is not None and best is not None and best.rate < LEAST_GAIN * plain.rate else best


def _against_int8(int8: Cell, other: Cell | None, note: SeriesNote | None, *, vnni: bool) -> str:
    """Why int8 is not advised; empty where it is."""
    name = int8.series[0]
    gain = f" ({_gain(int8, other)})" if other is not None else ""
    if not vnni:
        return f"{name} is not advised: {NO_VNNI}{gain}"
    if note is None or note.gate is not Gate.PASSED:
        return f"{name} is not advised: its agreement with fp32 was not judged here{gain}"
    if other is not None and int8.rate < INT8_PAYS * other.rate:
        return f"{name} is not advised: it gains {_gain(int8, other)}, and below {INT8_PAYS}x it does not pay"
    return ""


def _batch_reason(cells: Sequence[Cell], chosen: Cell) -> str:
    """Why this batch size."""
    last = cells[-1]
    if plateau_of(cells) is chosen:
        assert last.gain is not None
        change = f"gains {100 * (last.gain - 1):.0f} %" if last.gain >= 1 else f"loses {100 * (1 - last.gain):.0f} %"
        return f"twice the batch {change}"
    if last.error is not None:
        what = "memory ends" if is_lack_of_memory(last.error) else "the system fails"
        return f"{what} at batch size {last.batch_size}"
    if last.gain is None:
        return f"batch size {last.batch_size} is the only one that was tried"
    if last is not chosen:
        return (
            f"batch size {last.batch_size}, the largest that was tried, gains side by side and is slower by itself: "
            "measure again on a quiet machine"
        )
    return f"batch size {last.batch_size} is the largest that was tried, and still gains"


def _others(points: Sequence[Cell], chosen: Cell, why_int8: str) -> list[str]:
    """What the other decoders and precisions at this resolution do beside the chosen point."""
    precision, _, decoder = chosen.series
    reasons = [
        f"decoder {point.series[2]} does {_gain(point, chosen)}"
        for point in points
        if point.series[0] == precision and point.series[2] != decoder
    ]
    others: dict[str, Cell] = {}
    for point in points:
        name = point.series[0]
        if name != precision and name not in _INT8 and (name not in others or point.rate > others[name].rate):
            others[name] = point
    reasons += [f"{name} does {_gain(point, chosen)}" for name, point in others.items()]
    return [*reasons, why_int8]


def _resolutions(found: Sequence[tuple[Sequence[Cell], Cell]], chosen: Cell) -> list[str]:
    precision, resolution, decoder = chosen.series
    rates = [
        f"{best.series[1]} does {_gain(best, chosen)}"
        for _, best in found
        if best.series[1] != resolution and (best.series[0], best.series[2]) == (precision, decoder)
    ]
    return [f"{', '.join(rates)} (accuracy at another resolution is not measured here)"] if rates else []


def _gain(point: Cell, over: Cell | None) -> str:
    return f"{point.rate / over.rate:.2f}x" if over is not None else "nothing to compare with"
