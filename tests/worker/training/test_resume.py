"""A run that was stopped and goes on repeats, bit for bit, the run it continues."""

import itertools
import shutil
from typing import Any

import pytest
from safetensors import safe_open
from safetensors.torch import load_file

from worker.report import NonFiniteLoss, Stop

LORA = {"type": "lora", "linear": 4, "linear_alpha": 8.0}


# every pair of choices once: the other half of all sixteen tells nothing new
KINDS = [kind for kind in itertools.product([None, LORA], [1, 3], [False, True], [True, False]) if sum(map(bool, kind)) % 2]


@pytest.mark.parametrize(
    ("network", "accumulation", "ema", "cached"),
    KINDS,
    ids=[
        f"{'lora' if n else 'full'}-accumulate {a}-{'ema' if e else 'no ema'}-{'cached' if c else 'uncached'}"
        for n, a, e, c in KINDS
    ],
)
def test_a_resumed_run_ends_with_the_same_bits(
    small_job, run_here, scripted, stopped, state_of, same, weights_of, network, accumulation, ema, cached
) -> None:
    more = {"train.gradient_accumulation": accumulation, "train.ema_config": {"use_ema": ema}}
    job = small_job(network=network, cached=cached, **more)
    through = scripted("through")
    run_here(job, through)
    cut = stopped(job, ("step", 5))
    assert cut.heard("step") == [1, 2, 3, 4, 5]
    rest = scripted("cut")
    run_here(job, rest)
    assert rest.heard("step") == [6, 7, 8, 9, 10, 11, 12]
    assert cut.heard("loss") + rest.heard("loss") == through.heard("loss")
    assert same(state_of(rest.workdir, 12), state_of(through.workdir, 12))
    assert same(weights_of(rest.workdir, 12), weights_of(through.workdir, 12))


def test_an_extended_job_agrees_with_a_long_one_and_keeps_its_earlier_files(
    small_job, run_here, state_of, same, tmp_path
) -> None:
    long = run_here(small_job(**{"train.steps": 18}), folder="long")
    for steps in (6, 12, 18):
        folder = run_here(small_job(**{"train.steps": steps}), folder="grown")
        files = sorted(folder.rglob("tiny_*.safetensors"))
        assert [path.name for path in files] == [f"tiny_{step:09d}.safetensors" for step in range(6, steps + 1, 6)]
        with safe_open(files[-1], framework="pt") as file:
            assert file.metadata()["step"] == str(steps)
        if steps == 6:
            first = files[0].read_bytes(), files[0].stat().st_mtime_ns
    assert (files[0].read_bytes(), files[0].stat().st_mtime_ns) == first
    assert same(state_of(folder, 18), state_of(long, 18))


def test_the_seed_of_a_job_fixes_its_losses(small_job, run_here, scripted) -> None:
    losses = []
    for folder, seed in (("a", 1), ("b", 2), ("c", 1)):
        reporter = scripted(folder)
        run_here(small_job(**{"train.steps": 3, "train.seed": seed}), reporter)
        losses.append(reporter.heard("loss"))
    assert losses[0] == losses[2]
    assert losses[0] != losses[1]


@pytest.mark.parametrize("ema", [False, True])
def test_previews_at_every_step_or_never_leave_the_weights_alone(small_job, run_here, state_of, same, ema) -> None:
    sample = {"sample_every": 1, "sample_steps": 2, "samples": [{"prompt": "colour number 0", "width": 16, "height": 16}]}
    more = {"train.steps": 4, "train.ema_config": {"use_ema": ema}, "sample": sample}
    without = run_here(small_job(**more), folder="without")
    with_previews = run_here(small_job(**{**more, "train.disable_sampling": False}), folder="with")
    assert len(list(with_previews.glob("samples/*.png"))) == 5
    assert same(state_of(with_previews, 4), state_of(without, 4))


def test_a_damaged_newest_bundle_costs_only_the_steps_since_the_one_before(small_job, run_here, scripted, state_of, same) -> None:
    job = small_job(**{"save.save_every": 4})
    through = run_here(job, folder="through")
    shutil.copytree(through, through.parent / "cut")
    (through.parent / "cut/bundles/step_000000012/state.safetensors").write_bytes(b"torn")
    rest = scripted("cut")
    run_here(job, rest)
    assert rest.heard("step") == [9, 10, 11, 12]
    assert same(state_of(rest.workdir, 12), state_of(through, 12))


def test_a_stop_while_loading_ends_before_anything_is_cached(small_job, stopped) -> None:
    reporter = stopped(small_job(), ("phase", "loading"))
    assert reporter.heard("phase") == ["reading", "loading"]


