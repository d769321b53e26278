"""Weights of a base are whole or refused: every part of every architecture, by one loader."""

import ast
import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKLFlux2
from safetensors.torch import load_file, save_file
from transformers import Qwen3ForCausalLM, Qwen3Model

import models
from models.components import load_part, load_text_encoder
from models.errors import UserError
from models.toolkit.base_model import BaseModel as ToolkitModel
from models.toolkit.config_modules import ModelConfig
from tests.models.tiny_bases import DIFFUSERS, LOADS, SMALL, TRANSFORMERS, Tensors, load_small


@pytest.mark.parametrize(("base", "file"), [(base, file) for base, (_, files) in LOADS.items() for file in files])
def test_a_missing_key_refuses_the_load_of_every_part_of_every_arch(base: str, file: str, changed: Any) -> None:
    """And the message names the file, the count and the key."""
    gone = []

    def change(tensors: Tensors) -> None:
        gone.append(max((key for key in tensors if "." in key and "pooler" not in key), key=len))
        del tensors[gone[0]]

    folder = changed(base, file, change)
    with pytest.raises(UserError, match=": 1 key missing: ") as refused:
        LOADS[base][0](folder)
    assert refused.value.code == "bad_weights"
    assert str(folder / file) in refused.value.message
    assert gone[0].endswith(refused.value.message.rpartition(" ")[2])


@pytest.mark.parametrize("base", SMALL)
def test_surplus_and_reshaped_keys_refuse_the_load_and_three_are_named(base: str, changed: Any) -> None:
    surplus = [f"nothing.here.{n}" for n in range(5)]

    def change(tensors: Tensors) -> None:
        tensors.update({key: torch.ones(2) for key in surplus})
        key = next(key for key, tensor in tensors.items() if tensor.ndim == 2 and "embed_tokens" not in key)
        tensors[key] = torch.ones(3, 5)

    file = SMALL[base]
    folder = changed(base.removesuffix("_text"), file, change)
    with pytest.raises(UserError) as refused:
        load_small(base, folder)
    assert refused.value.code == "bad_weights"
    said = refused.value.message
    assert str(folder / file) in said
    assert "5 keys too many: nothing.here.0, nothing.here.1, nothing.here.2 and 2 more" in said
    assert "1 key of another shape: " in said and "(3x5, needed " in said


def test_a_key_that_a_kept_layer_does_not_have_is_not_taken_for_one_of_a_cut_layer(changed: Any) -> None:
    file = f"text_encoder/{TRANSFORMERS}"
    extra = {"model.layers.3.extra": torch.ones(1), "model.layers.29.extra": torch.ones(1)}
    folder = changed("klein", file, lambda tensors: tensors.update(extra))
    with pytest.raises(UserError, match=r": 1 key too many: model\.layers\.3\.extra$"):
        load_small("klein_text", folder)


def test_a_shard_that_lacks_what_its_index_promises_is_seen(bases: dict[str, Path], tmp_path: Path) -> None:
    """What counts is what the files hold; the index only says which files."""
    folder = tmp_path / "vae"
    shutil.copytree(bases["klein"] / "vae", folder)
    tensors = load_file(folder / DIFFUSERS)
    (folder / DIFFUSERS).unlink()
    names = sorted(tensors)
    halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for shard, keys in halves.items():
        save_file({key: tensors[key] for key in keys}, folder / shard)
    index = folder / f"{DIFFUSERS}.index.json"
    index.write_text(json.dumps({"weight_map": {key: shard for shard, keys in halves.items() for key in keys}}))
    whole = load_part(AutoencoderKLFlux2, folder, torch.float32).state_dict()
    assert all(torch.equal(whole[key], tensor) for key, tensor in tensors.items())
    save_file({key: tensors[key] for key in halves["b.safetensors"][1:]}, folder / "b.safetensors")
    with pytest.raises(UserError, match=rf"index\.json does not fit AutoencoderKLFlux2: 1 key missing: {names[1]}$"):
        load_part(AutoencoderKLFlux2, folder, torch.float32)
    for weight_map in ({}, {"a": "../b.safetensors"}, None):
        index.write_text(json.dumps({"weight_map": weight_map}))
        with pytest.raises(UserError, match="no index of weights"):
            load_part(AutoencoderKLFlux2, folder, torch.float32)


def test_another_models_config_is_refused_though_its_weights_fit(bases: dict[str, Path], tmp_path: Path) -> None:
    for part, key, other in (("vae", "_class_name", "AutoencoderKL"), ("text_encoder", "model_type", "qwen2")):
        shutil.copytree(bases["klein"] / part, tmp_path / part)
        config = tmp_path / part / "config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), key: other}))
    with pytest.raises(
        UserError, match=r"vae/config\.json is of another model: its _class_name is AutoencoderKL, and"
    ) as refused:
        load_part(AutoencoderKLFlux2, tmp_path / "vae", torch.float32)
    assert refused.value.code == "bad_weights"
    with pytest.raises(UserError, match=r"its model_type is qwen2, and Qwen3Model is needed") as refused:
        load_text_encoder(str(tmp_path), "text_encoder", Qwen3Model, torch.float32)
    assert refused.value.code == "bad_weights"


