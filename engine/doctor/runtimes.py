"""Checks of GPUs, inference runtimes, decoders and export packages, from what the probes answered."""

from __future__ import annotations

from collections.abc import Mapping

from ..gpu_probe import INSTALL_DRIVER, MINIMUM_DRIVER
from .isolated import Answer
from .machine import GIB, package_version
from .report import Check, Status

CUDA = "CUDAExecutionProvider"
DALI = ("nvidia-dali-cuda120", "nvidia-dali-cuda130")
TENSORRT = ("tensorrt", "tensorrt-cu13", "tensorrt-cu12")
TENSORRT_RTX = ("tensorrt-rtx", "tensorrt-rtx-cu13", "tensorrt-rtx-cu12")
TORCH_EXTRA = ("torch", "torchvision", "timm", "onnxscript")

Answers = Mapping[str, Answer]


def gpu_checks(answer: Answer) -> list[Check]:
    """Driver, and each GPU that CUDA can use."""
    if answer.error:
        advice = "Run nvidia-smi: if it fails too, repair the driver. --device cpu works without it."
        return [Check("GPU", "driver", Status.ERROR, f"asking for GPUs {answer.error}", advice)]
    facts = answer.facts
    if facts["reason"]:
        # a GPU that is there and cannot be used is worth more than a line of grey
        status = Status.ERROR if facts["seen"] else Status.MISSING
        return [Check("GPU", "driver", status, facts["reason"], facts["advice"])]
    found = f"{facts['driver'] or 'version unknown'}, supports CUDA {facts['cuda']}"
    versions = {"driver": facts["driver"], "cuda": facts["cuda"]}
    checks = [Check("GPU", "driver", Status.OK, found, facts=versions)]
    for ordinal, gpu in enumerate(facts["gpus"]):
        found = f"{gpu['name']}, {gpu['memory_bytes'] / GIB:.0f} GiB, compute capability {gpu['compute_capability']}"
        checks.append(Check("GPU", f"cuda:{ordinal}", Status.OK, found, facts=gpu))
    return checks


def has_gpu(answer: Answer) -> bool:
    return bool(answer.facts.get("gpus"))


def runtime_checks(answers: Answers) -> list[Check]:
    """ONNX Runtime and its CUDA provider, and both TensorRT flavours."""
    gpu = has_gpu(answers["gpu"])
    checks = [*_onnxruntime_conflict(), _onnxruntime(answers["onnxruntime"])]
    if not answers["onnxruntime"].error:
        checks.append(_cuda_provider(answers["onnxruntime"], answers.get("onnxruntime_cuda"), gpu))
    return [*checks, _tensorrt(answers.get("tensorrt")), _tensorrt_rtx(gpu)]


def _onnxruntime_conflict() -> list[Check]:
    versions = [package_version("onnxruntime"), package_version("onnxruntime-gpu")]
    if None in versions:
        return []
    return [
        Check(
            "runtimes",
            "onnxruntime x2",
            Status.ERROR,
            f"onnxruntime {versions[0]} and onnxruntime-gpu {versions[1]} are installed over each other",
            "pip uninstall onnxruntime onnxruntime-gpu; pip install onnxruntime-gpu",
        )
    ]


def _onnxruntime(answer: Answer) -> Check:
    if answer.error:
        advice = "pip install --force-reinstall onnxruntime-gpu"
        return Check("runtimes", "ONNX Runtime", Status.ERROR, f"does not load: {answer.error}", advice)
    version, cuda = answer.facts["version"], answer.facts["cuda"]
    found = f"{version} on the CPU" + (f", built for CUDA {cuda}" if cuda else "")
    return Check("runtimes", "ONNX Runtime", Status.OK, found, facts=answer.facts)


def _cuda_provider(runtime: Answer, loaded: Answer | None, gpu: bool) -> Check:
    name = "CUDA provider"
    if CUDA not in runtime.facts["providers"]:
        status = Status.WARNING if gpu else Status.MISSING
        advice = "pip uninstall onnxruntime; pip install onnxruntime-gpu"
        return Check("runtimes", name, status, "not in this build of ONNX Runtime", advice)
    if loaded is None:
        return Check("runtimes", name, Status.MISSING, "built in, but there is no usable GPU", INSTALL_DRIVER)
    if loaded.error:
        advice = "pip install 'onnxruntime-gpu[cuda,cudnn]' nvidia-cublas, or use --device cpu."
        return Check("runtimes", name, Status.ERROR, f"does not load: {loaded.error}", advice)
    return Check("runtimes", name, Status.OK, "its libraries load")


