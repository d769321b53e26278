"""Checkpoints times weights times prompts: one load, every cell labelled, and each made again from its record."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, ImageChops

from models import catalog
from models.archs.pocket.model import PocketModel
from models.errors import SpecError, UserError
from models.weights import load_tensors, save_tensors
from server.store import jobs
from worker import tiny
from worker.places import find_places
from worker.report import PreviewTold, Stop
from worker.run import Slot, run
from worker.sampling import sample as sampling

MODEL = {"arch": "pocket", "name_or_path": "pocket.safetensors"}
CHECKPOINTS = [f"{kind}_{steps}.safetensors" for kind in ("lora", "lokr") for steps in (2, 4)]
WEIGHTS = [0.0, 0.5, 1.0]
PROMPTS = ["red", "a blue ball", "[trigger] green"]


@pytest.fixture
def models(home: Path) -> Path:
    tiny.main("pocket", str(home / "models"))
    return home / "models"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def checkpoints(models: Path, kept: Path, pictures: Any, tiny_job: Any, run_here: Any) -> list[str]:
    """Four trained adapters of the checkpoint: two of a LoRA's training and two of a LoKr's. Trained once for this module."""
    if not list(kept.iterdir()):
        pictures()
        train_adapters(kept, tiny_job, run_here)
    shutil.copytree(kept, models, dirs_exist_ok=True)
    return CHECKPOINTS


def train_adapters(kept: Path, tiny_job: Any, run_here: Any) -> None:
    for kind in ("lora", "lokr"):
        network = {"type": kind, "linear": 4, "linear_alpha": 4.0}
        job = tiny_job(network=network, model=MODEL, **{"train.steps": 4, "train.lr": 0.05, "save.save_every": 2})
        job["train"]["disable_sampling"] = True
        folder = run_here(job, folder=kind)
        for steps in (2, 4):
            next(folder.rglob(f"tiny_00000000{steps}.safetensors")).rename(kept / f"{kind}_{steps}.safetensors")


def matrix_job(**more: Any) -> dict[str, Any]:
    return {
        "kind": "sample",
        "name": "a matrix",
        "trigger_word": "ohwx",
        "model": MODEL,
        "matrix": {"checkpoints": CHECKPOINTS, "weights": WEIGHTS},
        "sample": {"sample_steps": 3, "seed": 7, "neg": "grey", "guidance_scale": 3.0, "batch_size": 1},
        "samples": [{"prompt": prompt} for prompt in PROMPTS],
        **more,
    }


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(Image.open(path).text["safelight"]) for path in sorted(folder.glob("samples/*.png"))]


def pixels(folder: Path) -> list[bytes]:
    return [Image.open(path).tobytes() for path in sorted(folder.glob("samples/*.png"))]


def weights_now(model: PocketModel) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.model.state_dict().items()}


def test_thirty_six_labelled_cells_from_one_load(checkpoints, run_here, scripted, monkeypatch, same) -> None:
    loads, adapters, slot = [], [], Slot()
    load, attach = PocketModel.load_model, sampling.put_on
    monkeypatch.setattr(PocketModel, "load_model", lambda self: loads.append(self) or load(self))
    monkeypatch.setattr(sampling, "put_on", lambda *args: adapters.append(1) or attach(*args))
    spec = catalog.parse_job({**matrix_job(), "matrix": None})
    bare = scripted("bare")
    run(spec, find_places(spec), bare, "cpu", slot)
    before = weights_now(loads[0])
    spec = catalog.parse_job(matrix_job())
    reporter = scripted("matrix")
    run(spec, find_places(spec), reporter, "cpu", slot)
    assert (len(loads), len(adapters)) == (1, 4)
    assert same(weights_now(loads[0]), before) and not any(each._forward_hooks for each in loads[0].model.modules())

    told = records(reporter.workdir)
    labels = [(each["step"], each["checkpoint"], each["weight"], each["prompt_index"]) for each in told]
    places = [(checkpoint, weight, index) for checkpoint in CHECKPOINTS for weight in WEIGHTS for index in range(3)]
    assert labels == [(number, *place) for number, place in enumerate(places, start=1)]
    assert (len(labels), [each["prompt"] for each in told[:3]]) == (36, ["red", "a blue ball", "ohwx green"])
    made = pixels(reporter.workdir)
    cells = {label[1:]: picture for label, picture in zip(labels, made, strict=True)}
    for checkpoint in CHECKPOINTS:
        assert [cells[checkpoint, 0.0, index] for index in range(3)] == pixels(bare.workdir)
    others = {picture for (_, weight, _), picture in cells.items() if weight}
    assert len(others) == 24 and not others & set(pixels(bare.workdir))

    for cell in (4, 17, 35):  # a LoRA at half weight, one at full, a LoKr at full
        again = run_here(told[cell]["recipe"], folder=f"cell {cell}")
        assert pixels(again) == [made[cell]]
        [record] = records(again)
        shared = ("prompt", "neg", "seed", "adapters", "sampler", "guidance_scale")
        assert [told[cell][key] for key in shared] == [record[key] for key in shared]


def test_an_interrupted_matrix_goes_on_at_the_next_cell(checkpoints, run_here, scripted) -> None:
    job = matrix_job(matrix={"checkpoints": CHECKPOINTS[:2], "weights": [1.0, 0.5]})
    whole = run_here(job, folder="whole")
    cut = scripted("cut", stop_at=("preview", 8, 1))
    with pytest.raises(Stop):
        run_here(job, cut)
    assert len(pixels(cut.workdir)) == 8
    rest = scripted("cut", done=8)
    run_here(job, rest)
    assert [step for step, _ in rest.heard("preview")] == [9, 10, 11, 12]
    assert pixels(rest.workdir) == pixels(whole)
    assert records(rest.workdir) == records(whole)


def test_a_matrix_that_grew_gets_only_what_is_new(checkpoints, run_here, scripted) -> None:
    run_here(matrix_job(matrix={"checkpoints": CHECKPOINTS[:1], "weights": [1.0]}), folder="run")
    grown = matrix_job(
        matrix={"checkpoints": CHECKPOINTS[:1], "weights": [0.5, 1.0]}, samples=[{"prompt": "red"}, {"prompt": "a dog"}]
    )
    rest = scripted("run", done=3)
    run_here(grown, rest)
    assert rest.heard("preview") == [(4, 0), (5, 1)]  # both at the new weight; those at 1 are there, as numbers 1 to 3


def test_what_is_compared_is_listed_once() -> None:
    with pytest.raises(SpecError, match=r"/matrix/weights/2: 0\.5 is listed twice"):
        catalog.parse_job(matrix_job(matrix={"checkpoints": CHECKPOINTS, "weights": [0.5, 1.0, 0.5]}))


def test_checkpoints_that_cannot_be_used_are_refused_before_a_picture_is_made(checkpoints, models, run_here, scripted) -> None:
    """Each under the name that the job gives it, with the key as it stands in its file."""
    good = load_tensors(models / CHECKPOINTS[0])
    key = next(key for key in good if key.endswith("lora_B.weight"))
    layer = key.removesuffix(".lora_B.weight")
    bad = {
        "foreign": (
            {"diffusion_model.blocks.9.lora_A.weight": torch.ones(2, 2)},
            "'diffusion_model.blocks.9.lora_A.weight' fits no",
        ),
        "nan": (
            {**good, key: good[key] * torch.nan},
            f"{good[key].numel()} of {good[key].numel()} numbers in the adapter's '{key}'",
        ),
        "wide": ({**good, key: torch.zeros(1, 4)}, f"'{layer}.lora_A.weight' does not fit layer"),
        "half": ({name: tensor for name, tensor in good.items() if name != key}, f"has '{layer}.lora_A.weight' for layer"),
        "loha": ({f"{layer}.hada_w1_a": torch.ones(2, 2)}, f"not read here, LoHa ('{layer}.hada_w1_a')"),
        "alphas": ({**good, f"{layer}.alpha": torch.ones(3)}, f"'{layer}.alpha' holds 3 numbers, not one"),
    }
    for name, (state, _) in bad.items():
        save_tensors(state, models / f"{name}.safetensors")
    reporter = scripted("run")
    with pytest.raises(UserError) as raised:
        run_here(matrix_job(matrix={"checkpoints": [CHECKPOINTS[0], *(f"{name}.safetensors" for name in bad)]}), reporter)
    assert raised.value.code == "bad_adapter"
    assert raised.value.message.startswith("6 of 7 checkpoints cannot be used: foreign.safetensors: the adapter's key ")
    assert not reporter.heard("preview") and not records(reporter.workdir)
    for name, (_, said) in bad.items():
        with pytest.raises(UserError) as raised:
            run_here(matrix_job(matrix=None, adapters=[{"path": f"{name}.safetensors"}]), folder=name)
        assert said in raised.value.message and f"{name}.safetensors" in raised.value.message
        assert raised.value.code == "bad_adapter"


def test_a_picture_that_fails_is_listed_at_the_end_and_made_by_the_next_run(checkpoints, run_here, scripted, monkeypatch) -> None:
    job = matrix_job(matrix={"checkpoints": CHECKPOINTS[:2]})
    generate = PocketModel.generate_batch

    def fails(self: Any, pipeline: Any, configs: Any, *rest: Any) -> Any:
        if any(config.prompt == "a blue ball" for config in configs):
            raise RuntimeError("no luck")
        return generate(self, pipeline, configs, *rest)

    with monkeypatch.context() as broken:
        broken.setattr(PocketModel, "generate_batch", fails)
        reporter = scripted("run")
        with pytest.raises(UserError, match=r"2 of 6 pictures could not be made: numbers 2, 5: RuntimeError: no luck$"):
            run_here(job, reporter)
    assert [step for step, _ in reporter.heard("preview")] == [1, 3, 4, 6]
    rest = scripted("run", done=4)
    run_here(job, rest)
    assert [step for step, _ in rest.heard("preview")] == [2, 5]
    assert pixels(rest.workdir) == pixels(run_here(job, folder="whole"))


def test_adapters_act_beside_the_matrix_and_a_prompt_may_weaken_them(checkpoints, models, run_here, caplog) -> None:
    caplog.set_level("INFO", "safelight")
    one, two = ({"path": path, "weight": 1.0} for path in (CHECKPOINTS[0], CHECKPOINTS[3]))
    matrix = {"checkpoints": [CHECKPOINTS[3]], "weights": [1.0]}
    both = run_here(matrix_job(matrix=None, adapters=[one, two]), folder="both")
    beside = run_here(matrix_job(matrix=matrix, adapters=[one]), folder="beside")
    assert pixels(beside) == pixels(both)
    assert records(beside)[0]["adapters"] == [one, two]
    for told, path, per_layer in zip(records(beside)[0]["applied"], (CHECKPOINTS[0], CHECKPOINTS[3]), (2, 3), strict=True):
        layers = len(load_tensors(models / path)) // per_layer  # A and B; w1, w2 and alpha
        assert told.startswith(f"applied {layers} of {layers} layers of {path}: {layers} of the model's ")
        assert told in caplog.messages
    samples = [{"prompt": PROMPTS[0]}, {"prompt": PROMPTS[1], "network_multiplier": 0.0}]
    weak = run_here(matrix_job(matrix=matrix, samples=samples), folder="weak")
    bare = run_here(matrix_job(matrix=None, samples=samples), folder="bare")
    assert [one == other for one, other in zip(pixels(weak), pixels(bare), strict=True)] == [False, True]
    assert [record["network_multiplier"] for record in records(weak)] == [1.0, 0.0]


def test_the_server_counts_cells_checks_paths_and_shows_labels(checkpoints, client) -> None:
    plan = client.post("/v1/jobs/validate", json=matrix_job(matrix={"checkpoints": [CHECKPOINTS[0], "none.safetensors"]})).json()
    assert [problem["pointer"] for problem in plan["problems"]] == ["/matrix/checkpoints/1"]
    answer = client.post("/v1/jobs", json=matrix_job(matrix={"checkpoints": CHECKPOINTS[:1], "weights": [0.5]}))
    assert answer.status_code == 202, answer.text
    assert answer.json()["total_steps"] == 3
    job = jobs.claim_next("w", ["pocket"])
    assert job is not None
    from worker.report_store import StoreReporter

    reporter = StoreReporter(job)
    spec = catalog.parse_job(job.spec)
    run(spec, find_places(spec), reporter, "cpu")
    shown = client.get(f"/v1/jobs/{job.id}/samples").json()["samples"]
    assert [(each["prompt_index"], each["checkpoint"], each["weight"]) for each in shown] == [
        (index, CHECKPOINTS[0], 0.5) for index in range(3)
    ]
    assert client.get(f"/v1/jobs/{job.id}").json()["step"] == 3
    again = client.post("/v1/jobs", json=shown[1]["recipe"])
    assert again.status_code == 202, again.text


def test_cells_made_together_are_those_made_alone(checkpoints, run_here) -> None:
    matrix = {"checkpoints": CHECKPOINTS[2:], "weights": [1.0]}
    alone = run_here(matrix_job(matrix=matrix), folder="alone")
    section = {**matrix_job()["sample"], "batch_size": 8}
    together = run_here(matrix_job(matrix=matrix, sample=section), folder="together")
    names = sorted(path.name for path in alone.glob("samples/*.png"))
    assert len(names) == 6
    for name in names:
        pair = (Image.open(folder / "samples" / name) for folder in (alone, together))
        # the adapter's products sum in another order for three pictures than for one: some values are a level apart
        assert max(most for _, most in ImageChops.difference(*pair).getextrema()) <= 1


def test_a_told_preview_is_what_lies_in_its_file(checkpoints, run_here, scripted, monkeypatch) -> None:
    told: list[PreviewTold] = []
    reporter = scripted("run")
    monkeypatch.setattr(reporter, "preview", lambda each, _=None: told.append(each))
    run_here(matrix_job(matrix=None), reporter)
    assert [each.record for each in told] == records(reporter.workdir)
    assert [each.record["step"] for each in told] == [1, 2, 3]
    assert "checkpoint" not in told[0].record


def test_a_checkpoint_that_is_gone_costs_only_its_own_cells_and_none_that_are_made(
    checkpoints, models, run_here, scripted
) -> None:
    job = matrix_job(matrix={"checkpoints": CHECKPOINTS[:2], "weights": [1.0]})
    cut = scripted("run", stop_at=("preview", 3, 2))
    with pytest.raises(Stop):
        run_here(job, cut)
    (models / CHECKPOINTS[0]).unlink()
    rest = scripted("run", done=3)
    run_here(job, rest)
    assert [step for step, _ in rest.heard("preview")] == [4, 5, 6]
    anew = scripted("anew")
    with pytest.raises(UserError, match=r"3 of 6 pictures could not be made: numbers 1 to 3: .*lora_2\.safetensors is missing$"):
        run_here(job, anew)
    assert [step for step, _ in anew.heard("preview")] == [4, 5, 6]


def test_a_file_that_is_lost_is_told_once_by_the_name_that_the_job_gave_it(
    checkpoints, models, run_here, scripted, monkeypatch
) -> None:
    given = {"job:j_1/lost.safetensors": models / "lost.safetensors"}
    monkeypatch.setattr("server.store.files.weights_path", lambda name: given.get(name, models / name))
    with pytest.raises(UserError) as raised:
        run_here(matrix_job(matrix={"checkpoints": [*given, CHECKPOINTS[0]], "weights": [0.5, 1.0]}), scripted("run"))
    assert str(raised.value) == "6 of 12 pictures could not be made: numbers 1 to 6: job:j_1/lost.safetensors is missing"


def test_causes_are_listed_once_each() -> None:
    failed = {9: "b", **dict.fromkeys((0, 4, 5), "a")}
    assert sampling.by_cause(failed) == "numbers 1, 5 to 6: a; number 10: b"
    many = {cell: str(cell) for cell in range(8)}
    assert sampling.by_cause(many).endswith("number 5: 4; and 3 more")
    assert sampling.by_cause(dict.fromkeys(range(0, 14, 2), "a")) == "numbers 1, 3, 5, 7, 9 and 2 more: a"
