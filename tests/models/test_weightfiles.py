"""What a file is, by its first bytes and its header: in these words people are refused, at submission and in a run."""

import io
import json
import os
import pickle
import zipfile
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save

from models import weightfiles
from models.adapterkeys import check_keys
from models.errors import UserError

GOOD = save({"norm.weight": torch.ones(4, 2), "proj.weight": torch.zeros(3)}, {"config": "{}"})
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 1234567\n"


def picture() -> bytes:
    made = io.BytesIO()
    Image.new("RGB", (2, 2)).save(made, "PNG")
    return made.getvalue()


def torch_saved() -> bytes:
    made = io.BytesIO()
    torch.save({"a": torch.ones(1)}, made)
    return made.getvalue()


def zipped() -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        file.writestr("weights.safetensors", GOOD)
    return made.getvalue()


def header_of(header: bytes, body: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header + body


EMPTY = b'{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
NO_WEIGHTS = {
    "LFS pointer": (POINTER, f"a Git LFS pointer of {len(POINTER)} bytes, not the file itself; run `git lfs pull`"),
    "web page": (b"\n<!DOCTYPE html><html>Sign in</html>", "a web page, not the file itself; download the file itself"),
    "empty": (b"", "an empty file; download it again"),
    "cut short": (GOOD[:-5], f"cut short: {len(GOOD) - 5} of {len(GOOD)} bytes are there; download it again"),
    "cut in its header": (GOOD[:40], "a safetensors file that is cut short: 40 of at least"),
    "bytes too many": (GOOD + b"\n", "1 bytes too many"),
    "PNG": (picture(), "a PNG picture"),
    "pickle": (pickle.dumps({"a": 1}), "a pickle, which can run code; only safetensors files are read"),
    "torch.save": (torch_saved(), "a pickle in a zip archive, as torch.save writes it, which can run code; only safetensors"),
    "zip": (zipped(), "a zip archive; unpack it"),
    "GGUF": (b"GGUF\x03\0\0\0" + b"\0" * 60, "a GGUF file; only safetensors files are read"),
    "JSON": (b'{"error": "unauthorized"}', "a JSON text of 25 bytes; download the file itself"),
    "XML": (b'<?xml version="1.0"?><Error/>', "an XML text"),
    "text": (b"Entry not found", "a text of 15 bytes; download the file itself"),
    "zeros": (b"\0" * 999, "a file that begins with zeros, as a download leaves it that did not finish"),
    "noise": (b"\xfe\x01\xaf" * 30, "no safetensors file, nor of another kind that is known"),
    "header is no JSON": (header_of(b"{'a'}"), "a safetensors file with a damaged header"),
    "header of another form": (header_of(b'{"a":[]}'), "a safetensors file with a damaged header"),
    "nested for ever": (header_of(b'{"a":' * 200_000), "a safetensors file with a damaged header"),
    "infinite shape": (header_of(b'{"a":{"dtype":"U8","shape":[1e400],"data_offsets":[0,0]}}'), "with a damaged header"),
    "a key that is no text": (header_of(b'{"\\ud800":' + EMPTY + b',"\\ud800":' + EMPTY + b"}"), r"names '\ud800' twice"),
    "a key twice": (header_of(b'{"a":' + EMPTY + b',"a":' + EMPTY + b"}"), "whose header names 'a' twice"),
    "tensors overlap": (
        header_of(
            b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}', b"123"
        ),
        "its tensors overlap or leave gaps",
    ),
}


