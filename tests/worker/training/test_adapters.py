"""Adapters through whole jobs: kinds, where they start from, and what their files say."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from models import catalog
from models.data import datasets
from models.data.entries import dataset_hash
from models.errors import UserError
from server.api.plan import make_plan

QUICK = {"train.steps": 2, "save.save_every": 2, "train.disable_sampling": True}


@pytest.fixture
def train(run_here: Callable[..., Path], tiny_job: Any, pictures: Callable[..., Path]) -> Callable[..., Path]:
    """`train(network, **changes)` runs a small job and gives the file it saved."""
    pictures()

    def run(network: dict[str, Any] | None, folder: str = "run", **changes: Any) -> Path:
        where = run_here(tiny_job(network=network, **{**QUICK, **changes}), folder=folder)
        return next(iter(sorted(where.glob("bundles/step_*/tiny_*.safetensors"))))

    return run


def meta(path: Path) -> dict[str, str]:
    with safe_open(path, "pt") as file:
        return dict(file.metadata())


@pytest.mark.parametrize(
    ("network", "parts"),
    [
        ({"linear": 2, "conv": 2, "dropout": 0.5}, {"lora_A.weight", "lora_B.weight"}),
        ({"type": "lokr", "linear": 2, "conv": 1}, {"lokr_w1", "lokr_w2", "alpha"}),
        ({"type": "lokr", "linear": 1, "lokr_full_rank": False}, {"lokr_w1", "lokr_w2_a", "lokr_w2_b", "alpha"}),
    ],
    ids=["lora", "lokr", "factored lokr"],
)
def test_every_kind_trains_and_goes_back_on_the_model(
    train: Any, run_here: Any, network: dict[str, Any], parts: set[str], home: Path
) -> None:
    path = train(network)
    tensors = load_file(path)
    assert {key.split(".", 1)[0] for key in tensors} == {"diffusion_model"}
    named = {name for name in parts if any(key.endswith(name) for key in tensors)}
    assert named == parts
    assert any(tensor.ndim == 4 for tensor in tensors.values()) == bool(network.get("conv"))
    assert sum(float(tensor.abs().sum()) for key, tensor in tensors.items() if "lora_B" in key or "lokr_w2" in key) > 0
    assert json.loads(meta(path)["network"])["type"] == network.get("type", "lora")
    target = home / "models" / "adapter.safetensors"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(path.read_bytes())
    sample = {
        "kind": "sample", "name": "shown", "adapters": [{"path": "adapter.safetensors"}],
        "model": {"arch": "pocket", "name_or_path": "random", "model_kwargs": {"channels": [16, 32]}},
        "sample": {"sample_steps": 2}, "samples": [{"prompt": "colour number 0"}],
    }  # fmt: skip
    assert len(list(run_here(sample, folder="samples").glob("samples/*.png"))) == 1


def test_a_file_says_which_data_and_how_far_it_was_trained(train: Any, home: Path, tiny_job: Any) -> None:
    path = train({"linear": 2}, **{"train.steps": 6, "save.save_every": 6})
    spec: Any = catalog.parse_job(tiny_job())
    found = datasets.survey(spec.datasets[0], home / "datasets" / "colours")
    about = meta(path)
    assert about["dataset_hash"] == dataset_hash([found])
    assert json.loads(about["training_info"]) == {"step": 6, "epoch": 3}  # four pictures, two a batch


def test_alpha_counts_unless_the_numbers_of_ai_toolkit_are_asked_for(train: Any) -> None:
    network = {"linear": 4, "linear_alpha": 1.0}
    assert json.loads(meta(train(network))["network"])["alpha"] == [1.0]
    theirs = train(network, folder="theirs", **{"train.as_in_ai_toolkit": True})
    assert json.loads(meta(theirs)["network"])["alpha"] == [4.0]


@pytest.mark.parametrize("kind", ["lora", "lokr"])
def test_a_job_starts_from_the_weights_of_another(train: Any, home: Path, kind: str) -> None:
    first = train({"type": kind, "linear": 2, "linear_alpha": 2.0}, **{"train.lr": 0.1})
    kept = home / "models" / "first.safetensors"
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(first.read_bytes())
    # a rate that moves nothing in fp32, so what is saved is what it started from
    network = {"type": kind, "linear": 2, "linear_alpha": 2.0, "pretrained_lora_path": "first.safetensors"}
    second = train(network, folder="second", **{"train.lr": 1e-30})
    one, two = load_file(first), load_file(second)
    assert set(one) == set(two)
    assert all(torch.equal(tensor, two[name]) for name, tensor in one.items())
    assert meta(second)["step"] == "2"  # counted anew


def test_weights_that_do_not_fit_are_refused_saying_what_differs(train: Any, home: Path) -> None:
    kept = home / "models" / "first.safetensors"
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(train({"linear": 2}).read_bytes())
    with pytest.raises(UserError, match=r"do not fit network's settings in: .* \(rank 2, not 4\)"):
        train({"linear": 4, "pretrained_lora_path": "first.safetensors"}, folder="other")


def test_a_start_that_is_not_there_is_a_fault_of_the_job(migrated: Path, tiny_job: Any, pictures: Any) -> None:
    pictures()
    plan = make_plan(tiny_job(network={"linear": 2, "pretrained_lora_path": "absent.safetensors"}))
    assert [problem.pointer for problem in plan.problems] == ["/network/pretrained_lora_path"]
