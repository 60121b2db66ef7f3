"""Reports of runs and benchmarks: what they say, that nothing of a user's text runs, and how they look in Chromium."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import vdali
from models import mean_colour_model
from pictures import write_numbered
from report_data import (
    HOSTILE,
    bench_document,
    comparison,
    diagnosis_document,
    report_pages,
    run_folder,
    session,
    sweep_document,
    telemetry,
)
from vdali.benchmarks.cost import cost
from vdali.benchmarks.report.input import read_run
from vdali.benchmarks.report.timeline import MOST_POINTS, timeline
from vdali.benchmarks.report.words import byte_count, heading, seconds, shown
from vdali.benchmarks.report.write import write_report
from vdali.engine.errors import InputNotFoundError, UsageError, VdaliError
from vdali.engine.sinks.run_dir import TELEMETRY_FILE
from vdali.engine.telemetry.file import read_telemetry
from vdali.engine.telemetry.watch import Telemetry

VOID = {"meta", "path", "img", "br", "link", "input"}


class Document(HTMLParser):
    """Elements, attributes and text of a page; fails where an element is not closed by its own end."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs) -> None:
        self.elements.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs) -> None:
        self.elements.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.texts)


def json_file(path: Path, document: dict) -> Path:
    path.write_text(json.dumps(document))
    return path


def report_of(source: Path, output: Path, **words) -> str:
    return write_report(source, output, **words).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    return run_folder(tmp_path_factory.mktemp("report") / "out")


@pytest.fixture(scope="module")
def everything(tmp_path_factory) -> dict[str, Path]:
    return report_pages(tmp_path_factory.mktemp("pages"))


def test_a_real_run_with_telemetry_becomes_a_report(tmp_path):
    write_numbered(tmp_path / "in", 30, bad=frozenset({7}))
    model = mean_colour_model(tmp_path / "mean.onnx", (32, 32))
    vdali.run(tmp_path / "in", model=model, out=tmp_path / "out", device="cpu")
    with Telemetry(tmp_path / "out" / TELEMETRY_FILE):
        pass
    text = report_of(tmp_path / "out", tmp_path / "report.md")
    assert "# mean\\_colour at fp32" in text
    assert "| rows | 29 |" in text
    assert "| failures | 1 (1 decode/" in text
    assert "bound: " in text
    assert "| CPUs of the machine |" in text
    assert "onnxruntime:CPUExecutionProvider" in text
    assert Document(report_of(tmp_path / "out", tmp_path / "report.html")).elements.count("figure") >= 1


def test_a_run_s_page_has_verdict_stages_timeline_cost_and_environment(everything):
    page = Document(everything["run"].read_text())
    for text in ("engine 1,903", "Where the time went", "Over time", "Cost", "Environment", "250,000 images"):
        assert text in page.text
    assert "GPU 0 (NVIDIA H100 80GB HBM3): utilisation" in page.text
    assert "AMD EPYC 9654 96-Core Processor" in page.text
    assert page.text.count("mean 76 %, 55 % to 95 %") == 1


def test_nothing_of_a_user_s_text_becomes_an_element_or_leaves_its_place(everything):
    for path in everything.values():
        text = path.read_text()
        page = Document(text)
        assert not {"script", "img", "iframe", "link", "object"} & set(page.elements)
        assert not [name for name, _ in page.attributes if name.startswith("on")]
        assert HOSTILE in page.text
        assert "default-src 'none'" in text
        assert not {"src", "href", "srcset", "action"} & {name for name, _ in page.attributes}
        style = text.split("<style>")[1].split("</style>")[0]
        assert "url(" not in style
        assert "@import" not in style


def test_markdown_says_the_same_and_shows_a_user_s_text_as_it_is(tmp_path, out):
    costs = cost(run=out, price_per_hour=2.5)
    text = report_of(out, tmp_path / "report.md", cost=costs, diagnosis=diagnosis_document())
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert "> **input-bound: decode 412 images/s" in text
    assert "| GPU 0 (NVIDIA H100 80GB HBM3): utilisation | mean 76 %, 55 % to 95 % |" in text
    assert "| a million images |" in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert all(len(re.findall(r"(?<!\\)\|", line)) in (3, 4, 5) for line in tables)