def _tensorrt(answer: Answer | None) -> Check:
    version = package_version(*TENSORRT)
    if version is None:
        return Check("runtimes", "TensorRT", Status.MISSING, "not installed", "pip install 'vdali[tensorrt]'")
    if answer is None:
        # without a driver importing it may crash the process, so it was left alone
        found = f"{version} is installed, but there is no usable GPU"
        return Check("runtimes", "TensorRT", Status.MISSING, found, INSTALL_DRIVER)
    if answer.error:
        advice = f"It needs a driver >= {MINIMUM_DRIVER}; pip install --force-reinstall 'vdali[tensorrt]'"
        return Check("runtimes", "TensorRT", Status.ERROR, f"{version} does not load: {answer.error}", advice)
    return Check("runtimes", "TensorRT", Status.OK, version)


def _tensorrt_rtx(gpu: bool) -> Check:
    version = package_version(*TENSORRT_RTX)
    if version is None:
        return Check("runtimes", "TensorRT-RTX", Status.MISSING, "not installed", "pip install 'vdali[rtx]'")
    found = version if gpu else f"{version}: builds plans here, runs them only where there is a GPU"
    return Check("runtimes", "TensorRT-RTX", Status.OK, found)


def decoder_checks(answers: Answers) -> list[Check]:
    """Decoders, each with a picture that it really decoded."""
    return [
        _turbo(answers["turbo"]),
        _dali(answers["dali"]),
        _pillow(answers["pillow"]),
        _nvimgcodec(answers["nvimgcodec"]),
        _plugin("HEIC", "pillow-heif", answers["pillow_heif"], "heif"),
        _plugin("JPEG XL", "pillow-jxl-plugin", answers["pillow_jxl"], "jxl"),
    ]


def _turbo(answer: Answer) -> Check:
    versions = f"simplejpeg {package_version('simplejpeg')}, cykooz-resizer {package_version('cykooz-resizer')}"
    if answer.error:
        advice = "pip install simplejpeg cykooz-resizer; until then use --decoder pillow."
        return Check("decoders", "turbo", Status.ERROR, f"{versions}: {answer.error}", advice)
    return Check("decoders", "turbo", Status.OK, versions)


def _dali(answer: Answer) -> Check:
    version = package_version(*DALI)
    if version is None:
        advice = f"pip install {DALI[0]} (x86_64 Linux); --decoder turbo needs none."
        return Check("decoders", "dali", Status.MISSING, "not installed", advice)
    if answer.error:
        advice = f"pip install --force-reinstall {DALI[0]}; until then use --decoder turbo."
        return Check("decoders", "dali", Status.ERROR, f"DALI {version}, CPU pipeline: {answer.error}", advice)
    return Check("decoders", "dali", Status.OK, f"DALI {version}, CPU pipeline")


def _pillow(answer: Answer) -> Check:
    if answer.error:
        advice = "pip install --force-reinstall pillow"
        return Check("decoders", "pillow", Status.ERROR, answer.error, advice)
    facts = answer.facts
    found = f"Pillow {facts['version']}: {', '.join(['JPEG', 'PNG', *facts['formats']])}"
    lacking = facts["lacking"]
    if lacking or not facts["jpeg"]:
        found += f"; without {', '.join([*lacking, *([] if facts['jpeg'] else ['libjpeg-turbo'])])}"
        return Check("decoders", "pillow", Status.WARNING, found, "pip install --force-reinstall pillow", facts)
    return Check("decoders", "pillow", Status.OK, found, facts=facts)


def _nvimgcodec(answer: Answer) -> Check:
    version = package_version("nvidia-nvimgcodec-cu12", "nvidia-nvimgcodec-cu13")
    if version is None:
        advice = f"DALI brings it: pip install {DALI[0]}"
        return Check("decoders", "nvImageCodec", Status.MISSING, "not installed", advice)
    if answer.error:
        advice = "pip install --force-reinstall nvidia-nvimgcodec-cu12"
        return Check("decoders", "nvImageCodec", Status.ERROR, f"{version}: {answer.error}", advice)
    return Check("decoders", "nvImageCodec", Status.OK, version)


def _plugin(name: str, package: str, answer: Answer, extra: str) -> Check:
    version, advice = package_version(package), f"pip install 'vdali[{extra}]'"
    if version is None:
        return Check("decoders", name, Status.MISSING, "not installed", advice)
    if answer.error:
        return Check("decoders", name, Status.ERROR, f"{package} {version} does not load: {answer.error}", advice)
    return Check("decoders", name, Status.OK, f"{package} {version}")


def export_checks() -> list[Check]:
    """Packages that only `vdali export` of a PyTorch model needs; nothing is imported."""
    versions = {name: package_version(name) for name in TORCH_EXTRA}
    lacking = [name for name, version in versions.items() if version is None]
    found = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    if not lacking:
        return [Check("export", "torch extra", Status.OK, found, facts=versions)]
    found = f"{found}; without {', '.join(lacking)}" if found else "not installed"
    return [Check("export", "torch extra", Status.MISSING, found, "pip install 'vdali[torch]'", versions)]
