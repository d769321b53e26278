"""Text encoders without what is not needed, found wherever they lie; and 3-D convolutions that stay precise."""

import json
import resource
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen3Config, Qwen3ForCausalLM, Qwen3Model

from models.components import (
    check_prompts,
    keep_conv3d_precise,
    load_scheduler,
    load_text_encoder,
    load_tokenizer,
    part_folder,
)
from models.errors import UserError
from models.tiny import byte_tokenizer

IDS = torch.arange(12)[None]
GIB = 2**30


@pytest.fixture(scope="module")
def vision_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A pipeline-like folder whose text encoder is a tiny Qwen2.5-VL, and the model that was saved there."""
    torch.manual_seed(0)
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": 272, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
            "num_key_value_heads": 1, "bos_token_id": None, "eos_token_id": None, "initializer_range": 0.2,
            "rope_parameters": {"mrope_section": [1, 1, 2], "rope_type": "default", "rope_theta": 1e6},
        },
        vision_config={
            "depth": 2, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 16, "patch_size": 14,
            "fullatt_block_indexes": [1],
        },
    )  # fmt: skip
    model = Qwen2_5_VLForConditionalGeneration(config).eval()
    folder = tmp_path_factory.mktemp("vl")
    model.save_pretrained(folder / "text_encoder")
    (folder / "model_index.json").write_text("{}")
    return folder, model


def hidden(model: Any) -> tuple[torch.Tensor, ...]:
    with torch.no_grad():
        return model(input_ids=IDS, output_hidden_states=True).hidden_states


def test_a_dropped_vision_tower_is_not_there_and_the_text_side_gives_the_same_numbers(vision_model: Any) -> None:
    folder, whole = vision_model
    kept = load_text_encoder(
        str(folder), "text_encoder", Qwen2_5_VLForConditionalGeneration, torch.float32, drop=("model.visual",)
    )
    assert type(kept) is Qwen2_5_VLForConditionalGeneration
    assert kept.model.visual is None
    assert not any("visual" in name for name, _ in kept.named_parameters())
    assert not any(parameter.requires_grad or parameter.is_meta for parameter in kept.parameters())
    assert not kept.training
    assert all(torch.equal(one, other) for one, other in zip(hidden(kept), hidden(whole), strict=True))


def test_without_drop_the_tower_is_loaded(vision_model: Any) -> None:
    folder, whole = vision_model
    loaded = load_text_encoder(str(folder), "text_encoder", Qwen2_5_VLForConditionalGeneration, torch.float32)
    assert set(loaded.state_dict()) == set(whole.state_dict())


def test_the_weights_of_a_dropped_tower_are_never_read(vision_model: Any, tmp_path: Path) -> None:
    """The tower's file is given a weight of 8 GiB (a hole on disk): reading it would need that much memory."""
    folder, whole = vision_model
    part = tmp_path / "text_encoder"
    part.mkdir()
    (part / "config.json").write_text((folder / "text_encoder" / "config.json").read_text())
    weights = load_file(folder / "text_encoder" / "model.safetensors")
    text = {name: tensor for name, tensor in weights.items() if not name.startswith("visual.")}
    assert len(text) < len(weights)
    save_file(text, part / "text.safetensors", {"format": "pt"})
    name = "visual.patch_embed.proj.weight"
    header = {"__metadata__": {"format": "pt"}, name: {"dtype": "F32", "shape": [2 * GIB], "data_offsets": [0, 8 * GIB]}}
    said = json.dumps(header).encode()
    said += b" " * (-len(said) % 8)
    with (part / "vision.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(said)) + said)
        file.truncate(8 + len(said) + 8 * GIB)
    places = dict.fromkeys(text, "text.safetensors") | {name: "vision.safetensors"}
    (part / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    kept = load_text_encoder(
        str(tmp_path), "text_encoder", Qwen2_5_VLForConditionalGeneration, torch.float32, drop=("model.visual",)
    )
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before  # KiB
    assert grown < GIB // 1024
    assert all(torch.equal(one, other) for one, other in zip(hidden(kept), hidden(whole), strict=True))


def test_a_path_that_the_class_does_not_have_is_our_bug(vision_model: Any) -> None:
    with pytest.raises(AttributeError, match="eyes"):
        load_text_encoder(
            str(vision_model[0]), "text_encoder", Qwen2_5_VLForConditionalGeneration, torch.float32, drop=("model.eyes",)
        )


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=272, hidden_size=16, intermediate_size=32, num_hidden_layers=6, num_attention_heads=2, num_key_value_heads=1,
        head_dim=8, bos_token_id=None, eos_token_id=None, initializer_range=0.2, tie_word_embeddings=False,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config).eval()
    folder = tmp_path_factory.mktemp("deep")
    model.save_pretrained(folder)
    return folder, model


def test_only_the_layers_that_are_needed_are_kept(deep: Any, caplog: pytest.LogCaptureFixture) -> None:
    folder, whole = deep
    kept = load_text_encoder(str(folder), "text_encoder", Qwen3Model, torch.float32, num_layers=4)
    assert len(kept.layers) == 4
    assert not any("lm_head" in name for name, _ in kept.named_parameters())
    # the last one carries the final norm, so the first four states are those of the whole model
    assert all(torch.equal(one, other) for one, other in zip(hidden(kept)[:4], hidden(whole)[:4], strict=True))
    assert caplog.records == []


def test_the_dtype_is_what_was_asked_for(deep: Any) -> None:
    kept = load_text_encoder(str(deep[0]), "text_encoder", Qwen3Model, torch.bfloat16)
    assert {parameter.dtype for parameter in kept.parameters()} == {torch.bfloat16}


def test_too_few_layers_and_missing_weights_are_named(deep: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(UserError, match="has 6 layers; the model needs the first 9"):
        load_text_encoder(str(deep[0]), "text_encoder", Qwen3Model, torch.float32, num_layers=9)
    weights = load_file(deep[0] / "model.safetensors")
    del weights["model.layers.3.mlp.up_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_text((deep[0] / "config.json").read_text())
    with pytest.raises(UserError, match=r"does not fit Qwen3Model: 1 key missing: layers\.3\.mlp\.up_proj\.weight"):
        load_text_encoder(str(tmp_path), "text_encoder", Qwen3Model, torch.float32)
    assert caplog.records == []  # said once, and not in a library's words too


def test_a_part_is_found_inside_a_pipeline_alone_and_in_the_hubs_cache(
    vision_model: Any, deep: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert part_folder(str(vision_model[0]), "text_encoder") == vision_model[0] / "text_encoder"
    assert part_folder(str(deep[0]), "text_encoder") == deep[0]
    repo = tmp_path / "models--someone--klein"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text("abc")
    (repo / "snapshots" / "abc" / "vae").mkdir(parents=True)
    (repo / "snapshots" / "abc" / "vae" / "config.json").write_text("{}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert part_folder("someone/klein", "vae") == part_folder("hf:someone/klein", "vae") == repo / "snapshots" / "abc" / "vae"
    for missing, said in (("someone/klein", "holds no text_encoder"), ("someone/else", "cannot be fetched from the hub")):
        with pytest.raises(UserError, match=said):
            part_folder(missing, "text_encoder")
    with pytest.raises(UserError, match=r"holds no vae: looked for vae/config\.json"):
        part_folder(str(vision_model[0]), "vae")


class Video(nn.Module):
    """A patch embedding in three dimensions between layers that are not."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv3d(3, 8, (2, 4, 4), stride=(2, 4, 4))
        self.norm = nn.LayerNorm(8)
        self.out = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(self.patch(x).flatten(2).transpose(1, 2)))


@pytest.mark.parametrize("precise", [torch.float32, torch.float16])
def test_a_conv3d_stays_precise_while_its_neighbours_see_bf16(precise: torch.dtype) -> None:
    torch.manual_seed(0)
    net = Video()
    exact = net.patch.weight.detach().clone()
    x = torch.randn(1, 3, 4, 8, 8)
    wanted = net(x)
    made = keep_conv3d_precise(net, torch.bfloat16, precise)
    assert made is net
    assert {name: p.dtype for name, p in net.named_parameters()} == {
        "patch.weight": precise, "patch.bias": precise, "norm.weight": torch.bfloat16, "norm.bias": torch.bfloat16,
        "out.weight": torch.bfloat16, "out.bias": torch.bfloat16,
    }  # fmt: skip
    if precise == torch.float32:
        assert torch.equal(net.patch.weight, exact)
    seen: list[torch.dtype] = []
    net.patch.register_forward_hook(lambda _module, _args, output: seen.append(output.dtype))
    got = net(x.bfloat16())
    assert (got.dtype, seen) == (torch.bfloat16, [torch.bfloat16])
    assert torch.allclose(got.float(), wanted, atol=0.05)  # a few roundings to 8 bits of values near 1


def test_casting_again_replaces_the_dtypes() -> None:
    net = keep_conv3d_precise(keep_conv3d_precise(Video(), torch.bfloat16), torch.float32)
    assert net(torch.randn(1, 3, 4, 8, 8)).dtype == torch.float32


def test_a_tokenizer_whose_texts_are_another_s_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer/tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    (tmp_path / "tokenizer/tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(UserError, match="tokenizer holds no tokenizer that can be read") as refused:
        load_tokenizer(str(tmp_path))
    assert refused.value.code == "bad_weights"


def test_a_part_is_named_by_its_folder(tmp_path: Path) -> None:
    (tmp_path / "vae.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match=r"vae\.safetensors is a file; name the folder of the vae, which holds config\.json too"):
        part_folder(str(tmp_path / "vae.safetensors"), "vae")


def test_a_tokenizer_without_words_is_refused(tmp_path: Path) -> None:
    """One with a vocabulary of special tokens alone gives no other for any text."""
    byte_tokenizer().save_pretrained(tmp_path / "tokenizer")
    file = tmp_path / "tokenizer/tokenizer.json"
    about = json.loads(file.read_text())
    about["model"]["vocab"] = {}
    file.write_text(json.dumps(about))
    with pytest.raises(
        UserError, match="tokenizer: this tokenizer knows no words; 'hello' gives it no token but special"
    ) as refused:
        load_tokenizer(str(tmp_path))
    assert refused.value.code == "bad_weights"


TEMPLATE, TOKENS = "chat_template.jinja", "tokenizer_config.json"
BAD_PROMPTS: dict[str, tuple[dict[str, str | None], int, str]] = {
    "no template": ({TEMPLATE: None}, 272, rf"{TEMPLATE} is missing, and cannot be used to make tokens of a prompt: Cannot use"),
    "a template that raises": ({TEMPLATE: "{{ raise_exception('no') }}"}, 272, rf"{TEMPLATE} cannot be used to make .*: no$"),
    "a damaged template": ({TEMPLATE: "{% for %}"}, 272, rf"{TEMPLATE} cannot be used"),
    "a template without the prompt": ({TEMPLATE: "hello"}, 272, "all prompts give the same tokens; its chat template leaves"),
    "no padding": ({TOKENS: "{}"}, 272, rf"{TOKENS} cannot be used to make tokens of a prompt: Asking to pad"),
    "few embeddings": ({}, 200, "tokenizer has 266 tokens and the text encoder embeddings for only 200"),
}


@pytest.mark.parametrize("files, rows, said", BAD_PROMPTS.values(), ids=list(BAD_PROMPTS))
def test_files_that_make_no_tokens_of_a_prompt_are_named(
    files: dict[str, str | None], rows: int, said: str, tmp_path: Path
) -> None:
    byte_tokenizer().save_pretrained(tmp_path / "tokenizer")
    for name, text in files.items():
        if text is None:
            (tmp_path / "tokenizer" / name).unlink()
        else:
            (tmp_path / "tokenizer" / name).write_text(text)
    tokenizer, encoder = load_tokenizer(str(tmp_path)), nn.Module()
    encoder.get_input_embeddings = lambda: nn.Embedding(rows, 1)  # type: ignore[assignment]

    def tokenize(text: str) -> Any:
        said = tokenizer.apply_chat_template([{"role": "user", "content": text}], tokenize=False)
        return tokenizer(said, padding="max_length", max_length=32)

    with pytest.raises(UserError, match=said) as refused:
        check_prompts(tokenizer, encoder, tokenize)
    assert refused.value.code == "bad_weights"


EULER = {"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 2, "use_dynamic_shifting": False, "shift_terminal": None}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "scheduler.json is a config without settings; FlowMatchEulerDiscreteScheduler is needed"),
        ({**EULER, "_class_name": "DDPMScheduler"}, "is of another scheduler: DDPMScheduler; Flow"),
        ({**EULER, "base_shift": "0.5"}, "scheduler.json: base_shift is '0.5', where a number"),
        ({**EULER, "shift_terminal": "x"}, "shift_terminal is 'x'"),
        ({**EULER, "shift": None}, "shift is None"),
        ({**EULER, "time_shift_type": "x"}, "cannot be loaded as FlowMatchEulerDiscreteScheduler: .*time_shift_type"),
    ],
)
def test_a_config_that_would_change_the_noise_levels_is_refused(config: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said) as refused:
        load_scheduler(FlowMatchEulerDiscreteScheduler, config, Path("scheduler.json"))
    assert refused.value.code == "bad_weights"
    assert load_scheduler(FlowMatchEulerDiscreteScheduler, EULER, Path("a")).config.shift == 2
