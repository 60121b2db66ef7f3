"""Where a series ends and which point is recommended, on cells that are written down here."""

from __future__ import annotations

from dataclasses import replace

import pytest
from vdali.benchmarks.measure import Spread
from vdali.benchmarks.sweep.model import Cell, Gate, Series, SeriesNote, SweepOptions, size_from_text
from vdali.benchmarks.sweep.rules import End, best_of, crowding, end_of, plateau_of, recommend
from vdali.engine.decoders.make import DecoderName
from vdali.engine.errors import UsageError
from vdali.engine.spec import Precision


def series(
    *rates: float,
    precision: str = "fp32",
    resolution: str = "224x224",
    decoder: str = "turbo",
    error: str | None = None,
) -> list[Cell]:
    """Cells of growing batches with these images/s, then one that fails with ``error``."""
    keys = (precision, resolution, decoder)
    cells: list[Cell] = []
    for step, rate in enumerate(rates):
        gain = rate / rates[step - 1] if step else None
        cells.append(Cell(keys, 2**step, throughput=Spread(rate, rate, rate), gain=gain))
    return cells if error is None else [*cells, Cell(keys, 2 ** len(rates), error=error)]


def chosen(*found: list[Cell], gate: Gate = Gate.PASSED, vnni: bool = True, resolution: str = "224x224"):
    notes = {cells[0].series: SeriesNote(cells[0].series, "a system", gate) for cells in found}
    return recommend(found, notes, resolution=resolution, vnni=vnni)


def test_a_series_goes_on_while_doubling_gains_five_percent():
    assert end_of([], 64) is None
    assert end_of(series(100), 64) is None
    assert end_of(series(100, 106), 64) is None
    assert end_of(series(100, 104), 64) is End.PLATEAU
    assert end_of(series(100, 90), 64) is End.PLATEAU
    assert end_of(series(100, 200), 3) is End.LIMIT
    assert end_of(series(100), 1) is End.LIMIT


@pytest.mark.parametrize(
    "error",
    [
        "out of memory: MemoryError: Unable to allocate 3 GiB",
        "its process was ended by SIGKILL, perhaps for lack of memory",
        "ONNX Runtime failed on a batch of 64: Failed to allocate memory for requested buffer of size 822083584",
        "std::bad_alloc",
        "CUDA out of memory",
    ],
)
def test_the_end_of_memory_is_told_from_other_failures(error):
    assert end_of(series(100, error=error), 64) is End.MEMORY
    assert end_of(series(100, error="its process was ended by SIGSEGV"), 64) is End.FAILED


def test_the_plateau_is_the_smallest_batch_whose_double_is_not_worth_it():
    cells = series(100, 180, 200, 204)
    assert plateau_of(cells) is cells[2]
    assert best_of(cells) is cells[2]  # not the one that is 2 % faster
    still = series(100, 180)
    assert plateau_of(still) is None
    assert best_of(still) is still[1]
    ended = series(100, 180, error="out of memory")
    assert best_of(ended) is ended[1]
    assert best_of(series(error="it cannot")) is None


def test_the_recommended_point_comes_with_its_reason():
    found = chosen(series(100, 180, 182), series(60, 100, 101, decoder="dali"), series(90, 170, 171, precision="fp16"))
    assert found.cell.series == ("fp32", "224x224", "turbo")
    assert found.cell.batch_size == 2
    assert found.reason == "twice the batch gains 1 %; decoder dali does 0.56x; fp16 does 0.94x"


def test_another_float_precision_must_be_worth_its_loss():
    assert chosen(series(100), series(104, precision="fp16")).cell.series[0] == "fp32"
    assert chosen(series(100), series(106, precision="fp16")).cell.series[0] == "fp16"


def test_int8_is_advised_only_where_it_pays_passed_the_gate_and_is_computed_as_int8():
    fp32, fp16, int8 = series(100), series(150, precision="fp16"), series(160, precision="int8")
    refused = chosen(fp32, fp16, int8)
    assert refused.cell.series[0] == "fp16"
    assert "int8 is not advised: it gains 1.07x, and below 1.1x it does not pay" in refused.reason
    faster = series(166, precision="int8")
    paid = chosen(fp32, fp16, faster)
    assert paid.cell.series[0] == "int8"
    assert "int8 gains 1.11x and passed the gate" in paid.reason
    unknown = chosen(fp32, fp16, faster, gate=Gate.UNKNOWN)
    assert unknown.cell.series[0] == "fp16"
    assert "its agreement with fp32 was not judged here" in unknown.reason
    emulated = chosen(fp32, fp16, faster, vnni=False)
    assert emulated.cell.series[0] == "fp16"
    assert "this CPU has no VNNI, so int8 is computed in fp32 (1.11x)" in emulated.reason


def test_a_smaller_resolution_is_told_but_never_recommended_over_the_model_s_own():
    found = chosen(series(100, 101), series(300, 301, resolution="128x128"))
    assert found.cell.series[1] == "224x224"
    assert "128x128 does 3.00x (accuracy at another resolution is not measured here)" in found.reason
    assert chosen(series(300, resolution="128x128"), series(200, resolution="192x64")).cell.series[1] == "128x128"


def test_where_memory_or_the_sweep_ended_the_reason_says_so():
    assert chosen(series(100, 180, error="out of memory")).reason == "memory ends at batch size 4"
    assert "is the largest that was tried, and still gains" in chosen(series(100, 180)).reason
    assert chosen(series(100, 180, 120)).reason == "twice the batch loses 33 %"
    assert chosen(series(100)).reason == "batch size 1 is the only one that was tried"
    half, whole = series(100, 98)
    assert "gains side by side and is slower by itself" in chosen([half, replace(whole, gain=1.2)]).reason


def test_nothing_is_recommended_where_nothing_was_measured():
    assert chosen(series(error="no such decoder")) is None
    assert recommend([], {}, resolution="224x224", vnni=True) is None


def test_points_during_which_others_used_the_cpus_are_told():
    quiet = [replace(cell, others_share=share) for cell, share in zip(series(100, 200), (0.02, None), strict=True)]
    assert crowding(quiet) == ""
    crowded = [*quiet, replace(quiet[0], others_share=0.4)]
    assert crowding(crowded).startswith("other processes used up to 40 % of the CPUs during 1 of 3 points")


def test_cells_come_back_from_json_as_they_were():
    for cell in series(100, 180, error="out of memory"):
        assert Cell.from_json(cell.to_json()) == cell


def test_words_that_make_no_sweep_are_refused():
    assert size_from_text(" 192x256") == (192, 256)
    assert size_from_text("160") == (160, 160)
    for text in ("", "0", "1x2x3", "-5", "big"):
        with pytest.raises(UsageError, match="No resolution"):
            size_from_text(text)
    with pytest.raises(UsageError, match="name one twice"):
        SweepOptions("m", precisions=(Precision.FP32, Precision.FP32))
    with pytest.raises(UsageError, match="at least one decoder"):
        SweepOptions("m", decoders=())
    assert str(Series(Precision.FP16, (224, 160), DecoderName.DALI)) == "fp16, 224x160, dali"
