"""FLUX.2 klein as a job: trained on a few pictures, saved, read by diffusers, and through the whole server."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers import Flux2KleinPipeline
from diffusers.loaders.lora_conversion_utils import _convert_non_diffusers_flux2_lora_to_diffusers as to_diffusers
from safetensors.torch import load_file

from models import catalog
from models.adapters.load import network_from_state
from models.archs.flux2_klein.model import Flux2KleinModel, write_tiny
from models.errors import UserError
from models.weights import read_metadata

LENGTH = 48
NAMELESS = "x_embedder"


@pytest.fixture
def tiny(home: Path) -> Path:
    folder = home / "models" / "tiny"
    write_tiny(folder)
    return folder


def job(**changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "kind": "train",
        "name": "klein",
        "model": {"arch": "flux2_klein_4b", "name_or_path": "tiny", "dtype": "fp32", "model_kwargs": {"max_text_length": LENGTH}},
        "network": {"linear": 4, "linear_alpha": 8.0},
        "datasets": [{"folder_path": "colours", "resolution": [64], "caption_dropout_rate": 0.1}],
        "train": {"steps": 3, "batch_size": 2, "lr": 1e-2, "disable_sampling": True},
        "save": {"save_every": 3, "dtype": "fp32"},
    }
    for key, value in changes.items():
        section, _, name = key.rpartition(".")
        (made[section] if section else made)[name] = value
    return made


def loaded(where: Path, **places: str) -> Flux2KleinModel:
    options = catalog.arch("flux2_klein_4b").options(max_text_length=LENGTH)
    config = {"name_or_path": str(where), "te_name_or_path": None, "vae_path": None, "model_kwargs": options, **places}
    model = Flux2KleinModel("cpu", SimpleNamespace(**config), dtype="fp32")
    model.load_model()
    return model


def predict(model: Flux2KleinModel) -> torch.Tensor:
    x = torch.randn(1, model.model.config.in_channels, 4, 4, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return model.predict_noise(x, text_embeddings=model.encode_prompt("colour number 1"), timestep=600.0)


def test_a_trained_lora_does_in_diffusers_what_it_does_here(
    run_here: Callable[..., Path], pictures: Callable[..., Path], tiny: Path
) -> None:
    pictures(count=3, size=64)
    folder = run_here(job())
    [path] = folder.rglob("klein_000000003.safetensors")
    state = load_file(path)
    assert read_metadata(path)["arch"] == "flux2_klein_4b"
    assert all(name.startswith(("diffusion_model.double_blocks.", "diffusion_model.single_blocks.")) for name in state)
    assert len(state) == 2 * (2 * 8 + 2 * 2)  # two blocks of each kind
    assert all(bool(tensor.any()) for tensor in state.values())  # three steps moved every B from zero
    assert len(to_diffusers(dict(state))) == 2 * (2 * 12 + 2 * 2)  # none is left over, or it raises

    model = loaded(tiny)
    bare = predict(model)
    network_from_state(model.get_model_to_train(), model.convert_lora_weights_before_load(state))
    ours = predict(model)
    pipe = Flux2KleinPipeline.from_pretrained(tiny)
    pipe.load_lora_weights(str(path.parent), weight_name=path.name)
    model = loaded(tiny)
    model.model = pipe.transformer
    assert torch.allclose(predict(model), ours, rtol=0, atol=1e-5)  # a hundred fp32 roundings of values near 1
    assert float((ours - bare).abs().max()) > 1e-3


def test_a_full_fine_tune_ends_in_a_file_that_loads(
    run_here: Callable[..., Path], pictures: Callable[..., Path], tiny: Path
) -> None:
    pictures(count=3, size=64)
    folder = run_here(job(network=None, **{"train.lr": 1e-3}))
    [path] = folder.rglob("klein_000000003.safetensors")
    model = loaded(path, te_name_or_path=str(tiny), vae_path=str(tiny))
    assert float((predict(model) - predict(loaded(tiny))).abs().max()) > 1e-3
    trained = load_file(folder / "bundles" / "step_000000003" / "state.safetensors")
    assert all(torch.equal(tensor, trained[f"param/{name}"]) for name, tensor in model.model.state_dict().items())


def test_from_post_to_previews_with_control_images(stack: Callable[..., Any], pictures: Callable[..., Path], tiny: Path) -> None:
    pictures()
    up = stack()
    samples = [
        {"prompt": "colour number 0"},
        {"prompt": "two of them", "ctrl_img": "colours/001.png", "ctrl_img_1": "colours/002.png"},
    ]
    sampling = {"sample_every": 5, "width": 32, "height": 48, "sample_steps": 2, "samples": samples}
    job_id = up.submit(job(sample=sampling, train={"steps": 5, "batch_size": 2}, **{"model.dtype": "bf16"}))
    done = up.wait_for(job_id, "succeeded", "failed")
    assert done["status"] == "succeeded", done["error"]
    points = up.http.get(f"/v1/jobs/{job_id}/metrics").json()["points"]
    assert [step for step, _ in points] == [1, 2, 3, 4, 5]
    assert all(0 < loss < 100 for _, loss in points)
    made = up.http.get(f"/v1/jobs/{job_id}/samples").json()["samples"]
    assert [(sample["step"], sample["prompt"]) for sample in made] == [
        (step, sample["prompt"]) for step in (0, 5) for sample in samples
    ]
    assert all(up.http.get(sample["url"]).content.startswith(b"\x89PNG") for sample in made)
    files = [file["path"] for file in up.http.get(f"/v1/jobs/{job_id}/files").json()["files"]]
    assert "klein_000000005.safetensors" in files


def test_a_lokr_on_layers_without_a_public_name_is_refused_before_it_is_trained(
    run_here: Callable[..., Path], pictures: Callable[..., Path], tiny: Path, scripted: Any
) -> None:
    pictures()
    reporter = scripted()
    with pytest.raises(UserError, match=NAMELESS):
        run_here(job(network={"type": "lokr", "linear": 4, "only_if_contains": [NAMELESS]}), reporter)
    assert reporter.heard("step") == []
