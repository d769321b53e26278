"""Why a card cannot be used, in the words of a torch that is played here: the machine has no card."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from worker import probe

BUILT = ["sm_75", "sm_80", "sm_90", "sm_120"]


def torch_of(cuda: str | None = "12.8", capability: tuple[int, int] = (8, 9), init: Any = None, **names: Any) -> Any:
    """As much of torch as the look uses."""
    facts = SimpleNamespace(major=capability[0], minor=capability[1], name="NVIDIA X", total_memory=5 * 2**30)
    cuda_part = SimpleNamespace(
        init=init or (lambda: None), get_device_properties=lambda _: facts, get_arch_list=lambda: names.get("built", BUILT)
    )

    def ones(*_: Any, **__: Any) -> Any:
        import torch

        return torch.ones(1)

    version = SimpleNamespace(cuda=cuda, hip=None)
    return SimpleNamespace(__version__="2.9.0", version=version, cuda=cuda_part, ones=names.get("ones", ones))


def failing(text: str) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError(text)

    return fail


OLD = "The NVIDIA driver on your system is too old (found version 11040)."


@pytest.mark.parametrize(
    ("torch", "problem"),
    [
        (torch_of(), None),
        (torch_of(capability=(12, 0)), None),
        (torch_of(capability=(11, 0), built=[*BUILT, "compute_90"]), None),
        (torch_of(built=["gfx90a"]), None),
        (torch_of(cuda=None), "torch 2.9.0 here is a build without CUDA; install one with it"),
        (torch_of(init=failing(OLD + "\nmore")), OLD),
        (torch_of(capability=(6, 1)), "NVIDIA X has compute capability 6.1, and torch is built for 7.5, 8.0, 9.0, 12.0"),
        (torch_of(capability=(10, 0)), "NVIDIA X has compute capability 10.0, and torch is built for"),
        (torch_of(ones=failing("CUDA error: device busy")), "CUDA error: device busy"),
    ],
)
def test_torch_says_why_a_card_cannot_be_used(torch: Any, problem: str | None) -> None:
    found = probe.look(torch, "cuda:0")
    if problem is None:
        assert found == probe.Found(None, 5 * 2**30)
    else:
        assert found.problem is not None and found.problem.startswith(problem) and "\n" not in found.problem


def test_a_child_asks_torch_and_says_what_ended_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = "__version__ = '2.9.0+cpu'\nprint('noise')\nclass version:\n    cuda = hip = None\n"  # for CPUs, beside a driver
    (tmp_path / "torch.py").write_text(build)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert "torch 2.9.0+cpu here is a build without CUDA" in str(probe.probe("cuda:0").problem)
    (tmp_path / "torch.py").write_text("raise SystemExit('libcudart.so.12: cannot open shared object file')")
    assert probe.probe("cuda:0").problem == (
        "the process that tried it ended with code 1: libcudart.so.12: cannot open shared object file"
    )
    assert probe.probe("cpu") == probe.Found()
    monkeypatch.setattr(probe, "find_spec", lambda _: None)
    assert "safelight[worker]" in str(probe.probe("cpu").problem)