def test_a_stop_while_caching_ends_before_the_next_unit_of_work(small_job, stopped, monkeypatch) -> None:
    from models.archs.pocket.model import PocketModel

    encoded = []
    encode = PocketModel.get_prompt_embeds

    def counted(self: PocketModel, prompt: list[str]) -> Any:
        made = encode(self, prompt)  # not reached to its end where tokens are only counted
        encoded.append(prompt)
        return made

    monkeypatch.setattr(PocketModel, "get_prompt_embeds", counted)
    reporter = stopped(small_job(), ("phase", "caching"))
    assert encoded == []
    assert reporter.heard("phase") == ["reading", "loading", "caching"]


def test_a_stop_during_previews_ends_after_the_picture_at_hand_and_the_next_run_makes_the_rest(
    small_job, run_here, scripted, stopped
) -> None:
    prompts = [{"prompt": f"colour number {index}", "width": 16, "height": 16} for index in range(3)]
    sample = {"sample_every": 2, "sample_steps": 2, "batch_size": 1, "samples": prompts}
    job = small_job(**{"train.steps": 3, "train.disable_sampling": False, "sample": sample})
    through = run_here(job, folder="through")
    assert stopped(job, ("preview", 0, 1)).heard("preview") == [(0, 0), (0, 1)]
    assert stopped(job, ("preview", 2, 0)).heard("preview") == [(0, 2), (2, 0)]
    assert stopped(job, ("preview", 3, 0)).heard("preview") == [(2, 1), (2, 2), (3, 0)]
    rest = scripted("cut")
    run_here(job, rest)
    assert rest.heard("preview") == [(3, 1), (3, 2)]
    names = sorted(path.name for path in through.glob("samples/*.png"))
    assert len(names) == 9
    assert all((rest.workdir / "samples" / name).read_bytes() == (through / "samples" / name).read_bytes() for name in names)


@pytest.mark.parametrize(("wish", "kind"), [("cancel", "step"), ("pause", "recovery"), ("requeue", "recovery")])
def test_a_stop_saves_and_a_cancel_also_leaves_weights_for_users(small_job, stopped, wish, kind) -> None:
    reporter = stopped(small_job(), ("step", 2), wish=wish)
    assert reporter.heard("saved") == [f"{kind}_000000002"]
    assert len(list(reporter.workdir.rglob("tiny_*.safetensors"))) == (wish == "cancel")


def test_a_run_that_lost_its_lease_writes_nothing_more(small_job, stopped) -> None:
    reporter = stopped(small_job(), ("step", 2), wish="lost")
    assert list(reporter.workdir.rglob("*.safetensors")) == []


@pytest.mark.parametrize("network", [None, LORA], ids=["full", "lora"])
def test_a_loss_that_is_not_finite_names_its_step_and_no_nan_is_saved(
    small_job, run_here, scripted, monkeypatch, network
) -> None:
    from worker.training import loop as train

    monkeypatch.setattr(train, "lr_at", lambda step, _: 1e-3 if step < 3 else 1e30)
    reporter = scripted()
    with pytest.raises(NonFiniteLoss) as error:
        run_here(small_job(network=network, **{"save.save_every": 3}), reporter)
    assert error.value.code == "non_finite_loss"
    assert f"at step {error.value.step};" in error.value.message
    assert 4 <= error.value.step <= 6
    assert reporter.heard("saved") == ["step_000000003"]
    files = list(reporter.workdir.rglob("*.safetensors"))
    assert len(files) == 2
    assert all(bool(tensor.isfinite().all()) for path in files for tensor in load_file(path).values())


def test_a_stop_amid_caching_ends_after_the_picture_at_hand_and_the_next_run_caches_the_rest(
    small_job, run_here, scripted, pictures, monkeypatch
) -> None:
    from models.archs.pocket.model import PocketModel

    pictures("many", 40, 16)
    job = small_job(**{"train.steps": 1})
    job["datasets"][0] |= {"folder_path": "many", "cache_latents_to_disk": True}
    reporter = scripted("cut")
    encoded: list[int] = []
    encode = PocketModel.encode_images

    def counted(self: PocketModel, image_list: Any, *args: Any, **kwargs: Any) -> Any:
        encoded.append(len(image_list))
        if sum(encoded) == 13:
            reporter._wish = "pause"
        return encode(self, image_list, *args, **kwargs)

    monkeypatch.setattr(PocketModel, "encode_images", counted)
    with pytest.raises(Stop):
        run_here(job, reporter)
    assert encoded == [1] * 13
    run_here(job, scripted("cut"))
    assert sum(encoded) == 40  # each picture once
    run_here(job, scripted("again"))
    assert sum(encoded) == 40
