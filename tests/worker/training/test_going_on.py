"""What a run that goes on does with what it has: a checkpoint at its very end, files it needs no more, a cancel during a save."""

from pathlib import Path
from typing import Any

import pytest

from models.errors import UserError
from server.store import jobs, verbs
from worker.report import Stop

LORA = {"type": "lora", "linear": 2, "linear_alpha": 2.0}


def test_a_job_that_is_cut_down_to_the_steps_that_are_done_ends_with_a_kept_checkpoint(
    small_job, run_here, scripted, stopped, weights_of, same
) -> None:
    assert stopped(small_job(), ("step", 5)).heard("saved") == ["recovery_000000005"]
    rest = scripted("cut")
    run_here(small_job(**{"train.steps": 5}), rest)
    assert (rest.heard("step"), rest.heard("saved")) == ([], ["step_000000005"])
    assert same(weights_of(rest.workdir, 5), weights_of(run_here(small_job(**{"train.steps": 5}), folder="whole"), 5))
    again = scripted("cut")
    run_here(small_job(**{"train.steps": 5}), again)
    assert again.heard("saved") == []


def test_the_weights_that_an_adapter_began_with_may_go_once_it_has_a_bundle(
    small_job, run_here, scripted, stopped, state_of, same, home
) -> None:
    first = next(run_here(small_job(network=LORA, **{"train.steps": 2}), folder="first").rglob("tiny_*.safetensors"))
    start = home / "models" / "first.safetensors"
    start.parent.mkdir(parents=True, exist_ok=True)
    start.write_bytes(first.read_bytes())
    job = small_job(network={**LORA, "pretrained_lora_path": start.name})
    through = run_here(job, folder="through")
    stopped(job, ("step", 5))
    start.unlink()
    rest = scripted("cut")
    run_here(job, rest)
    assert same(state_of(rest.workdir, 12), state_of(through, 12))
    with pytest.raises(UserError, match=r"first\.safetensors is missing"):
        run_here(job, folder="anew")


@pytest.mark.parametrize("wish", ["pause", "requeue"])
def test_a_cancel_that_comes_while_a_pause_saves_leaves_weights(small_job, run_here, scripted, wish) -> None:
    reporter = scripted(stop_at=("step", 3), wish=wish)
    tell = reporter.saved

    def saved(bundle: Path, *rest: Any) -> None:
        tell(bundle, *rest)
        reporter._wish = "cancel"

    reporter.saved = saved
    with pytest.raises(Stop):
        run_here(small_job(), reporter)
    assert reporter.heard("saved") == ["recovery_000000003", "step_000000003"]
    assert len(list(reporter.workdir.rglob("tiny_*.safetensors"))) == 1


def test_what_is_wished_by_now_is_asked_of_the_store(migrated: Path, small_job: Any) -> None:
    from models.catalog import parse_job
    from worker.report_store import StoreReporter

    job, _ = jobs.add(parse_job(small_job()).model_dump(mode="json"))
    taken = jobs.claim_next("w", ["pocket"])
    assert taken is not None
    reporter = StoreReporter(taken)  # whose heart does not beat
    verbs.pause(job.id)
    assert reporter.wished() == "pause"
    verbs.cancel(job.id)
    assert reporter.wished() == "cancel"