@pytest.mark.parametrize("content, said", NO_WEIGHTS.values(), ids=list(NO_WEIGHTS))
def test_a_file_that_is_no_weights_is_called_what_it_is(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(UserError) as refused:
        weightfiles.read_header(path)
    assert refused.value.code == "bad_weights"
    assert refused.value.message.startswith(f"{path} is ")
    assert said in refused.value.message


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for ever
    (tmp_path / "link").symlink_to("blobs/gone")
    for name, said in {
        "pipe": "is a pipe, socket or device",
        ".": "is a folder, not a file",
        "link": "is missing; it is a link to blobs/gone",
        "none": "is missing",
    }.items():
        with pytest.raises(UserError, match=said):
            weightfiles.read_header(tmp_path / name)


def test_a_whole_file_gives_its_shapes_and_its_text(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(GOOD)
    header = weightfiles.read_header(tmp_path / "a")
    assert dict(header.shapes) == {"norm.weight": (4, 2), "proj.weight": (3,)}
    assert header.metadata == {"config": "{}"}


def part(folder: Path, **files: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_bytes(content)
    return folder


LONG = b'{"vocab": "' + b"x" * (1 << 20) + b'"}'
LORA = save({"transformer.a.lora_A.weight": torch.ones(2, 2), "transformer.a.lora_B.weight": torch.ones(2, 2)})
BAD_PARTS = {
    "pointer as tokenizer": ("tokenizer", {"tokenizer__json": POINTER}, "tokenizer.json is a Git LFS pointer"),
    "pointer as vocabulary": ("tokenizer", {"merges__txt": POINTER}, "merges.txt is a Git LFS pointer"),
    "web page as config": ("vae", {"config__json": b"<html></html>"}, "config.json is a web page"),
    "config cut short": ("vae", {"config__json": b'{"a": 1'}, "config.json is a damaged JSON text"),
    "tokenizer cut short": ("tokenizer", {"tokenizer__json": LONG[:-2]}, "tokenizer.json is a JSON text that is cut short"),
    "no vocabulary": (
        "tokenizer",
        {"tokenizer_config__json": b"{}"},
        "vocabulary is missing: it has no tokenizer.json; download",
    ),
    "half a vocabulary": (
        "tokenizer_2",
        {"tokenizer_config__json": b"{}", "vocab__json": b"{}"},
        "tokenizer_2 is the folder of a tokenizer whose vocabulary is missing: it has no merges.txt; download that file",
    ),
    "only half precision": (
        "vae",
        {"config__json": b"{}", "diffusion_pytorch_model__fp16__safetensors": GOOD},
        "download diffusion_pytorch_model.safetensors, or rename diffusion_pytorch_model.fp16.safetensors to it",
    ),
    "shards without an index": (
        "text_encoder",
        {"config__json": b"{}", "model-00001-of-00002__safetensors": GOOD},
        "several files need their index: download model.safetensors.index.json",
    ),
    "shards of half precision": (
        "vae",
        {"config__json": b"{}", "model__fp16-00001-of-00002__safetensors": GOOD},
        "download the files without '.fp16' in their names",
    ),
    "weights as config": ("vae", {"config__json": GOOD}, "config.json is a safetensors file; name the file that is meant"),
    "adapter as weights": (
        "transformer",
        {"model__safetensors": LORA},
        "an adapter (lora: it holds 'transformer.a.lora_A.weight'",
    ),
    "pickled": ("vae", {"config__json": b"{}", "diffusion_pytorch_model__bin": b""}, "a pickle, which can run code; only"),
    "a shard missing": (
        "text_encoder",
        {"model__safetensors__index__json": b'{"weight_map": {"a": "model-1.safetensors"}}'},
        "of which model-1.safetensors is missing",
    ),
    "a shard that is a pointer": (
        "text_encoder_2",
        {"m__safetensors__index__json": b'{"weight_map": {"a": "m-1.safetensors"}}', "m-1__safetensors": POINTER},
        "m-1.safetensors is a Git LFS pointer",
    ),
}


@pytest.mark.parametrize("name, files, said", BAD_PARTS.values(), ids=list(BAD_PARTS))
def test_every_file_that_a_load_would_read_is_looked_at(tmp_path: Path, name: str, files: dict[str, bytes], said: str) -> None:
    (tmp_path / "model_index.json").write_text("{}")
    part(tmp_path / "scheduler", scheduler_config__json=b"{}")
    part(tmp_path / name, **files)
    for look, folder in ((weightfiles.check_base_folder, tmp_path), (weightfiles.check_part, tmp_path / name)):
        with pytest.raises(UserError) as refused:
            look(folder)
        assert said in refused.value.message
        assert refused.value.code == "bad_weights"


def test_a_file_of_a_folder_is_not_the_base(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text("{}")
    with pytest.raises(UserError, match=r"model_index\.json is one file of a folder that .*; name its folder$"):
        weightfiles.check_base(tmp_path / "model_index.json", ("folder", "saved"))


def test_what_no_load_reads_refuses_nothing(tmp_path: Path) -> None:
    """Other formats and precisions beside the weights, a part that the job takes from elsewhere, pictures, a safety checker."""
    (tmp_path / "model_index.json").write_text("{}")
    (tmp_path / "all-in-one.safetensors").write_bytes(POINTER)
    shards = {"x-1__safetensors": GOOD, "x-2__safetensors": GOOD}
    index = json.dumps({"weight_map": {"a": "x-1.safetensors", "b": "x-2.safetensors"}}).encode()
    part(tmp_path / "transformer", config__json=b"{}", x__safetensors__index__json=index, **shards, old__bin=POINTER)
    part(tmp_path / "text_encoder", config__json=b"{}", model__safetensors=GOOD, model__fp16__safetensors=POINTER)
    part(tmp_path / "tokenizer", tokenizer__json=LONG, merges__txt=b"#version: 0.2\n", modules__json=b"[]")
    part(tmp_path / "tokenizer_2", tokenizer_config__json=b'{"tokenizer_class": "ByT5Tokenizer"}')
    part(tmp_path / "tokenizer_3", tokenizer_config__json=b"{}", spiece__model=b"sentences")
    part(tmp_path / "vae", diffusion_pytorch_model__safetensors=POINTER)
    part(tmp_path / "safety_checker", model__safetensors=POINTER)
    weightfiles.check_base_folder(tmp_path, weightfiles.TEXT_PARTS)
    weightfiles.check_base_folder(tmp_path, "transformer")
    with pytest.raises(UserError, match="vae/diffusion_pytorch_model"):
        weightfiles.check_base_folder(tmp_path)


def keys(*paths: str, parts: tuple[str, ...] = ("lora_A.weight", "lora_B.weight")) -> list[str]:
    return [f"{path}.{name}" for path in paths for name in parts]


DOWN = ("lora_down.weight", "lora_up.weight", "alpha")
BAD_ADAPTERS = {
    "a base": (
        ["blocks.0.proj.weight", "norm.weight"],
        "holds 'blocks.0.proj.weight' and 1 more tensors, which is no adapter",
    ),
    "two stems": (
        keys("diffusion_model.a.b", "transformer.a.b"),
        "twice, as 'diffusion_model.a.b.lora_A.weight' and as 'transformer.a.b.lora_A.weight'",
    ),
    "no stem": (keys("a.b", "base_model.model.a.b"), "as 'a.b.lora_A.weight' and as 'base_model.model.a.b.lora_A.weight'"),
    "two spellings": (
        [*keys("transformer.a"), *keys("transformer.a", parts=DOWN)],
        "as 'transformer.a.lora_A.weight' and as 'transformer.a.lora_down.weight'",
    ),
    "flat and dotted": (
        [*keys("diffusion_model.a.b"), *keys("lora_unet_a_b", parts=DOWN)],
        "as 'diffusion_model.a.b.lora_A.weight' and as 'lora_unet_a_b.lora_down.weight'",
    ),
    "two flat stems": (
        keys("lycoris_a_b", "lora_unet_a_b", parts=("lokr_w1", "lokr_w2")),
        "as 'lora_unet_a_b.lokr_w1' and as 'lycoris_a_b.lokr_w1'",
    ),
    "text encoder of kohya": (
        [*keys("lora_unet_a", parts=DOWN), *keys("lora_te1_text_model_x", parts=DOWN)],
        "holds parts for a text encoder ('lora_te1_text_model_x.lora_down.weight', of 2 such tensors)",
    ),
    "text encoder of diffusers": ([*keys("transformer.a"), *keys("text_encoder_2.b")], "('text_encoder_2.b.lora_A.weight', of 2"),
    "DoRA": ([*keys("a"), "a.dora_scale"], "DoRA ('a.dora_scale')"),
    "DoRA of PEFT": ([*keys("a"), "a.lora_magnitude_vector.weight"], "DoRA ('a.lora_magnitude_vector.weight')"),
    "LoHa": (
        ["lora_unet_a.hada_w1_a", "lora_unet_a.alpha"],
        "a kind that is not read here, LoHa ('lora_unet_a.hada_w1_a'); give a lora or a lokr",
    ),
    "OFT": (["a.oft_blocks"], "OFT ('a.oft_blocks')"),
    "Tucker": ([*keys("a", parts=DOWN), "a.lora_mid.weight"], "LoRA in three factors (Tucker) ('a.lora_mid.weight')"),
    "old diffusers": (["a.to_q_lora.down.weight"], "LoRA under the names of old diffusers"),
}


@pytest.mark.parametrize("given, said", BAD_ADAPTERS.values(), ids=list(BAD_ADAPTERS))
def test_an_adapter_that_cannot_be_used_is_refused_by_its_own_keys(tmp_path: Path, given: list[str], said: str) -> None:
    (tmp_path / "it.safetensors").write_bytes(save({key: torch.zeros(1) for key in given}))
    with pytest.raises(UserError) as refused:
        weightfiles.check_adapter_file(tmp_path / "it.safetensors")
    assert said in refused.value.message
    assert "it.safetensors" in refused.value.message
    assert refused.value.code == "bad_adapter"


@pytest.mark.parametrize(
    "given",
    [
        keys("transformer.a.b", "transformer.a_b"),  # two layers, as their dots say
        [*keys("lora_unet_a_b", parts=DOWN), *keys("lora_unet_a_c", parts=DOWN)],
        keys("transformer.transformer.a", "transformer.a"),
        keys("diffusion_model.a", parts=("lora_A.default.weight", "lora_B.default.weight")),
    ],
    ids=lambda given: given[0],
)
def test_layers_that_are_named_once_are_not_refused(given: list[str]) -> None:
    check_keys(Path("a"), given)
