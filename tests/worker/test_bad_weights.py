"""A run refuses what is no weights before any model code sees it, in the words of the submission."""

from pathlib import Path

import pytest

from models import catalog
from models.errors import UserError
from tests.weight_files import safetensors
from worker.load import Places, load_model

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
LORA = safetensors(a__lora_A__weight=[2], a__lora_B__weight=[2])
CASES = {
    "a pointer": ("pocket", {"x": POINTER}, "x is a Git LFS pointer of"),
    "an adapter as base": ("pocket", {"x": LORA}, "x is an adapter (lora: it holds 'a.lora_A.weight'), not a model"),
    "a folder": ("pocket", {"x/y": b""}, "x is a folder; this model starts from a file that a job of this architecture saved"),
    "another layout": ("flux2_klein_4b", {"x": safetensors(a=[1])}, "x is a safetensors file in a layout that is not read here"),
    "a pointer as tokenizer": ("flux2_klein_4b", {"x/tokenizer/tokenizer.json": POINTER}, "tokenizer.json is a Git LFS pointer"),
    "a shard cut short": (
        "flux2_klein_4b",
        {
            "x/transformer/a.safetensors.index.json": b'{"weight_map": {"a": "a-1.safetensors"}}',
            "x/transformer/a-1.safetensors": safetensors(a=[9])[:-1],
        },
        "a-1.safetensors is a safetensors file that is cut short",
    ),
}


@pytest.mark.parametrize("arch, files, said", CASES.values(), ids=list(CASES))
def test_a_base_that_is_no_weights_is_refused_before_it_is_loaded(tmp_path: Path, arch, files, said) -> None:
    for name, data in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    spec = catalog.parse_job(
        {"kind": "sample", "name": "n", "model": {"arch": arch, "name_or_path": "x"}, "samples": [{"prompt": ""}]}
    )
    with pytest.raises(UserError) as refused:
        load_model(spec, Places(tmp_path / "x"), "cpu")
    assert refused.value.code == "bad_weights"
    assert said in refused.value.message
