"""Weights of a base are whole or refused: every part of every architecture, by one loader; and weights in 8 bits."""

import ast
import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKLFlux2
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import Qwen3ForCausalLM, Qwen3Model

import models
from models import catalog
from models.archs.example import model as example
from models.archs.pocket import model as pocket
from models.base_weights import load_module, open_weights
from models.batch import GenerateImageConfig
from models.components import load_part, load_text_encoder
from models.errors import UserError
from models.toolkit.base_model import BaseModel as ToolkitModel
from models.toolkit.config_modules import ModelConfig
from models.toolkit.wan import Wan21
from models.weights import read_metadata, save_tensors
from tests import dropin_tiny
from tests.models.klein import tiny_klein

Tensors = dict[str, torch.Tensor]


def load_klein(folder: Path) -> Any:
    return tiny_klein.load(folder)


def load_klein_file(folder: Path) -> Any:
    return tiny_klein.load(folder / "tuned.safetensors", te_name_or_path=str(folder), vae_path=str(folder))


def load_pocket(folder: Path) -> Any:
    options = catalog.arch("pocket").options()
    config = SimpleNamespace(
        name_or_path=str(folder / "pocket.safetensors"), te_name_or_path=str(folder / "minilm"), model_kwargs=options
    )
    made = pocket.PocketModel("cpu", config, dtype="fp32")
    made.load_model()
    return made


def load_example(folder: Path) -> Any:
    options = SimpleNamespace(max_text_length=64)
    config = SimpleNamespace(name_or_path=str(folder), te_name_or_path=None, vae_path=None, model_kwargs=options)
    made = example.ExampleModel("cpu", config, dtype="fp32")
    made.load_model()
    return made


def load_wan(folder: Path) -> Any:
    made = Wan21("cpu", ModelConfig(name_or_path=str(folder), dtype="fp32"), dtype="fp32")
    made.load_model()
    return made


