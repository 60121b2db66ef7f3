"""What each answer of a probe becomes, machines included that this one is not."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from vdali.engine.doctor.examination import _verdict
from vdali.engine.doctor.isolated import Answer
from vdali.engine.doctor.report import Check, Status
from vdali.engine.doctor.runtimes import decoder_checks, export_checks, gpu_checks, has_gpu, runtime_checks
from vdali.engine.gpu_probe import Gpu, GpuProbe

H200 = Answer(asdict(GpuProbe((Gpu("NVIDIA H200", 150 << 30, "9.0"),) * 2, "580.65", "13.0", ("NVIDIA H200",))))
NO_DRIVER = Answer(asdict(GpuProbe(reason="no NVIDIA driver", advice="Install one.")))
HIDDEN = Answer(asdict(GpuProbe((), "580.65", "13.0", ("NVIDIA H200",), "CUDA cannot use it", "Restart.")))
HUNG = Answer(error="gave no answer within 30 s")
RUNTIME = Answer({"version": "1.31", "providers": ["CUDAExecutionProvider", "CPUExecutionProvider"], "cuda": "13.0"})
CPU_BUILD = Answer({"version": "1.31", "providers": ["CPUExecutionProvider"], "cuda": ""})


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Makes distributions look installed, by their metadata alone."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(**versions: str) -> None:
        for name, version in versions.items():
            folder = tmp_path / f"{name}-{version}.dist-info"
            folder.mkdir()
            (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    return make


def check(checks: list[Check], name: str) -> Check:
    return next(check for check in checks if check.name == name)


def test_each_gpu_is_a_line_with_its_figures():
    checks = gpu_checks(H200)
    assert [found.name for found in checks] == ["driver", "cuda:0", "cuda:1"]
    assert checks[0].found == "580.65, supports CUDA 13.0"
    assert checks[1].found == "NVIDIA H200, 150 GiB, compute capability 9.0"
    assert checks[1].facts["memory_bytes"] == 150 << 30
    assert has_gpu(H200)


@pytest.mark.parametrize(
    ("answer", "status"), [(NO_DRIVER, Status.MISSING), (HIDDEN, Status.ERROR), (HUNG, Status.ERROR)]
)
def test_no_usable_gpu_is_one_line_with_advice(answer, status):
    (found,) = gpu_checks(answer)
    assert found.status is status
    assert found.advice
    assert not has_gpu(answer)


@pytest.mark.parametrize(
    ("answers", "status", "words"),
    [
        ({"gpu": NO_DRIVER, "onnxruntime": RUNTIME}, Status.MISSING, "built in, but"),
        ({"gpu": NO_DRIVER, "onnxruntime": CPU_BUILD}, Status.MISSING, "not in this build"),
        ({"gpu": H200, "onnxruntime": CPU_BUILD, "onnxruntime_cuda": Answer(error="x")}, Status.WARNING, "not in"),
        ({"gpu": H200, "onnxruntime": RUNTIME, "onnxruntime_cuda": Answer()}, Status.OK, "load"),
        (
            {"gpu": H200, "onnxruntime": RUNTIME, "onnxruntime_cuda": Answer(error="OSError: libcudnn.so.9")},
            Status.ERROR,
            "libcudnn.so.9",
        ),
    ],
)
def test_the_cuda_provider_is_only_ok_where_it_loads(answers, status, words):
    found = check(runtime_checks(answers), "CUDA provider")
    assert found.status is status
    assert words in found.found
    assert bool(found.advice) == (status is not Status.OK)


def test_an_onnxruntime_that_does_not_load_is_an_error_and_its_providers_are_not_judged():
    checks = runtime_checks({"gpu": NO_DRIVER, "onnxruntime": Answer(error="ImportError: x")})
    assert check(checks, "ONNX Runtime").status is Status.ERROR
    assert "CUDA provider" not in [found.name for found in checks]


def test_two_builds_of_onnxruntime_are_an_error(install):
    install(onnxruntime="1.30")
    found = check(runtime_checks({"gpu": NO_DRIVER, "onnxruntime": RUNTIME}), "onnxruntime x2")
    assert found.status is Status.ERROR
    assert "onnxruntime 1.30 and onnxruntime-gpu" in found.found


@pytest.mark.parametrize(
    ("answers", "status", "words"),
    [
        ({"gpu": NO_DRIVER}, Status.MISSING, "11.4 is installed, but"),
        ({"gpu": H200, "tensorrt": Answer({"version": "11.4"})}, Status.OK, "11.4"),
        ({"gpu": H200, "tensorrt": Answer(error="crashed (SIGSEGV)")}, Status.ERROR, "crashed"),
    ],
)
def test_tensorrt_is_only_ok_where_it_was_loaded(install, answers, status, words):
    install(tensorrt="11.4")
    found = check(runtime_checks({"onnxruntime": RUNTIME, **answers}), "TensorRT")
    assert found.status is status
    assert words in found.found


def test_tensorrt_rtx_can_build_without_a_gpu(install):
    install(tensorrt_rtx="1.7")
    without = check(runtime_checks({"gpu": NO_DRIVER, "onnxruntime": RUNTIME}), "TensorRT-RTX")
    assert (without.status, "builds plans here" in without.found) == (Status.OK, True)


def decoders(**answers: Answer) -> list[Check]:
    pillow = Answer({"version": "13", "jpeg": "libjpeg-turbo", "formats": ["WebP"], "lacking": []})
    good = dict.fromkeys(("turbo", "dali", "nvimgcodec", "pillow_heif", "pillow_jxl"), Answer())
    return decoder_checks({**good, "pillow": pillow, **answers})


def test_a_pillow_without_a_format_is_a_warning():
    lacking = Answer({"version": "13", "jpeg": "", "formats": ["WebP"], "lacking": ["AVIF"]})
    found = check(decoders(pillow=lacking), "pillow")
    assert found.status is Status.WARNING
    assert "without AVIF, libjpeg-turbo" in found.found


@pytest.mark.parametrize("name", ["turbo", "dali", "pillow", "nvimgcodec"])
def test_a_decoder_that_fails_is_an_error_with_its_own_words(name):
    found = check(decoders(**{name: Answer(error="boom")}), {"nvimgcodec": "nvImageCodec"}.get(name, name))
    assert found.status is Status.ERROR
    assert "boom" in found.found
    assert found.advice


def test_packages_that_are_not_installed_are_missing_and_the_extra_is_named(monkeypatch):
    monkeypatch.setattr("vdali.engine.doctor.runtimes.package_version", lambda *names: None)
    checks = [*decoders(), *export_checks()]
    for name, advice in {"HEIC": "vdali[heif]", "JPEG XL": "vdali[jxl]", "torch extra": "vdali[torch]"}.items():
        assert check(checks, name).status is Status.MISSING
        assert advice in check(checks, name).advice
    assert check(checks, "dali").status is Status.MISSING


def test_a_part_of_the_torch_extra_is_told_apart_from_none_of_it(monkeypatch):
    only_torch = {"torch": "2.14"}
    monkeypatch.setattr("vdali.engine.doctor.runtimes.package_version", lambda *names: only_torch.get(names[0]))
    (found,) = export_checks()
    assert found.status is Status.MISSING
    assert found.found == "torch 2.14; without torchvision, timm, onnxscript"


def verdict(gpu: Answer, provider: Status | None, *others: Check):
    checks = [] if provider is None else [Check("runtimes", "CUDA provider", provider, "does not load")]
    return _verdict([*checks, *others], gpu)


def test_the_verdict_is_the_cpu_and_why():
    turbo, dali = Check("decoders", "turbo", Status.OK, ""), Check("decoders", "dali", Status.ERROR, "")
    found = verdict(NO_DRIVER, Status.MISSING, dali, turbo)
    assert (found.device, found.reason, found.decoders) == ("cpu", "no NVIDIA driver", ("turbo",))
    assert verdict(HUNG, None).reason == "gave no answer within 30 s"


def test_the_verdict_is_the_first_gpu_unless_that_cannot_be_used():
    assert (verdict(H200, Status.OK).device, verdict(H200, Status.OK).reason) == ("cuda:0", "NVIDIA H200")
    broken = verdict(H200, Status.ERROR)
    assert broken.device == "cpu"
    assert broken.reason.startswith("NVIDIA H200 is here, but the CUDA provider: ")
    assert verdict(H200, None).reason == "NVIDIA H200 is here, but ONNX Runtime does not load"