def test_the_verdict_of_a_run_names_what_took_the_time(tmp_path):
    def verdict(name: str, sessions: list, **changes) -> str:
        folder = run_folder(tmp_path / name, sessions=sessions, **changes)
        (folder / TELEMETRY_FILE).unlink()
        return report_of(folder, tmp_path / f"{name}.md").split("> **")[1].split("**")[0]

    stages = session()["stages"]
    assert verdict("decode", [session()]).startswith("input-bound: decode took 95 %")
    infer = stages | {"infer": {"wall_s": 9000.0, "cpu_s": 8900.0, "calls": 1}}
    assert verdict("infer", [session(stages=infer)]).startswith("engine-bound: engine took 86 %")
    slow = stages | {"read": {"wall_s": 3000.0, "cpu_s": 10.0, "calls": 1}}
    assert verdict("read", [session(stages=slow)]).startswith("input-bound: the lanes waited for bytes 61 %")
    assert verdict("sink", [session(sink_s=380.0)]).startswith("output-bound: the sink was busy 95 %")
    assert verdict("none", [], status="interrupted").startswith("No image ended")


def test_a_run_without_telemetry_or_unfinished_says_so(tmp_path, out):
    folder = run_folder(tmp_path / "out", status="interrupted", sessions=[session(), {"status": "killed"}])
    (folder / TELEMETRY_FILE).unlink()
    text = report_of(folder, tmp_path / "report.md")
    assert "The run is interrupted" in text
    assert "There is no telemetry of this run" in text
    assert "1 session told no time" in text
    (folder / TELEMETRY_FILE).write_bytes(b"nonsense")
    assert "is not readable" in report_of(folder, tmp_path / "report.md")


def test_a_run_that_was_killed_in_its_first_session_is_not_said_to_have_done_nothing(tmp_path):
    killed = [{"status": "running", "started_at": "2026-01-01T00:00:00+00:00"}]
    spec = {"name": "resnet50", "precision": "fp32", "preprocess": {"size": [224, 224]}}
    folder = run_folder(tmp_path / "out", status="running", sessions=killed, used={}, counts={}, spec=spec)
    text = report_of(folder, tmp_path / "report.md")
    assert "The run is running, or was killed" in text
    assert "No session of this run has told what it did" in text
    assert "No image ended" not in text
    assert "| rows | – |" in text
    assert text.startswith("# resnet50 at fp32")


def test_a_comparison_marks_the_fastest_right_system_and_tells_what_does_not_count(everything):
    page = everything["bench"].read_text()
    text = Document(page).text
    assert "mobilenetv3_small_100: vdali has 3.97x the rate of torch" in text
    assert "not counted: dali-torch failed, ray absent, fast-but-wrong wrong" in text
    assert "vdali wins: vdali does 3.97" in text
    assert "900 (855 to 936) images/s; wrong" in text
    marked = re.findall(r'<tr class="marked">(.*?)</tr>', page)
    assert any(">vdali<" in row for row in marked)
    assert not any("fast-but-wrong" in row for row in marked)


def test_where_another_system_wins_the_report_says_so(tmp_path):
    document = bench_document(comparison(torch_rate=796.0), comparison("resnet50"))
    text = report_of(json_file(tmp_path / "bench.json", document), tmp_path / "report.md")
    assert "vdali has 0.50x the rate of torch" in text
    assert "torch WINS" in text
    assert "# Benchmark of mobilenetv3\\_small\\_100, resnet50" in text
    assert "resnet50: vdali has 3.97x the rate of torch" in text


def test_a_sweep_is_drawn_with_its_plateau_and_its_recommended_point(tmp_path):
    source = json_file(tmp_path / "sweep.json", sweep_document())
    page = report_of(source, tmp_path / "sweep.html")
    text = Document(page).text
    assert "recommended: batch size 64, fp16, 224x224, turbo, 1,737 images/s; int8 gains 1.05x only" in text
    assert "out of memory" in text
    assert page.count('class="line ') == 3
    assert page.count('class="mark ') == 3
    assert "All 27 rows" in text
    markdown = report_of(source, tmp_path / "sweep.md")
    assert "| fp16, 224x224, turbo | 271.4 |" in markdown
    assert "| **1,737** |" in markdown


