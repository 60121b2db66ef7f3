import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from vdali.engine.gpu_probe import probe_gpu

ROOT = Path(__file__).resolve().parents[3]
CHECKER = ROOT / "tests" / "trt_api.py"
BINDINGS = "tensorrt-cu13-bindings==11.4.0.106"
BINDINGS_HOME = Path(sys.prefix) / BINDINGS.replace("==", "-")
RUNTIME_NAMES = {
    "ExecutionContextAllocationStrategy.USER_MANAGED",
    "ICudaEngine.create_execution_context",
    "ICudaEngine.get_device_memory_size_for_profile_v2",
    "ICudaEngine.get_tensor_profile_shape",
    "IExecutionContext.execute_async_v3",
    "IExecutionContext.get_tensor_shape",
    "IExecutionContext.infer_shapes",
    "IExecutionContext.set_device_memory",
    "IExecutionContext.set_input_consumed_event",
    "IExecutionContext.set_input_shape",
    "IExecutionContext.set_tensor_address",
    "Runtime.deserialize_cuda_engine",
    "Runtime.engine_host_code_allowed",
}
"""What loading and running a plan touches at the least."""

LIBRARIES = ("nvonnxparser", "nvinfer_plugin", "nvinfer")
SYMBOLS = (
    "createInferBuilder_INTERNAL",
    "createInferRefitter_INTERNAL",
    "createInferRuntime_INTERNAL",
    "createNvOnnxParser_INTERNAL",
    "createNvOnnxParserRefitter_INTERNAL",
    "getBuilderPluginRegistry",
    "getPluginRegistry",
    "getNvOnnxParserVersion",
    "initLibNvInferPlugins",
)


@pytest.fixture(scope="module")
def bindings(tmp_path_factory):
    """Environment in which ``tensorrt_bindings`` 11.4 imports: its real wheel over libraries that do nothing."""
    if not (BINDINGS_HOME / "tensorrt_bindings").is_dir():
        fetch(tmp_path_factory.mktemp("wheel"))
    return {**os.environ, "PYTHONPATH": str(BINDINGS_HOME), "LD_LIBRARY_PATH": str(BINDINGS_HOME)}


def fetch(folder):
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--retries", "1", "--timeout", "20"]
    done = subprocess.run([*pip, "--dest", str(folder), BINDINGS], capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        pytest.skip(f"{BINDINGS} cannot be had: {(done.stderr.strip().splitlines() or ['no wheel'])[-1]}")
    zipfile.ZipFile(wheels[0]).extractall(folder)
    (folder / "stub.c").write_text("\n".join(f"void *{symbol}(void) {{ return 0; }}" for symbol in SYMBOLS))
    for name in LIBRARIES:
        soname = f"lib{name}.so.11"
        command = ["cc", "-shared", "-fPIC", f"-Wl,-soname,{soname}", "-o", soname, "stub.c"]
        try:
            subprocess.run(command, cwd=folder, check=True)
        except FileNotFoundError:
            pytest.skip("no C compiler (cc) for the stand-ins of TensorRT's libraries")
    BINDINGS_HOME.mkdir(exist_ok=True)
    for path in (*(folder / f"lib{name}.so.11" for name in LIBRARIES), folder / "tensorrt_bindings"):
        path.rename(BINDINGS_HOME / path.name)


def sources():
    """Our modules that call some variable ``trt`` or ``rtx``."""
    files = (path for part in ("engine", "export", "benchmarks") for path in (ROOT / part).rglob("*.py"))
    return [str(path) for path in files if re.search(r"\b(trt|rtx)\b", path.read_text())]


def touched(module, files, environment=None):
    command = [sys.executable, str(CHECKER), module, *files]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_name_that_we_touch_is_in_tensorrt_11(bindings):
    report = touched("tensorrt_bindings", sources(), bindings)
    assert report["problems"] == []
    touched_names = set(report["touched"])
    assert {"OnnxParser.parse_from_file", "ParserError.desc", "IBuilderConfig.set_timing_cache"} <= touched_names
    assert touched_names >= RUNTIME_NAMES
    assert not {"IBuilderConfig.set_compute_capability", "Runtime.get_engine_validity"} & touched_names


def test_every_name_that_we_touch_is_in_tensorrt_rtx():
    pytest.importorskip("tensorrt_rtx", reason="tensorrt_rtx is not installed: pip install 'vdali[rtx]'")
    report = touched("tensorrt_rtx", sources())
    assert report["problems"] == []
    touched_names = set(report["touched"])
    assert {"IBuilderConfig.set_compute_capability", "IProgressMonitor.phase_start"} <= touched_names
    assert touched_names >= RUNTIME_NAMES
    assert {
        "EngineInvalidityDiagnostics",
        "IExecutionContext.is_stream_capturable",
        "IRuntimeConfig.set_runtime_cache",
        "Runtime.get_engine_validity",
    } <= touched_names


def test_names_and_signatures_that_are_gone_are_found(bindings, tmp_path):
    wrong = {
        "config.set_flag(trt.BuilderFlag.FP16)": "there is no BuilderFlag.FP16",
        "config.int8_calibrator = None": "there is no IBuilderConfig.int8_calibrator",
        "config.num_optimization_profiles = 2": "IBuilderConfig.num_optimization_profiles cannot be set",
        "trt.Builder(log).create_network(0).get_input(0).set_dynamic_range(0, 1)": "no ITensor.set_dynamic_range",
        "config.set_timing_cache(b'')": "IBuilderConfig.set_timing_cache does not take 1 arguments",
        "config.set_timing_cache(b'', force=True)": "['force']",
        "trt.Runtime(log).deserialize_cuda_engine(b'').get_binding_name(0)": "no ICudaEngine.get_binding_name",
        "context: trt.IExecutionContext = log\n context.enqueue_v3(1)": "there is no IExecutionContext.enqueue_v3",
        "class Log(trt.ILogger):\n  def log(self, text): pass": "ILogger calls no log with 2 arguments",
    }
    functions = (f"def build(trt, config: trt.IBuilderConfig, log):\n {code}\n" for code in wrong)
    source = tmp_path / "source.py"
    source.write_text("".join(functions))
    problems = touched("tensorrt_bindings", [str(source)], bindings)["problems"]
    assert len(problems) == len(wrong)
    for problem, expected in zip(problems, wrong.values(), strict=True):
        assert expected in problem


def test_tensorrt_is_not_even_imported_without_a_driver(bindings, tmp_path):
    if probe_gpu().count:
        pytest.skip("this machine has a GPU")
    (tmp_path / "tensorrt").symlink_to(BINDINGS_HOME / "tensorrt_bindings")
    code = """
import sys
from vdali.engine.errors import DeviceError
from vdali.engine.plans.flavour import find_flavours, load_flavour
print(find_flavours()[0])
try:
    load_flavour("tensorrt")
except DeviceError as error:
    print(error)
print("tensorrt" in sys.modules)
"""
    environment = {**bindings, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    status, message, imported = done.stdout.splitlines()
    assert "needs a GPU" in status
    assert "needs a GPU" in message
    assert imported == "False"