@pytest.mark.parametrize("name", [DIFFUSERS.replace("safetensors", "bin"), DIFFUSERS])
@pytest.mark.parametrize("base", ["klein", "wan"])
def test_pickled_weights_are_refused_whatever_their_file_is_called(base: str, name: str, bases: Any, tmp_path: Path) -> None:
    shutil.copytree(bases[base], tmp_path / base)
    file = tmp_path / base / "vae" / DIFFUSERS
    tensors = load_file(file)
    file.unlink()
    torch.save(tensors, file.with_name(name))
    with pytest.raises(UserError, match="can run code") as refused:
        LOADS[base][0](tmp_path / base)
    assert refused.value.code == "bad_weights" and str(file.with_name(name)) in refused.value.message


def test_a_part_without_weights_says_what_lies_there(bases: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(bases["klein"] / "vae", tmp_path / "vae")
    (tmp_path / "vae" / DIFFUSERS).rename(tmp_path / "vae" / "diffusion_pytorch_model.fp16.safetensors")
    with pytest.raises(UserError, match=r"there are: config\.json, diffusion_pytorch_model\.fp16\.safetensors") as refused:
        load_part(AutoencoderKLFlux2, tmp_path / "vae", torch.float32)
    assert str(refused.value.hint).startswith("download diffusion_pytorch_model.safetensors, or rename")


def test_a_base_that_another_tool_quantized_is_refused_by_its_method(bases: dict[str, Path], tmp_path: Path) -> None:
    for part in ("vae", "text_encoder"):
        shutil.copytree(bases["klein"] / part, tmp_path / part)
        config = tmp_path / part / "config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), "quantization_config": {"quant_method": "bitsandbytes"}}))
    with pytest.raises(UserError, match=r"vae is stored quantized \(bitsandbytes\)"):
        load_part(AutoencoderKLFlux2, tmp_path / "vae", torch.float32)
    with pytest.raises(UserError, match=r"text_encoder is stored quantized \(bitsandbytes\)"):
        load_text_encoder(str(tmp_path), "text_encoder", Qwen3Model, torch.float32)


@pytest.mark.parametrize(("part", "cls"), [("vae", AutoencoderKLFlux2), ("text_encoder", Qwen3ForCausalLM)])
def test_a_folder_from_elsewhere_says_in_the_log_what_its_weights_lack(
    part: str, cls: Any, bases: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Their own call of a library's loader, as ai-toolkit's folders have it."""
    shutil.copytree(bases["klein"] / part, tmp_path / part)
    (file,) = (tmp_path / part).glob("*.safetensors")
    tensors = load_file(file)
    gone = max(tensors, key=len)
    save_file({**{key: each for key, each in tensors.items() if key != gone}, "of.none": torch.ones(1)}, file, {"format": "pt"})

    class Theirs(ToolkitModel):
        def load_model(self) -> None:
            self.vae = cls.from_pretrained(tmp_path / part)

    class Derived(Theirs):
        def load_model(self) -> None:
            super().load_model()

    made = Derived("cpu", ModelConfig(), dtype="fp32")
    with caplog.at_level(logging.WARNING, logger="models"):
        made.load_model()
    assert [record.getMessage() for record in caplog.records if record.name.startswith("models.")] == [
        f"{tmp_path / part}: 1 key missing: {gone}, so {cls.__name__} begins with random numbers there",
        f"{tmp_path / part}: 1 key too many: of.none for {cls.__name__}, and not used",
    ]
    caplog.clear()
    cls.from_pretrained(tmp_path / part)  # outside, the libraries are as they were
    assert [record for record in caplog.records if record.name.startswith("models.")] == []


def test_weights_that_need_no_cast_stay_mapped(bases: dict[str, Path]) -> None:
    """No copy: the numbers lie in the file's own pages."""
    part = load_part(AutoencoderKLFlux2, bases["klein"] / "vae", torch.float32)
    mapped = Path("/proc/self/maps").read_text()
    assert str(bases["klein"] / "vae" / DIFFUSERS) in mapped
    del part


def test_no_weights_are_read_but_by_the_one_loader() -> None:
    """Every other `from_pretrained` is a tokenizer's or a config's; `load_state_dict` on a base is `base_weights`' alone."""
    root = Path(models.__path__[0])
    found = []
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner = ast.unparse(node.func.value)
                if node.func.attr in ("from_pretrained", "from_single_file", "load_state_dict", "load_file") or (
                    owner == "torch" and node.func.attr == "load"
                ):
                    found.append((str(path.relative_to(root)), owner))
    others = [(path, owner) for path, owner in found if not owner.startswith("AutoTokenizer")]
    assert others == [
        ("base_weights.py", "module"),
        ("components.py", "cls.config_class if cls else AutoConfig"),
        ("components.py", "_reader(cls, tuple(drop))"),
        ("quantize.py", "made"),
    ]
