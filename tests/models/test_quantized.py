"""The quantized weights on disk: found again without reading what they were made of, and bounded."""

import gc
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from models import quantize as q
from models import quantized
from models.data import fileindex


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(128, 64), nn.Linear(64, 32))


def quantize(module: nn.Module, cache: Path, source: str | None = "a") -> bool:
    return q.quantize_layers(module, dict.fromkeys(q.chosen(module, ()), "qint8"), cache=cache, source=source)


def made(cache: Path, *seeds: int) -> list[Path]:
    """The files of these networks, used in this order, one hour after the other."""
    files = []
    for hour, seed in enumerate(seeds):
        module = net(seed)
        name = quantized.fingerprint(module, dict.fromkeys(q.chosen(module, ()), "qint8"))
        quantize(module, cache, f"source {seed}")
        files.append(cache / f"{name}.safetensors")
        os.utime(files[-1], (1e9 + 3600 * hour, 1e9 + 3600 * hour))
    gc.collect()
    return files


def test_of_weights_from_the_same_files_only_a_glance_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = net(), net()
    assert not quantize(first, tmp_path)
    monkeypatch.setattr(quantized, "fingerprint", lambda *_: pytest.fail("all weights were read"))
    assert quantize(second, tmp_path)
    x = torch.randn(2, 128)
    assert torch.equal(first(x), second(x))


def test_another_source_of_the_same_weights_finds_them_too_and_notes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quantize(net(), tmp_path)
    assert quantize(net(), tmp_path, "b")
    assert quantize(net(), tmp_path, None)
    assert len(list(tmp_path.glob("*.safetensors"))) == 1
    monkeypatch.setattr(quantized, "fingerprint", lambda *_: pytest.fail("all weights were read"))
    assert quantize(net(), tmp_path, "b")


def test_parts_of_one_model_with_the_same_layers_are_told_apart(tmp_path: Path) -> None:
    high, low = net(1), net(2)
    assert not quantize(high, tmp_path)
    assert not quantize(low, tmp_path)
    again = net(2)
    assert quantize(again, tmp_path)
    x = torch.randn(2, 128)
    assert torch.equal(again(x), low(x)) and not torch.equal(again(x), high(x))


def test_a_note_whose_file_is_gone_is_no_hindrance(tmp_path: Path) -> None:
    (file,) = made(tmp_path, 0)
    file.unlink()
    assert not quantize(net(), tmp_path, "source 0")
    assert quantize(net(), tmp_path, "source 0")


def test_a_source_changes_with_its_files_the_section_and_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantized, "is_settled", lambda _: True)
    folder = tmp_path / "weights"
    (folder / "vae").mkdir(parents=True)
    file = folder / "vae" / "a.safetensors"
    file.write_bytes(b"12345678")
    config: dict[str, Any] = {"name_or_path": str(folder), "vae_path": None, "dtype": "bf16"}
    seen = [quantized.source_of(config, "code")]
    assert quantized.source_of(dict(config), "code") == seen[0] is not None

    def changed() -> None:
        seen.append(quantized.source_of(config, "code"))

    os.utime(file, ns=(1, 1))
    changed()
    file.write_bytes(b"1234567")  # another size
    os.utime(file, ns=(1, 1))
    changed()
    file.with_suffix(".new").write_bytes(b"1234567")  # another inode
    os.utime(file.with_suffix(".new"), ns=(1, 1))
    file.with_suffix(".new").replace(file)
    changed()
    (folder / "more.json").write_text("{}")
    changed()
    seen += [quantized.source_of({**config, "dtype": "fp32"}, "code"), quantized.source_of(config, "other code")]
    assert len(set(seen)) == len(seen)


def test_what_cannot_be_told_by_files_has_no_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("random", "org/name", str(tmp_path / "missing")):
        assert quantized.source_of({"name_or_path": name}, "") is None
    file = tmp_path / "a.safetensors"
    file.write_bytes(b"1")
    now = file.stat().st_ctime_ns
    monkeypatch.setattr(fileindex.time, "time_ns", lambda: now + 1)  # it may change again and keep its times
    assert quantized.source_of({"name_or_path": str(file)}, "") is None
    monkeypatch.setattr(fileindex.time, "time_ns", lambda: now + 2 * fileindex.COARSE_TICK_NS)
    assert quantized.source_of({"name_or_path": str(file)}, "") is not None


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    one, two, three = made(tmp_path, 1, 2, 3)
    size = one.stat().st_size
    assert quantize(net(1), tmp_path, "source 1")  # used again
    gc.collect()
    quantized.prune(tmp_path, 2.5 * size)
    assert [file.exists() for file in (one, two, three)] == [True, False, True]
    assert len(list(tmp_path.glob("*.source"))) == 2
    quantized.prune(tmp_path, 1.5 * size)
    assert [file.exists() for file in (one, two, three)] == [True, False, False]
    quantized.prune(tmp_path, 0)
    assert not list(tmp_path.iterdir())


def test_what_is_in_use_stays_whatever_the_bound(tmp_path: Path) -> None:
    one, two = made(tmp_path, 1, 2)
    using = net(1)
    quantize(using, tmp_path, "source 1")
    os.utime(one, (0, 0))
    quantized.prune(tmp_path, 0)
    assert one.exists() and not two.exists()
    fresh = net(3)
    quantize(fresh, tmp_path, "source 3")
    quantized.prune(tmp_path, 0)
    assert len(list(tmp_path.glob("*.safetensors"))) == 2
    del using, fresh
    gc.collect()
    quantized.prune(tmp_path, 0)
    assert not list(tmp_path.iterdir())


def test_unfinished_files_of_dead_processes_go_after_a_day(tmp_path: Path) -> None:
    old, young = tmp_path / ".a.safetensors.xyz", tmp_path / ".b.safetensors.xyz"
    for file in (old, young):
        file.write_bytes(b"1")
    os.utime(old, (1e9, 1e9))
    quantized.prune(tmp_path, 1e9)
    assert not old.exists() and young.exists()
