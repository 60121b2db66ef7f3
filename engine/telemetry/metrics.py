"""Telemetry for Prometheus: its text format, and a small HTTP server for ``/metrics``.

Knows what samples look like, not where they come from.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from ..errors import UsageError
from .file import TelemetrySample
from .gpu import GpuSample

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_REQUEST_TIMEOUT_S = 5.0
_POLL_S = 0.2

Labels = Mapping[str, str]
Series = Iterable[tuple[Labels, float | None]]


class MetricsServer:
    """Serves what ``render`` gives at ``/metrics`` until it is closed; ``port`` 0 takes any free one."""

    def __init__(self, port: int, render: Callable[[], str], *, host: str) -> None:
        """Start; raises UsageError where the port cannot be had."""

        class Handler(BaseHTTPRequestHandler):
            timeout = _REQUEST_TIMEOUT_S

            def do_GET(self) -> None:
                if self.path.partition("?")[0] != "/metrics":
                    self.send_error(404, "Metrics are at /metrics")
                    return
                body = render().encode()
                self.send_response(200)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Requests are not logged: stderr belongs to the run."""

        try:
            self._server = _Server((host, port), Handler)
        except (OSError, OverflowError) as error:
            raise UsageError(
                f"Metrics cannot be served at {host}:{port}: {error}. Choose another port (0 takes any free one)."
            ) from error
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_POLL_S,), name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True  # a client that never ends must not keep the run from ending

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away in the middle of an answer is none of the run's business."""


def metrics_text(sample: TelemetrySample) -> str:
    """One sample in the text format: counters of the session, and gauges."""
    return "".join([*_progress(sample), *_host(sample), *_gpus(sample.gpus)])


def _progress(sample: TelemetrySample) -> Iterator[str]:
    yield _metric("rows_total", "counter", "Samples that ended as a row in this session.", [({}, sample.rows)])
    yield _metric("failures_total", "counter", "Samples that ended as a failure.", [({}, sample.failures)])
    yield _metric("elapsed_seconds", "gauge", "Seconds since the session began.", [({}, sample.elapsed_s)])
    seconds = [
        ({"stage": name, "clock": clock}, value)
        for name, time in sample.stages.items()
        for clock, value in (("wall", time.wall_s), ("cpu", time.cpu_s))
    ]
    yield _metric("stage_seconds_total", "counter", "Seconds spent in a stage, summed over lanes.", seconds)


def _host(sample: TelemetrySample) -> Iterator[str]:
    host = sample.host
    busy = [({"cpu": str(number)}, share) for number, share in enumerate(host.cpu_busy)]
    yield _metric("cpu_busy_ratio", "gauge", "Share of time that a CPU of the machine was busy.", busy)
    yield _metric("cpu_iowait_ratio", "gauge", "Share of CPU time that waited for a disk.", [({}, host.cpu_iowait)])
    yield _metric("process_cpu_seconds_total", "counter", "CPU seconds of the process.", [({}, host.process_cpu_s)])
    yield _metric("process_resident_memory_bytes", "gauge", "Memory of the process.", [({}, host.process_rss_bytes)])
    yield _metric("process_threads", "gauge", "Threads of the process.", [({}, host.process_threads)])
    yield _metric("process_open_files", "gauge", "Open files of the process.", [({}, host.process_open_files)])
    by_process = [
        ({"by": "process", "direction": "read"}, host.process_read_bytes),
        ({"by": "process", "direction": "write"}, host.process_write_bytes),
        ({"by": "machine", "direction": "read"}, host.disk_read_bytes),
        ({"by": "machine", "direction": "write"}, host.disk_write_bytes),
    ]
    yield _metric("disk_bytes_total", "counter", "Bytes to and from disks.", by_process)
    yield _metric(
        "process_requested_bytes_total",
        "counter",
        "Bytes that the process asked for, from cache and sockets too.",
        [({}, host.process_requested_bytes)],
    )


_GPU_GAUGES: dict[str, tuple[str, Callable[[GpuSample], float | None]]] = {
    "gpu_utilisation_ratio": ("Share of time that a kernel ran on the GPU.", lambda gpu: gpu.utilisation),
    "gpu_memory_activity_ratio": ("Share of time that its memory was in use.", lambda gpu: gpu.memory_activity),
    "gpu_memory_used_bytes": ("Memory in use by all processes.", lambda gpu: gpu.memory_used_bytes),
    "gpu_process_memory_bytes": ("Memory in use by this process.", lambda gpu: gpu.process_memory_bytes),
    "gpu_process_utilisation_ratio": ("Utilisation by this process.", lambda gpu: gpu.process_utilisation),
    "gpu_power_watts": ("Power draw.", lambda gpu: gpu.power_w),
    "gpu_pcie_transmit_bytes_per_second": ("PCIe, from the GPU to the host.", lambda gpu: gpu.pcie_tx_bytes_per_s),
    "gpu_pcie_receive_bytes_per_second": ("PCIe, from the host to the GPU.", lambda gpu: gpu.pcie_rx_bytes_per_s),
    "gpu_sm_clock_hertz": ("Clock of the multiprocessors.", lambda gpu: gpu.sm_clock_hz),
    "gpu_memory_clock_hertz": ("Clock of the memory.", lambda gpu: gpu.memory_clock_hz),
    "gpu_video_decoder_ratio": ("Load of the video decoder.", lambda gpu: gpu.video_decoder_utilisation),
    "gpu_jpeg_decoder_ratio": ("Load of the JPEG decoder.", lambda gpu: gpu.jpeg_decoder_utilisation),
}


def _gpus(gpus: Iterable[GpuSample]) -> Iterator[str]:
    gpus = list(gpus)
    for name, (text, value_of) in _GPU_GAUGES.items():
        yield _metric(name, "gauge", text, [({"gpu": str(gpu.index), "name": gpu.name}, value_of(gpu)) for gpu in gpus])


def _metric(name: str, kind: str, text: str, series: Series) -> str:
    """HELP, TYPE and one line for each value that is known; nothing where none is."""
    lines = [f"vdali_{name}{_labels(labels)} {value:.10g}" for labels, value in series if value is not None]
    if not lines:
        return ""
    return "\n".join([f"# HELP vdali_{name} {text}", f"# TYPE vdali_{name} {kind}", *lines, ""])


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