DIFFUSERS, TRANSFORMERS = "diffusion_pytorch_model.safetensors", "model.safetensors"
LOADS: dict[str, tuple[Callable[[Path], Any], tuple[str, ...]]] = {
    "klein": (load_klein, (f"transformer/{DIFFUSERS}", f"vae/{DIFFUSERS}", f"text_encoder/{TRANSFORMERS}")),
    "klein_file": (load_klein_file, ("tuned.safetensors",)),
    "pocket": (load_pocket, ("pocket.safetensors", f"minilm/{TRANSFORMERS}")),
    "example": (load_example, (f"transformer/{TRANSFORMERS}", f"vae/{DIFFUSERS}", f"text_encoder/{TRANSFORMERS}")),
    "wan": (load_wan, (f"transformer/{DIFFUSERS}", f"vae/{DIFFUSERS}", f"text_encoder/{TRANSFORMERS}")),
}


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny base of each kind; only to be read."""
    from transformers import BertConfig, BertModel

    from models.archs.flux2_klein.model import write_tiny
    from models.tiny import byte_tokenizer

    root = tmp_path_factory.mktemp("bases")
    made = {name: root / name for name in ("klein", "pocket", "example", "wan")}
    write_tiny(made["klein"])
    made["klein_file"] = made["klein"]
    load_klein(made["klein"]).save_model(made["klein"] / "tuned.safetensors", {}, torch.float32)
    pocket.write_tiny(made["pocket"])
    small = BertConfig(vocab_size=272, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    BertModel(small).save_pretrained(made["pocket"] / "minilm")
    byte_tokenizer().save_pretrained(made["pocket"] / "minilm")
    example.write_tiny(made["example"])
    dropin_tiny.wan(made["wan"], None)  # type: ignore[arg-type]
    return made


@pytest.fixture
def changed(bases: dict[str, Path], tmp_path: Path) -> Callable[[str, str, Callable[[Tensors], None]], Path]:
    """`changed(base, file, change)`: a copy of a base whose file has other tensors; the other files are links."""

    def make(base: str, file: str, change: Callable[[Tensors], None]) -> Path:
        folder = tmp_path / base
        shutil.copytree(bases[base], folder, copy_function=lambda a, b: Path(b).symlink_to(a))
        tensors, header = load_file(folder / file), read_metadata(folder / file)
        change(tensors)
        (folder / file).unlink()
        save_tensors(tensors, folder / file, header)
        return folder

    return make


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


LAYER = "up_blocks.0.resnets.0.conv1.weight"
SMALL = {"klein": f"vae/{DIFFUSERS}", "klein_text": f"text_encoder/{TRANSFORMERS}", "klein_file": "tuned.safetensors"}


def load_small(base: str, folder: Path) -> Any:
    """The part alone, by the three ways into a module: diffusers, transformers, a file of ours."""
    if base == "klein":
        return load_part(AutoencoderKLFlux2, folder / "vae", torch.float32)
    if base == "klein_text":
        return load_text_encoder(str(folder), "text_encoder", Qwen3Model, torch.float32, num_layers=28)
    return load_klein_file(folder)


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


def test_another_models_config_is_named_beside_the_keys(bases: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(bases["example"] / "vae", tmp_path / "vae")
    with pytest.raises(UserError, match="does not fit AutoencoderKLFlux2") as refused:
        load_part(AutoencoderKLFlux2, tmp_path / "vae", torch.float32)
    assert refused.value.hint == f"{tmp_path / 'vae' / 'config.json'} is of another model: AutoencoderKL"


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
    with pytest.raises(UserError, match=r"there are: config\.json, diffusion_pytorch_model\.fp16\.safetensors"):
        load_part(AutoencoderKLFlux2, tmp_path / "vae", torch.float32)


def test_a_base_that_another_tool_quantized_is_refused_by_its_method(bases: dict[str, Path], tmp_path: Path) -> None:
    for part in ("vae", "text_encoder"):
        shutil.copytree(bases["klein"] / part, tmp_path / part)
        config = tmp_path / part / "config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), "quantization_config": {"quant_method": "bitsandbytes"}}))
    with pytest.raises(UserError, match=r"vae is stored quantized \(bitsandbytes\)"):
        load_part(AutoencoderKLFlux2, tmp_path / "vae", torch.float32)
    with pytest.raises(UserError, match=r"text_encoder is stored quantized \(bitsandbytes\)"):
        load_text_encoder(str(tmp_path), "text_encoder", Qwen3Model, torch.float32)


# -- 8 bits -------------------------------------------------------------------------------------------------------------------------

EIGHT = torch.float8_e4m3fn


def in_8_bits(tensors: Tensors, leaf: str | None, rows: bool = False) -> None:
    """Every matrix as others store it: divided by a scale that lies beside it as `leaf`, or only cast."""
    for key, tensor in list(tensors.items()):
        if tensor.ndim == 2 and key.endswith(".weight"):
            largest = tensor.abs().amax(1, keepdim=True) if rows else tensor.abs().max()
            scale = largest / 448 if leaf else torch.tensor(1.0)
            tensors[key] = (tensor / scale).to(EIGHT)
            if leaf:
                path = key.removesuffix(".weight")
                tensors |= {f"{path}.{leaf}": scale, f"{path}.scale_input": torch.tensor(1.0)}
    if leaf:
        tensors["scaled_fp8"] = torch.zeros(2).to(EIGHT)


def preview(model: Any) -> torch.Tensor:
    config = GenerateImageConfig(prompt="a red fox", width=64, height=64, num_inference_steps=4, guidance_scale=4.0)
    embeds = [model.get_prompt_embeds([text]) for text in ("a red fox", "")]
    with torch.no_grad():
        made = model.generate_single_image(model.get_generation_pipeline(), config, *embeds, torch.Generator().manual_seed(7), {})
    return tiny_klein.unit(made) * 255


@pytest.fixture(scope="module")
def original(bases: dict[str, Path]) -> torch.Tensor:
    return preview(load_klein(bases["klein"]))


@pytest.mark.parametrize("leaf", ["scale_weight", "weight_scale", None])
def test_weights_in_8_bits_make_the_originals_picture(
    leaf: str | None, bases: Any, original: torch.Tensor, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(bases["klein"], tmp_path / "klein")
    for file in LOADS["klein"][1]:
        tensors = load_file(tmp_path / "klein" / file)
        in_8_bits(tensors, leaf)
        save_file(tensors, tmp_path / "klein" / file, {"format": "pt"})
    with caplog.at_level(logging.WARNING, logger="models"):
        made = load_klein(tmp_path / "klein")
    # levels of 255, on average; the 3 bits that 8-bit numbers have for their fraction cost about 2
    assert (preview(made) - original).abs().mean() < 8
    said = [record.getMessage() for record in caplog.records if record.name.startswith("models")]
    words = "read with the scales beside them" if leaf else "stored in 8 bits without scales and cast"
    assert len(said) == 3 and all(words in line for line in said)
    assert f"{tmp_path / 'klein' / 'transformer' / DIFFUSERS}: 37 of 49 weights are " in said[0]


@pytest.mark.parametrize("rows", [False, True], ids=["one scale", "a scale for each row"])
@pytest.mark.parametrize("base", SMALL)
def test_scales_are_multiplied_in(base: str, rows: bool, changed: Any) -> None:
    """Against the arithmetic by hand, for the three ways into a module."""
    stored: Tensors = {}

    def change(tensors: Tensors) -> None:
        in_8_bits(tensors, "weight_scale", rows)
        stored.update(tensors)

    loaded = load_small(base, changed(base.removesuffix("_text"), SMALL[base], change))
    module = loaded.model if base == "klein_file" else loaded
    checked = 0
    for key, tensor in module.state_dict().items():
        name = key if key in stored else f"model.{key}"
        scale = stored.get(name.removesuffix("weight") + "weight_scale")
        assert torch.equal(tensor, stored[name].float() * (1 if scale is None else scale)), name
        checked += scale is not None
    assert checked == {"klein": 8, "klein_text": 7 * 28 + 1, "klein_file": 37}[base]


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

    made = Theirs("cpu", ModelConfig(), dtype="fp32")
    with caplog.at_level(logging.WARNING, logger="models"):
        made.load_model()
    assert [record.getMessage() for record in caplog.records if record.name.startswith("models.")] == [
        f"{tmp_path / part}: 1 key missing: {gone}, so {cls.__name__} begins with random numbers there",
        f"{tmp_path / part}: 1 key too many: of.none for {cls.__name__}, and not used",
    ]
    caplog.clear()
    cls.from_pretrained(tmp_path / part)  # outside, the libraries are as they were
    assert [record for record in caplog.records if record.name.startswith("models.")] == []


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2, bias=False)
        self.norm = nn.BatchNorm1d(2, affine=False)
        self.register_buffer("steps", torch.arange(3.0), persistent=False)


NET = {"layer.weight": torch.arange(8.0).reshape(2, 4), "norm.running_mean": torch.ones(2), "norm.running_var": torch.ones(2)}


def net(tmp_path: Path, tensors: Tensors, **more: Any) -> Net:
    save_file(tensors, tmp_path / "net.safetensors")
    with open_weights(tmp_path / "net.safetensors") as weights:
        return load_module(Net, weights, **more)


def test_buffers_that_no_file_holds_are_computed_and_counters_may_be_missing(tmp_path: Path) -> None:
    made = net(tmp_path, NET, dtype=torch.bfloat16)
    assert torch.equal(made.steps, torch.arange(3.0)) and made.norm.num_batches_tracked == 0
    assert made.layer.weight.dtype == torch.bfloat16 and torch.equal(made.layer.weight.float(), NET["layer.weight"])
    assert not any(parameter.is_meta for parameter in made.parameters())


def test_an_arch_names_what_it_leaves_out(tmp_path: Path) -> None:
    assert net(tmp_path, NET | {"vision.a": torch.ones(1)}, leaves_out=[r"^vision\."])
    with pytest.raises(UserError, match=r": 1 key too many: vision\.a$"):
        net(tmp_path, NET | {"vision.a": torch.ones(1)}, leaves_out=[r"^audio\."])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"layer.weight_scale": torch.ones(2, 2)}, r"layer\.weight_scale \(F32, 2x2\) is not a scale that can be read"),
        ({"layer.weight_scale": torch.ones(4)}, r"layer\.weight_scale \(F32, 4\) is not a scale that can be read"),
        ({"layer.weight_scale": torch.ones(2, dtype=torch.uint8)}, r"\(U8, 2\) is not a scale that can be read"),
        ({"layer.weight_scale": torch.ones(1), "layer.scale_weight": torch.ones(1)}, "is not a scale that can be read"),
        ({"layer.weight": torch.ones(2, 4, dtype=torch.int8)}, r"layer\.weight is stored as I8, a quantized format"),
        ({"layer.weight_scale_inv": torch.ones(1)}, r"1 key too many: layer\.weight_scale_inv"),
        ({"other.weight_scale": torch.ones(1)}, r"1 key too many: other\.weight_scale"),
    ],
)
def test_formats_that_are_not_read_are_refused_by_name(change: Tensors, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said) as refused:
        net(tmp_path, NET | change)
    assert refused.value.code == "bad_weights"


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
