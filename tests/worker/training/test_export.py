"""What a saved file holds: values in the dtype asked for, none silently lost, and a header that says where it comes from."""

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import safetensors.torch
import torch
from safetensors import safe_open
from torch import nn

from models import catalog
from models.adapters.files import network_for
from models.base import BaseModel
from models.errors import UserError
from models.spec import TrainSpec
from worker.training.export import write_weights


class Small(BaseModel):
    arch = "small"

    def load_model(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


@pytest.fixture
def job(tiny_job: Any) -> Any:
    def make(**changes: Any) -> TrainSpec:
        spec = catalog.parse_job(tiny_job(**{"network": {"linear": 2, "linear_alpha": 1.0}, **changes}))
        assert isinstance(spec, TrainSpec)
        return spec

    return make


def written(spec: TrainSpec, path: Path, values: float | None = None, **about: Any) -> list[str]:
    """Write a small model's weights; the answer is what was told."""
    model = Small("cpu", SimpleNamespace(), dtype="fp32")
    model.load_model()
    if spec.network is not None:
        model.network = network_for(model, spec.network)
    trained = model.model if model.network is None else model.network
    if values is not None:
        with torch.no_grad():
            next(trained.parameters())[0, 0] = values
    told: list[str] = []
    about = {"step": 7, "epoch": 2, "dataset_hash": "abc", **about}
    write_weights(model, spec, path, **about, tell=lambda message, level: told.append(f"{level} {message}"))
    return told


@pytest.mark.parametrize("network", [{"linear": 2}, {"type": "lokr"}, None], ids=str)
def test_the_header_says_where_a_file_comes_from(job: Any, tmp_path: Path, network: Any) -> None:
    spec = job(network=network, name="a cat", trigger_word="zxc", **{"save.dtype": "bf16"})
    written(spec, tmp_path / "a.safetensors")
    with safe_open(tmp_path / "a.safetensors", "pt") as file:
        meta = file.metadata()
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.bfloat16}  # noqa: SIM118 - not a dict
    assert json.loads(meta["job"]) == spec.model_dump(mode="json")
    assert json.loads(meta["training_info"]) == {"step": 7, "epoch": 2}
    assert (meta["format"], meta["arch"], meta["dtype"], meta["dataset_hash"]) == ("pt", "pocket", "bf16", "abc")
    assert (meta["ss_base_model_version"], meta["ss_output_name"]) == ("small", "a cat")
    assert json.loads(meta["ss_tag_frequency"]) == {"1_zxc": {"zxc": 1}}
    software = json.loads(meta["software"])
    assert (software["name"], software["torch"]) == ("safelight", torch.__version__)
    assert set(software) == {"name", "version", "torch", "diffusers"}
    if network is None:
        assert "network" not in meta
    else:
        assert json.loads(meta["network"])["type"] == network.get("type", "lora")


def test_the_trained_rank_and_alpha_are_in_the_header_for_alpha_is_folded_into_the_weights(job: Any, tmp_path: Path) -> None:
    written(job(), tmp_path / "a.safetensors")
    with safe_open(tmp_path / "a.safetensors", "pt") as file:
        assert json.loads(file.metadata()["network"]) == {"type": "lora", "rank": 2, "alpha": [1.0], "layers": 2}


def test_the_model_hash_is_that_of_the_tensor_section(job: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    written(job(), path)
    whole = path.read_bytes()
    behind = whole[8 + int.from_bytes(whole[:8], "little") :]
    with safe_open(path, "pt") as file:
        assert file.metadata()["sshs_model_hash"] == hashlib.sha256(behind).hexdigest()
    again = safetensors.torch.save(safetensors.torch.load_file(path), {"other": "header"})
    assert again.endswith(behind)  # the hash does not depend on what the header says


@pytest.mark.parametrize("network", [{"linear": 2}, None], ids=str)
def test_values_that_would_become_infinite_are_refused_naming_a_dtype_that_holds_them(
    job: Any, tmp_path: Path, network: Any
) -> None:
    path = tmp_path / "a.safetensors"
    tensor = "diffusion_model.0.lora_A.weight" if network else "0.weight"
    message = rf"fp16 would turn 1 values to infinity \(1 of them in '{tensor}'\); set save\.dtype to bf16"
    with pytest.raises(UserError, match=message) as refused:
        written(job(network=network, **{"save.dtype": "fp16"}), path, values=7e4)
    assert refused.value.code == "values_lost"
    assert not path.exists()
    for dtype in ("bf16", "fp32"):
        assert written(job(network=network, **{"save.dtype": dtype}), path, values=7e4) == []
    with pytest.raises(UserError, match=r"set save\.dtype to fp32"):
        written(job(network=network, **{"save.dtype": "bf16"}), path, values=3.4e38)


def test_values_that_become_zero_are_counted_and_told(job: Any, tmp_path: Path) -> None:
    told = written(job(**{"save.dtype": "fp16"}), tmp_path / "a.safetensors", values=1e-8)
    assert told == [
        "WARNING saving as fp16 turns 1 of 32 values to 0, most of them in 'diffusion_model.0.lora_A.weight'; save.dtype fp32 keeps them"
    ]
    assert written(job(**{"save.dtype": "bf16"}), tmp_path / "a.safetensors", values=1e-8) == []


def test_an_alpha_that_the_dtype_would_round_keeps_its_own(job: Any, tmp_path: Path) -> None:
    """0.3 in bf16 is 0.30078, which would scale the adapter by 1.0026."""
    network = {"type": "lokr", "linear": 1, "linear_alpha": 0.3, "lokr_full_rank": False, "lokr_factor": 1}
    written(job(network=network, **{"save.dtype": "bf16"}), tmp_path / "a.safetensors")
    tensors = safetensors.torch.load_file(tmp_path / "a.safetensors")
    assert tensors["diffusion_model.0.alpha"] == torch.tensor(0.3)
    assert {t.dtype for name, t in tensors.items() if not name.endswith("alpha")} == {torch.bfloat16}
