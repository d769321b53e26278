"""Asking a run for previews or a checkpoint without ending it: within one unit of work, together, and never lost."""

from typing import Any

import pytest

from server.store import jobs, verbs
from server.store.files import attempt_folder
from server.store.tables import Job
from worker.report import Asked, Stop
from worker.report_store import StoreReporter


@pytest.fixture
def seen_job(small_job) -> Any:
    """A job of six steps that makes two previews at its beginning and its end, and saves at its end."""
    prompts = [{"prompt": f"colour number {index}", "width": 16, "height": 16} for index in range(2)]
    return lambda **changes: small_job(
        **{
            "train.steps": 6,
            "train.disable_sampling": False,
            "sample": {"sample_every": 100, "sample_steps": 2, "batch_size": 1, "samples": prompts},
            **changes,
        }
    )


@pytest.fixture
def undisturbed(seen_job, run_here, state_of) -> Any:
    return state_of(run_here(seen_job(), folder="undisturbed"), 6)


def between(told: list[tuple[Any, ...]], *kinds: str) -> list[tuple[Any, ...]]:
    return [what for what in told if what[0] in kinds]


def test_previews_come_after_the_step_at_hand_and_change_no_weight(
    seen_job, run_here, scripted, state_of, same, undisturbed
) -> None:
    reporter = scripted("asked", press={("step", 3): "sample"})
    run_here(seen_job(), reporter)
    told = between(reporter.told, "step", "preview", "answered")
    assert told[told.index(("step", 3)) + 1 :][:4] == [("preview", 3, 0), ("preview", 3, 1), ("answered", "sample"), ("step", 4)]
    assert reporter.heard("preview") == [(0, 0), (0, 1), (3, 0), (3, 1), (6, 0), (6, 1)]
    assert same(state_of(reporter.workdir, 6), undisturbed)


def test_a_checkpoint_is_kept_after_the_step_at_hand(seen_job, run_here, scripted, state_of, same, undisturbed) -> None:
    reporter = scripted("asked", press={("step", 2): "checkpoint"})
    run_here(seen_job(), reporter)
    told = between(reporter.told, "step", "saved", "answered")
    assert told[told.index(("step", 2)) + 1 :][:3] == [("answered", "checkpoint"), ("saved", "step_000000002"), ("step", 3)]
    assert len(list(reporter.workdir.rglob("tiny_000000002.safetensors"))) == 1
    assert same(state_of(reporter.workdir, 6), undisturbed)


@pytest.mark.parametrize("phase", ["loading", "caching"])
@pytest.mark.parametrize("what", ["sample", "checkpoint"])
def test_what_is_asked_for_before_training_is_done_once_it_has_begun(seen_job, run_here, scripted, phase, what) -> None:
    reporter = scripted("asked", press={("phase", phase): what})
    run_here(seen_job(**{"train.skip_first_sample": True}), reporter)
    told = between(reporter.told, "step", "saved", "preview")
    first = {"sample": [("preview", 1, 0), ("preview", 1, 1)], "checkpoint": [("saved", "step_000000001")]}[what]
    assert told[: len(first) + 1] == [("step", 1), *first]
    assert reporter.heard("answered") == [what]


@pytest.mark.parametrize("ema", [True, False], ids=["ema", "no ema"])
def test_a_checkpoint_asked_for_amid_previews_is_saved_between_two_pictures(
    seen_job, run_here, scripted, state_of, same, ema
) -> None:
    more = {"train.ema_config": {"use_ema": ema}}
    wanted = state_of(run_here(seen_job(**more), folder="plain"), 6)
    at_three = state_of(run_here(seen_job(**more, **{"save.save_every": 3}), folder="saving"), 3)
    reporter = scripted("asked", press={("step", 3): "sample", ("preview", 3, 0): "checkpoint"})
    run_here(seen_job(**more), reporter)
    told = between(reporter.told, "step", "saved", "preview")
    between_pictures = [("preview", 3, 0), ("saved", "step_000000003"), ("preview", 3, 1), ("step", 4)]
    assert told[told.index(("step", 3)) + 1 :][:4] == between_pictures
    assert same(state_of(reporter.workdir, 3), at_three)  # with the weights of training, not the averages that previews show
    assert same(state_of(reporter.workdir, 6), wanted)


def test_a_checkpoint_of_this_step_that_is_there_already_is_the_answer(seen_job, run_here, scripted) -> None:
    reporter = scripted("asked", press={("preview", 6, 0): "checkpoint", ("preview", 0, 0): "checkpoint"})
    run_here(seen_job(), reporter)
    assert reporter.heard("saved") == ["step_000000001", "step_000000006"]
    assert reporter.heard("answered").count("checkpoint") == 2
    assert not reporter.asked("checkpoint")