def test_a_diagnosis_is_a_report_of_its_own(tmp_path):
    page = Document(report_of(json_file(tmp_path / "d.json", diagnosis_document()), tmp_path / "d.html"))
    for text in ("Diagnosis of vit", "--decode fast", "1.58x", "nothing is copied", "the first time"):
        assert text in page.text


def test_whatever_else_a_benchmark_holds_is_shown(tmp_path):
    document = bench_document(extra={"deep": {"deeper_share": 0.25}, "list": [1, 2]}, plain_bytes=1 << 30, empty={})
    text = report_of(json_file(tmp_path / "bench.json", document), tmp_path / "report.md")
    assert "| deep deeper | 25 % |" in text
    assert "| plain | 1 GiB |" in text
    assert "| list | 1, 2 |" in text


def test_what_is_no_report_or_cannot_be_written_is_a_plain_error(tmp_path, out):
    with pytest.raises(UsageError, match=r"\.html or \.md"):
        write_report(out, tmp_path / "report.pdf")
    with pytest.raises(InputNotFoundError, match="does not exist"):
        write_report(tmp_path / "none", tmp_path / "report.html")
    with pytest.raises(UsageError, match="of bench version 99"):
        write_report(json_file(tmp_path / "b.json", bench_document(bench_version=99)), tmp_path / "report.html")
    other = json_file(tmp_path / "d.json", diagnosis_document() | {"format_version": 99})
    with pytest.raises(UsageError, match="has format_version 99"):
        write_report(other, tmp_path / "report.html")
    with pytest.raises(VdaliError, match="Cannot write"):
        write_report(out, tmp_path / "none" / "report.html")


def test_a_long_timeline_keeps_its_extremes_in_a_few_hundred_points(out):
    lines = read_run(out).telemetry
    charts = {chart.title: chart for chart in timeline(lines)}
    written = charts["Written to disks"].series[0]
    assert len(lines) == 800
    assert len(written.x) <= MOST_POINTS
    assert max(written.high) == pytest.approx(1.2e7, rel=0.01)
    assert max(written.y) < max(written.high)
    assert charts["Throughput"].breaks == [400.0]
    assert charts["Throughput"].x_range == (0.0, 800.0)


def test_rates_over_time_come_from_counters_and_start_anew_with_each_session(out):
    charts = {chart.title: chart for chart in timeline(read_run(out).telemetry)}
    process = charts["CPUs used by this process"]
    assert process.series[0].y == pytest.approx([5.5] * len(process.series[0].y))
    assert process.summary == "5.5 throughout"
    assert timeline([]) == []


def test_the_first_line_of_a_session_counts_from_its_start(tmp_path):
    telemetry(tmp_path, sessions=3, lines=1)
    charts = {chart.title: chart for chart in timeline(read_telemetry(tmp_path / TELEMETRY_FILE).to_pylist())}
    assert charts["CPUs used by this process"].series[0].y == pytest.approx([5.5, 5.5, 5.5])
    assert charts["CPUs used by this process"].series[0].x == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("key", "value", "name", "text"),
    [
        ("throughput_samples_per_s", 398.04, "throughput, images/s", "398"),
        ("cpu_ms_per_sample", {"min": 1.0, "median": 2.0, "max": 3.25}, "CPU, ms/image", "2 (1 to 3.25)"),
        ("latency_p99_s", 0.0123, "latency p99", "12.3 ms"),
        ("peak_rss_bytes", 412 << 20, "peak memory", "412 MiB"),
        ("engine_idle_share", 0.777, "engine idle", "78 %"),
        ("wrong", True, "wrong", "yes"),
        ("cosine", None, "cosine", "–"),
        ("cosine", float("nan"), "cosine", "nan"),
    ],
)
def test_keys_and_values_read_as_words_with_units(key, value, name, text):
    assert (heading(key), shown(key, value)) == (name, text)


def test_bytes_and_seconds_take_the_unit_that_leaves_a_small_number():
    assert [byte_count(v) for v in (12, 2048, 5 << 20, 3 << 30)] == ["12 B", "2 KiB", "5 MiB", "3 GiB"]
    assert [seconds(v) for v in (0.004, 4.1, 700, 12240)] == ["4 ms", "4.1 s", "11.7 min", "3.4 h"]
