"""Sampling jobs: the pictures that were asked for, each once, from the model and the adapters that were named."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from models.archs.pocket.model import PocketModel
from models.errors import UserError
from worker import tiny
from worker.report import Stop

PICTURES = 4


@pytest.fixture
def models(home: Path) -> Path:
    """The models folder, with a tiny checkpoint in it."""
    tiny.main("pocket", str(home / "models"))
    return home / "models"


@pytest.fixture
def adapter(models: Path, pictures: Any, tiny_job: Any, run_here: Any) -> str:
    """A trained adapter of that checkpoint, in the models folder."""
    pictures()
    lora = {"type": "lora", "linear": 4, "linear_alpha": 4.0}
    job = tiny_job(
        network=lora, model={"arch": "pocket", "name_or_path": "pocket.safetensors"}, **{"train.steps": 8, "train.lr": 0.05}
    )
    job["train"]["disable_sampling"] = True
    folder = run_here(job, folder="adapter")
    next(folder.rglob("tiny_000000008.safetensors")).rename(models / "adapter.safetensors")
    return "adapter.safetensors"


@pytest.fixture
def sample_job(models: Path) -> Any:
    def make(**more: Any) -> dict[str, Any]:
        samples = [{"prompt": f"colour number {index}"} for index in range(PICTURES)]
        return {
            "kind": "sample",
            "name": "pictures",
            "model": {"arch": "pocket", "name_or_path": "pocket.safetensors"},
            "sample": {"sample_steps": 3, "seed": 7, "neg": "grey", "batch_size": 1},  # together they may be a level apart
            "samples": samples,
            **more,
        }

    return make


def made(folder: Path) -> list[bytes]:
    """The pixels of the pictures in the folder, by name."""
    return [Image.open(path).tobytes() for path in sorted(folder.glob("samples/*.png"))]


def test_a_seed_gives_the_same_picture_again_and_another_seed_another(sample_job, run_here) -> None:
    one, again = (made(run_here(sample_job(), folder=folder)) for folder in ("one", "again"))
    other = made(run_here(sample_job(sample={"sample_steps": 3, "seed": 8, "neg": "grey"}), folder="other"))
    assert len(one) == PICTURES
    assert one == again
    assert not set(one) & set(other)


def test_an_adapter_changes_the_pictures_and_with_weight_zero_changes_nothing(sample_job, run_here, adapter) -> None:
    def pictures(name: str, **more: Any) -> list[bytes]:
        return made(run_here(sample_job(**more), folder=name))

    bare, off = pictures("bare"), pictures("off", adapters=[{"path": adapter, "weight": 0.0}])
    on, half = (pictures(f"on {weight}", adapters=[{"path": adapter, "weight": weight}]) for weight in (1.0, 0.5))
    twice = pictures("twice", adapters=[{"path": adapter, "weight": 0.5}, {"path": adapter, "weight": 0.5}])
    assert off == bare
    assert all(a != b for a, b in zip(bare, on, strict=True))
    assert all(a != b for a, b in zip(on, half, strict=True))
    difference = [abs(a - b) for one, other in zip(on, twice, strict=True) for a, b in zip(one, other, strict=True)]
    assert max(difference) <= 1  # two halves are a whole, up to the rounding to 256 levels


def test_a_kept_model_is_given_back_without_its_adapter(sample_job, adapter, scripted) -> None:
    from models import catalog
    from worker.places import find_places
    from worker.run import Slot, run

    slot = Slot()
    for folder, more in (("bare", {}), ("on", {"adapters": [{"path": adapter}]}), ("again", {})):
        spec = catalog.parse_job(sample_job(**more))
        reporter = scripted(folder)
        run(spec, find_places(spec), reporter, "cpu", slot)
    folders = {folder: made(reporter.workdir.parent / folder) for folder in ("bare", "on", "again")}
    assert folders["again"] == folders["bare"] != folders["on"]


def test_a_stopped_job_goes_on_with_the_pictures_that_are_missing(sample_job, run_here, scripted) -> None:
    whole = run_here(sample_job(), folder="whole")
    cut = scripted("cut", stop_at=("preview", 2, 1))
    with pytest.raises(Stop):
        run_here(sample_job(), cut)
    assert len(made(cut.workdir)) == 2
    rest = scripted("cut", done=2)
    run_here(sample_job(), rest)
    assert rest.heard("preview") == [(3, 2), (4, 3)]
    assert made(rest.workdir) == made(whole)


def test_a_picture_carries_its_settings(sample_job, run_here) -> None:
    samples = [
        {"prompt": "a"},
        {"prompt": "ein grünes 図", "neg": "", "seed": 99, "width": 48, "guidance_scale": 1.5, "sample_steps": 2},
    ]
    folder = run_here(sample_job(samples=samples))
    first, second = (Image.open(path) for path in sorted(folder.glob("samples/*.png")))
    assert (first.text["prompt"], first.text["neg"], first.text["seed"]) == ("a", "grey", "7")
    assert second.size == (48, 32)
    wanted = {
        "prompt": "ein grünes 図",
        "neg": "",
        "seed": "99",
        "width": "48",
        "height": "32",
        "guidance_scale": "1.5",
        "sample_steps": "2",
    }
    assert wanted.items() <= second.text.items()


def test_seeds_walk_from_prompt_to_prompt_unless_told_not_to(sample_job, run_here) -> None:
    def seeds(name: str, **sample: Any) -> list[str]:
        folder = run_here(sample_job(sample={"sample_steps": 1, "seed": 2**32 - 2, **sample}), folder=name)
        return [Image.open(path).text["seed"] for path in sorted(folder.glob("samples/*.png"))]

    assert seeds("walk") == ["4294967294", "4294967295", "0", "1"]
    assert seeds("stay", walk_seed=False) == ["4294967294"] * 4


def test_an_adapter_of_another_model_is_refused_by_its_key(sample_job, run_here, models) -> None:
    import torch

    from models.errors import UserError
    from models.weights import save_tensors

    save_tensors({"diffusion_model.blocks.9.lora_A.weight": torch.ones(2, 2)}, models / "foreign.safetensors")
    with pytest.raises(UserError, match=r"blocks\.9\.lora_A\.weight' fits no layer"):
        run_here(sample_job(adapters=[{"path": "foreign.safetensors"}]))


def test_latents_with_nan_fail_the_job_with_the_cause_and_no_black_picture(sample_job, scripted, run_here, monkeypatch) -> None:
    predict = PocketModel.get_noise_prediction
    monkeypatch.setattr(PocketModel, "get_noise_prediction", lambda *args, **kwargs: predict(*args, **kwargs) * float("nan"))
    reporter = scripted()
    with pytest.raises(UserError) as failed:
        run_here(sample_job(samples=[{"prompt": "a"}], sample={"sample_steps": 1}), reporter)
    assert failed.value.code == "pictures_failed"
    assert failed.value.message == (
        "1 of 1 pictures could not be made: number 1: the latents after sampling are not finite (NaN or infinite): "
        "the weights of the model or of an adapter are damaged or too large"
    )
    assert made(reporter.workdir) == []