def test_presses_are_answered_together_and_a_later_one_again(seen_job, run_here, scripted) -> None:
    press = {("step", 2): "sample", ("loss", None): "sample", ("preview", 2, 0): "sample", ("step", 4): "sample"}
    reporter = scripted("asked", press=press)
    run_here(seen_job(), reporter)
    assert [step for step, prompt in reporter.heard("preview") if prompt == 0] == [0, 2, 4, 6]


def test_a_stop_comes_before_what_was_asked_for(seen_job, run_here, scripted) -> None:
    reporter = scripted("asked", stop_at=("step", 3), press={("step", 3): "sample"}, wish="pause")
    with pytest.raises(Stop):
        run_here(seen_job(), reporter)
    assert reporter.heard("step") == [1, 2, 3]
    assert reporter.heard("saved") == ["recovery_000000003"]


def test_a_stop_amid_a_step_keeps_the_whole_steps_before_it(seen_job, run_here, scripted, state_of, same, monkeypatch) -> None:
    from worker.training.steps import TrainStep

    job = seen_job(**{"train.gradient_accumulation": 3, "train.batch_size": 1, "train.disable_sampling": True})
    wanted = state_of(run_here(job, folder="plain"), 6)
    reporter = scripted("cut")
    calls: list[int] = []
    call = TrainStep.__call__

    def counted(self: TrainStep, taken: Any) -> Any:
        calls.append(taken.step)
        if len(calls) == 8:  # the second micro-batch of the third step
            reporter._wish = "pause"
        return call(self, taken)

    monkeypatch.setattr(TrainStep, "__call__", counted)
    with pytest.raises(Stop):
        run_here(job, reporter)
    assert len(calls) == 8
    assert reporter.heard("saved") == ["recovery_000000002"]
    again = scripted("cut")
    run_here(job, again)
    assert again.heard("step") == [3, 4, 5, 6]
    assert same(state_of(again.workdir, 6), wanted)


@pytest.fixture
def claimed(migrated, tiny_job) -> Job:
    from models.catalog import parse_job

    jobs.add(parse_job(tiny_job()).model_dump(mode="json"))
    job = jobs.claim_next("w", ["pocket"])
    assert job is not None
    return job


def hears(reporter: StoreReporter) -> None:
    """One heartbeat, without its thread."""
    wishes = jobs.beat(reporter.job.id, reporter.job.attempt)
    reporter._presses = wishes.asked  # type: ignore[assignment]


def test_a_heartbeat_that_comes_late_asks_for_nothing_twice(claimed) -> None:
    reporter = StoreReporter(claimed)
    verbs.ask(claimed.id, "sample")
    late = jobs.beat(claimed.id, 1).asked
    verbs.ask(claimed.id, "sample")
    hears(reporter)
    reporter.answered("sample")
    assert jobs.get(claimed.id).sample_answered == 2
    reporter._presses = late  # type: ignore[assignment]
    assert not reporter.asked("sample")
    verbs.ask(claimed.id, "sample")  # pressed while the answer was written
    hears(reporter)
    assert reporter.asked("sample")


def test_the_next_attempt_does_what_the_last_one_did_not_come_to(claimed) -> None:
    verbs.ask(claimed.id, "checkpoint")
    jobs.give_back(claimed.id, 1, "gone")
    again = jobs.claim_next("w", ["pocket"])
    assert again is not None
    reporter = StoreReporter(again)
    assert (reporter.asked("checkpoint"), reporter.asked("sample")) == (True, False)
    with pytest.raises(Asked), reporter.heeding("checkpoint"):
        reporter.check()
    reporter.check()
    with pytest.raises(Stop) as stop:
        late = StoreReporter(claimed)
        late._presses = {"sample": 0, "checkpoint": 1}
        late.answered("checkpoint")
    assert stop.value.wish == "lost"
    assert jobs.get(claimed.id).checkpoint_answered == 0


def test_pruning_spares_what_was_pinned_meanwhile(claimed) -> None:
    reporter = StoreReporter(claimed)
    folders = []
    for step in (3, 6):
        folder = attempt_folder(claimed.id, 1) / "bundles" / f"step_{step:09d}"
        folder.mkdir(parents=True)
        weights = folder / f"tiny_{step:09d}.safetensors"
        weights.write_bytes(b"x")
        reporter.saved(folder, step, [weights])
        folders.append(folder)
    verbs.pin(claimed.id, 3, True)
    assert reporter.pinned() == {folders[0]}
    assert reporter.forget(folders) == [folders[1]]
    assert reporter.bundles() == [folders[0]]
    assert [row.name for row in jobs.job_files(claimed.id, "weights")] == ["tiny_000000003.safetensors"]
