"""Bundles: exact, whole or passed over, and removed only when they are not needed."""

import json
from pathlib import Path

import pytest
import torch

from models.bundles import is_whole
from models.bundles import newest as newest_of
from models.errors import UserError
from models.weights import save_tensors
from worker.training import checkpoint
from worker.training.ema import Ema
from worker.training.saves import file_stem
from worker.training.state import TrainState


def trained(steps: int = 3, ema: bool = True, seed: int = 0) -> TrainState:
    """A state after a few optimizer steps."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    params = dict(model.named_parameters())
    state = TrainState(params, torch.optim.AdamW(params.values(), lr=0.01, fused=True), Ema(params, 0.9) if ema else None)
    for _ in range(steps):
        advance(state)
    return state


def advance(state: TrainState) -> None:
    torch.manual_seed(100 + state.step)
    sum((param * torch.randn_like(param)).sum() for param in state.params.values()).backward()
    state.optimizer.step()
    state.optimizer.zero_grad()
    if state.ema:
        state.ema.update()
    state.step += 1


def save(folder: Path, state: TrainState, kept: bool = True, name: str = "cat") -> Path:
    def write(path: Path) -> None:
        save_tensors({"w": next(iter(state.params.values()))}, path)

    return checkpoint.save(folder, state, kept=kept, write_weights=write if kept else None, name=name)[0]


@pytest.mark.parametrize("ema", [True, False])
def test_a_state_comes_back_bit_for_bit_and_goes_on_the_same(tmp_path: Path, ema: bool) -> None:
    state, other = trained(ema=ema), trained(steps=0, ema=ema, seed=1)
    checkpoint.load(save(tmp_path, state), other)
    for _ in range(2):
        assert other.step == state.step
        mine, theirs = state.tensors(), other.tensors()
        assert set(mine) == set(theirs)
        assert all(torch.equal(theirs[name], tensor) and theirs[name].dtype == tensor.dtype for name, tensor in mine.items())
        advance(state)
        advance(other)


def test_a_bundle_of_another_adapter_is_refused(tmp_path: Path) -> None:
    bundle = save(tmp_path, trained())
    linear = dict(torch.nn.Linear(3, 3).named_parameters())
    with pytest.raises(UserError, match="other parameters"):
        checkpoint.load(bundle, TrainState(linear, torch.optim.AdamW(linear.values())))


def test_a_bundle_holds_what_its_manifest_says(tmp_path: Path) -> None:
    bundle = save(tmp_path, trained(steps=3))
    assert bundle.name == "step_000000003"
    assert sorted(path.name for path in bundle.iterdir()) == ["bundle.json", "cat_000000003.safetensors", "state.safetensors"]
    manifest = json.loads((bundle / "bundle.json").read_text())
    assert (manifest["step"], manifest["kept"], manifest["weights"]) == (3, True, ["cat_000000003.safetensors"])
    rolling = save(tmp_path, trained(steps=2), kept=False)
    assert sorted(path.name for path in rolling.iterdir()) == ["bundle.json", "state.safetensors"]
    assert not list(tmp_path.glob(".*"))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    "damage",
    [
        lambda bundle: flip(bundle / "state.safetensors"),
        lambda bundle: flip(next(bundle.glob("cat*"))),
        lambda bundle: (bundle / "state.safetensors").unlink(),
        lambda bundle: (bundle / "bundle.json").unlink(),
        lambda bundle: (bundle / "bundle.json").write_text('{"step": 4'),
    ],
    ids=["one bit of the state", "one bit of the weights", "no state", "no manifest", "half a manifest"],
)
def test_the_newest_bundle_is_passed_over_when_it_is_damaged(tmp_path: Path, damage) -> None:
    older, newer = save(tmp_path, trained(steps=2)), save(tmp_path, trained(steps=4), kept=False)
    newest = save(tmp_path, trained(steps=5))
    assert newest_of([older, newest, newer]) == newest
    damage(newest)
    assert newest_of([older, newest, newer]) == newer


def test_no_whole_bundle_means_a_start_from_nothing(tmp_path: Path) -> None:
    assert newest_of([]) is None
    assert newest_of([tmp_path / "step_000000001"]) is None


def bundles(*names: str) -> list[Path]:
    return [Path(f"{kind}_{int(step):09d}") for kind, step in (name.split() for name in names)]


@pytest.mark.parametrize(
    ("there", "keep", "gone"),
    [
        ([], 2, []),
        (["step 3"], 1, []),
        (["step 3", "step 6"], 1, ["step 3"]),
        (["step 3", "step 6", "step 9"], 2, ["step 3"]),
        (["step 3", "step 6", "step 9"], 4, []),
        (["step 9", "step 10", "step 2"], 2, ["step 2"]),  # by number, not by name or age
        (["recovery 4"], 1, []),
        (["recovery 4", "recovery 5"], 1, ["recovery 4"]),
        (["step 3", "recovery 5"], 1, []),
        (["recovery 5", "step 6"], 1, ["recovery 5"]),
        (["recovery 6", "step 6"], 1, ["recovery 6"]),
        (["step 3", "step 6", "recovery 4", "recovery 7"], 1, ["step 3", "recovery 4"]),
    ],
)
def test_what_may_go(there: list[str], keep: int, gone: list[str]) -> None:
    assert checkpoint.obsolete(bundles(*there), keep) == bundles(*gone)


@pytest.mark.parametrize(
    ("there", "keep", "pins", "gone"),
    [
        (["step 3", "step 6", "step 9"], 1, ["step 3"], ["step 6"]),
        (["step 3", "step 6", "step 9"], 2, ["step 9"], []),
        (["step 3", "step 6", "step 9"], 1, ["step 3", "step 6", "step 9"], []),
        (["recovery 5", "step 6"], 1, ["step 6"], ["recovery 5"]),
    ],
)
def test_what_is_pinned_neither_goes_nor_counts(there: list[str], keep: int, pins: list[str], gone: list[str]) -> None:
    assert checkpoint.obsolete(bundles(*there), keep, bundles(*pins)) == bundles(*gone)


def test_a_step_that_was_done_again_counts_once_and_its_last_bundle_is_the_one(tmp_path: Path) -> None:
    first, again = (save(tmp_path / attempt, trained(steps=6, seed=seed)) for attempt, seed in (("1", 1), ("2", 2)))
    older = save(tmp_path / "1", trained(steps=3))
    there = [older, first, again]
    assert newest_of(there) == again
    assert checkpoint.obsolete(there, 2) == [first]
    assert checkpoint.obsolete(there, 2, pinned={first, again}) == []
    flip(again / "state.safetensors")
    assert newest_of(there) == first


@pytest.mark.parametrize(
    ("name", "stem"),
    [("cat_2", "cat_2"), ("cat 10", "cat-10"), ("a: b?*", "a-b"), ("../..", "job"), ("Ünïcode 図", "Ünïcode-図"), ("...", "job")],
)
def test_a_name_becomes_a_file_name_of_its_own(name: str, stem: str) -> None:
    assert file_stem(name) == stem


def test_a_name_that_ends_in_a_number_confuses_no_step(tmp_path: Path) -> None:
    for name in ("cat_2", "cat-10"):
        first, second = (save(tmp_path / name, trained(steps=steps), name=name) for steps in (2, 12))
        assert [path.name for path in second.glob("cat*")] == [f"{name}_000000012.safetensors"]
        assert newest_of([second, first]) == second
        assert checkpoint.obsolete([second, first], 1) == [first]


def test_saving_the_same_step_again_replaces_the_bundle_whole(tmp_path: Path) -> None:
    save(tmp_path, trained(steps=3, seed=1))
    state = trained(steps=3, seed=2)
    bundle = save(tmp_path, state)
    assert is_whole(bundle)
    other = trained(steps=0)
    checkpoint.load(bundle, other)
    assert all(torch.equal(other.params[name], param) for name, param in state.params.items())


def test_a_save_that_fails_leaves_the_earlier_bundle_of_that_step(tmp_path: Path) -> None:
    earlier = save(tmp_path, trained(steps=3))

    def fail(path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(tmp_path, trained(steps=3), kept=True, write_weights=fail, name="cat")
    assert is_whole(earlier)
    assert list(tmp_path.iterdir()) == [earlier]
