"""Where FLUX.2 klein's parts come from, what of them is read, and what a full fine-tune's file gives back."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from huggingface_hub import constants

from models.archs.flux2_klein.model import Flux2KleinModel, check_fit
from models.errors import UserError
from tests.models.klein.tiny_klein import load


def same(one: Flux2KleinModel, other: Flux2KleinModel) -> bool:
    """Whether all weights are equal bit for bit, and what they say of a caption and a picture."""
    parts = [(getattr(one, part).state_dict(), getattr(other, part).state_dict()) for part in ("model", "vae", "text_encoder")]
    told = [model.encode_prompt("a fox").text_embeds[0] for model in (one, other)]
    return torch.equal(*told) and all(
        set(mine) == set(theirs) and all(torch.equal(tensor, theirs[name]) for name, tensor in mine.items())
        for mine, theirs in parts
    )


def settings(scheduler: Any) -> dict[str, Any]:
    return {key: value for key, value in scheduler.config.items() if not key.startswith("_")}


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("fp32", torch.float32)])
def test_weights_are_cast_frozen_and_only_those_that_are_used(tiny: Path, name: str, dtype: torch.dtype) -> None:
    model = load(tiny, name)
    for part in (model.model, model.vae, model.text_encoder):
        assert {parameter.dtype for parameter in part.parameters()} == {dtype}
        assert not any(parameter.requires_grad for parameter in part.parameters())
        assert not part.training
    assert len(model.text_encoder.layers) == 28  # of the 30 in the folder
    x = torch.randn(1, model.model.config.in_channels, 4, 4)
    with torch.no_grad():
        made = model.predict_noise(x, text_embeddings=model.encode_prompt("a fox"), timestep=500.0)
        assert model.encode_images(torch.zeros(1, 3, 32, 32)).dtype == made.dtype == dtype
    assert bool(torch.isfinite(made).all())


def test_a_saved_model_is_read_back_bit_for_bit(tiny: Path, tmp_path: Path) -> None:
    model = load(tiny)
    with torch.no_grad():
        for parameter in model.model.parameters():
            parameter.add_(0.01)
    model.is_distilled = True
    path = tmp_path / "tuned_000000010.safetensors"
    model.save_model(path, {"format": "pt", "step": "10"}, torch.float32)
    again = load(path, te_name_or_path=str(tiny), vae_path=str(tiny))
    assert same(model, again)
    assert not same(model, load(tiny))
    assert again.is_distilled
    assert settings(again.noise_scheduler) == settings(load(tiny).noise_scheduler)
    with pytest.raises(UserError, match=r"tuned_000000010\.safetensors holds only the transformer: te_name_or_path and vae_path"):
        load(path, te_name_or_path=str(tiny))
    model.save_model(path, {"format": "pt"}, torch.bfloat16)
    half = load(path, "bf16", te_name_or_path=str(tiny), vae_path=str(tiny))
    wanted = {name: tensor.bfloat16() for name, tensor in model.model.state_dict().items()}
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in half.model.state_dict().items())


def test_parts_may_come_from_elsewhere(tiny: Path, tmp_path: Path) -> None:
    """The transformer in one folder, the text encoder with its tokenizer in another, the VAE alone in a third."""
    for name in ("transformer", "scheduler"):
        shutil.copytree(tiny / name, tmp_path / "main" / name)
    shutil.copy(tiny / "model_index.json", tmp_path / "main")
    for name in ("text_encoder", "tokenizer"):
        shutil.copytree(tiny / name, tmp_path / "encoder", dirs_exist_ok=True)
    shutil.copytree(tiny / "vae", tmp_path / "vae")
    model = load(tmp_path / "main", te_name_or_path=str(tmp_path / "encoder"), vae_path=str(tmp_path / "vae"))
    assert same(model, load(tiny))
    with pytest.raises(UserError, match="main holds no vae"):
        load(tmp_path / "main", te_name_or_path=str(tmp_path / "encoder"))


def test_a_repository_on_the_hub_is_a_folder_too(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline, out of the hub's cache."""
    repo = tmp_path / "models--someone--klein"
    shutil.copytree(tiny, repo / "snapshots" / "abc")
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("abc")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert same(load("someone/klein"), load(tiny))
    with pytest.raises(UserError, match="someone/else is no folder here and cannot be fetched from the hub"):
        load("someone/else")


def test_parts_that_do_not_fit_are_named(tiny: Path, tmp_path: Path) -> None:
    def changed(part: str, **values: Any) -> Path:
        folder = tmp_path / f"{part}_{len(list(tmp_path.iterdir()))}"
        shutil.copytree(tiny, folder)
        config = folder / part / "config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), **values}))
        return folder

    with pytest.raises(UserError, match=r"does not fit AutoencoderKLFlux2: 9 keys of another shape: bn.running_mean"):
        load(changed("vae", latent_channels=5))
    with pytest.raises(
        UserError, match=r"does not fit Flux2Transformer2DModel: .*: context_embedder\.weight \(32x48, needed 32x50\)"
    ):
        load(changed("transformer", joint_attention_dim=50))
    with pytest.raises(UserError, match="text_encoder has 12 layers; the model needs the first 28"):
        load(changed("text_encoder", num_hidden_layers=12, layer_types=["full_attention"] * 12))
    for file, text, said in (
        ("tokenizer/chat_template.jinja", "", "chat template leaves the prompt out"),
        ("scheduler/scheduler_config.json", "{}", r"scheduler_config\.json is a config without settings"),
    ):
        folder = changed("vae")
        (folder / file).write_text(text)
        with pytest.raises(UserError, match=said):
            load(folder)
    with pytest.raises(UserError, match=r"is no pipeline's folder: it has no model_index\.json"):
        load(tiny / "transformer")
    with pytest.raises(UserError, match=r"diffusion_pytorch_model\.safetensors is .* no config with transformer, scheduler"):
        load(tiny / "transformer" / "diffusion_pytorch_model.safetensors", te_name_or_path=str(tiny), vae_path=str(tiny))


@pytest.mark.parametrize(
    ("guidance", "hidden", "channels", "said"),
    [
        (True, 16, 4, "embeds guidance: it is FLUX.2 dev, not klein"),
        (False, 24, 4, "the text encoder gives 72 features a token; this transformer takes 48"),
        (False, 16, 8, "the VAE's 8 channels pack to 32; this transformer takes 16"),
    ],
)
def test_parts_of_other_models_are_named(guidance: bool, hidden: int, channels: int, said: str) -> None:
    def part(**config: Any) -> Any:
        return SimpleNamespace(config=SimpleNamespace(**config))

    model = part(guidance_embeds=guidance, joint_attention_dim=48, in_channels=16)
    with pytest.raises(UserError, match=said.replace(".", r"\.")):
        check_fit(model, part(latent_channels=channels), part(hidden_size=hidden))
