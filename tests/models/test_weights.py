"""Weights on disk: whole or not at all, and never code."""

import json
import pickle
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from models.errors import UserError
from models.weights import json_metadata, load_tensors, read_metadata, replacing, save_tensors


def test_tensors_and_header_come_back_as_safetensors_sees_them(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3, 4).to(torch.bfloat16), "b": torch.arange(6).reshape(2, 3).T, "c": torch.tensor(1.5)}
    path = tmp_path / "new" / "w.safetensors"
    save_tensors(tensors, path, json_metadata(format="pt", step=3, job={"x": [1]}))
    with safe_open(path, framework="pt") as file:
        assert file.metadata() == {"format": "pt", "step": "3", "job": '{"x": [1]}'}
        assert all(torch.equal(file.get_tensor(name), tensor) for name, tensor in tensors.items())
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in load_tensors(path).items())
    assert json.loads(read_metadata(path)["step"]) == 3


def test_a_file_is_replaced_in_one_step_and_readable_by_others(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    for value in (1.0, 2.0):
        save_tensors({"a": torch.tensor(value)}, path)
    assert float(load_tensors(path)["a"]) == 2.0
    assert path.stat().st_mode & 0o777 == 0o644
    assert [each.name for each in tmp_path.iterdir()] == ["w.safetensors"]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "note"
    path.write_text("old")

    def write_half() -> None:
        with replacing(path) as part:
            part.write_text("half of the n")
            raise OSError("torn")

    with pytest.raises(OSError, match="torn"):
        write_half()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
import torch
from models.weights import save_tensors
path = Path(sys.argv[1])
save_tensors({"a": torch.ones(10)}, path)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    save_tensors({"a": torch.zeros(100_000)}, path)
except OSError as error:
    print("refused", error.errno)
"""


def test_a_full_disk_is_an_oserror_and_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    done = subprocess.run([sys.executable, "-c", FULL_DISK, str(path)], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["refused", "27"], (
        done.stdout + done.stderr[-2000:]
    )  # EFBIG, which a file limit gives for ENOSPC
    assert torch.equal(load_tensors(path)["a"], torch.ones(10))
    assert list(tmp_path.iterdir()) == [path]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY  # the limit stayed in that process


class Bomb:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


def test_a_pickle_renamed_to_safetensors_is_refused_and_none_of_its_code_runs(tmp_path: Path) -> None:
    marker, path = tmp_path / "ran", tmp_path / "evil.safetensors"
    path.write_bytes(pickle.dumps(Bomb(marker)))
    for read in (load_tensors, read_metadata):
        with pytest.raises(UserError, match=r"evil\.safetensors is a pickle, which can run code; only safetensors") as refused:
            read(path)
        assert refused.value.code == "bad_weights"
    assert not marker.exists()
    pickle.loads(path.read_bytes())
    assert marker.exists()  # the bomb was live


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"gone\.safetensors is missing") as refused:
        load_tensors(tmp_path / "gone.safetensors")
    assert refused.value.code == "missing_file"
