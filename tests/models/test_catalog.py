"""What is wrong with a job is said with its place, the value given and what would be right."""

import math
from typing import Any

import pytest

from models import catalog
from models.archs.example.card import ARCHS
from models.errors import SpecError, UserError


@pytest.mark.parametrize(
    ("body", "said"),
    [(None, "null"), ([], "a list"), ("train", "'train'"), (7, "7"), (True, "true")],
)
def test_a_body_that_is_no_object_is_refused(faults, body, said) -> None:
    [fault] = faults(body)
    assert (fault.pointer, fault.message) == ("", f"a job is a JSON object, not {said}")


@pytest.mark.parametrize(
    ("kind", "suggestion"),
    [("trian", "train"), ("samples", "sample"), ("zzz", None), (None, None), (3, None), ([], None), ({"train": 1}, None)],
)
def test_an_unknown_kind_names_the_known_ones(faults, tiny_job, kind, suggestion) -> None:
    [fault] = faults(tiny_job(kind=kind))
    assert fault.pointer == "/kind"
    assert fault.message == f"kind {kind!r} is unknown; known: train, sample"
    assert fault.suggestion == suggestion


def test_a_missing_kind_is_named(faults, tiny_job) -> None:
    job = tiny_job()
    del job["kind"]
    [fault] = faults(job)
    assert (fault.pointer, fault.message) == ("/kind", "kind is missing; known: train, sample")


@pytest.mark.parametrize("name", ["pockte", "Pocket", "poket"])
def test_an_unknown_arch_suggests_the_nearest(faults, tiny_job, name) -> None:
    [fault] = faults(tiny_job(**{"model.arch": name}))
    assert fault.pointer == "/model/arch"
    assert fault.suggestion == "pocket"
    assert fault.message == f"arch {name!r} is unknown; known: {', '.join(catalog.archs())}"


@pytest.mark.parametrize("name", ["zzzzzz", None, 3, [], {}])
def test_an_arch_like_no_other_suggests_nothing(faults, tiny_job, name) -> None:
    [fault] = faults(tiny_job(**{"model.arch": name}))
    assert (fault.pointer, fault.suggestion) == ("/model/arch", None)


@pytest.mark.parametrize(("model", "pointer"), [({}, "/model/arch"), (None, "/model"), ("pocket", "/model"), ([], "/model")])
def test_a_missing_arch_is_named(faults, tiny_job, model, pointer) -> None:
    [fault] = faults(tiny_job(model=model))
    assert fault.pointer == pointer
    assert fault.message.startswith("model.arch is missing; known: ")


def test_a_card_is_found_by_name_or_the_known_ones_are_named() -> None:
    assert catalog.arch("pocket").name == "pocket"
    with pytest.raises(UserError, match=r"arch 'pockte' is unknown; known: .*pocket") as refused:
        catalog.arch("pockte")
    assert refused.value.code == "unknown_arch"
    assert refused.value.hint == "pocket"


@pytest.mark.parametrize(
    ("place", "key", "suggestion"),
    [
        ("", "datsets", "datasets"),
        ("model", "name_or_pth", "name_or_path"),
        ("model", "dytpe", "dtype"),
        ("model/model_kwargs", "chanels", "channels"),
        ("network", "rank", "linear"),
        ("network", "linaer", "linear"),
        ("datasets/0", "folder", "folder_path"),
        ("datasets/0", "caption_etx", "caption_ext"),
        ("train", "learing_rate", "lr"),
        ("train", "learning_rate", "lr"),
        ("train", "step", "steps"),
        ("train", "xyzzy", None),
        ("train/optimizer_params", "weigth_decay", "weight_decay"),
        ("train/ema_config", "ema_deacy", "ema_decay"),
        ("save", "save_evry", "save_every"),
        ("sample", "widht", "width"),
        ("sample/samples/0", "promt", "prompt"),
    ],
)
def test_an_unknown_key_suggests_the_nearest_one_of_its_object(faults, tiny_job, place, key, suggestion) -> None:
    job = tiny_job(**{"network": {}, "train.optimizer_params": {}, "train.ema_config": {}})
    target = job
    for part in place.split("/") if place else []:
        target = target[int(part) if part.isdigit() else part]
    target[key] = 1
    [fault] = faults(job)
    assert fault.pointer == f"/{place}/{key}".replace("//", "/")
    assert (fault.suggestion, fault.misspelt) == (suggestion, suggestion is not None)
    assert fault.message.startswith(f"unknown key {key!r}" + ("" if suggestion else "; known here: "))


def test_a_key_with_a_slash_is_escaped_in_its_pointer(faults, tiny_job) -> None:
    [fault] = faults(tiny_job(**{"train.a/b~c": 1}))
    assert fault.pointer == "/train/a~1b~0c"


def test_every_fault_is_named_at_once(faults, tiny_job) -> None:
    job = tiny_job(**{"train.steps": 0, "train.lr": "1e-4", "save.save_every": 0, "name": ""})
    assert {fault.pointer for fault in faults(job)} == {"/train/steps", "/train/lr", "/save/save_every", "/name"}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("train.steps", "16"),
        ("train.steps", 16.0),
        ("train.steps", 16.5),
        ("train.steps", True),
        ("train.steps", None),
        ("train.steps", [16]),
        ("train.seed", "0"),
        ("train.gradient_checkpointing", "False"),
        ("train.gradient_checkpointing", 0),
        ("train.lr", "1e-4"),
        ("train.lr", False),
        ("train.optimizer", "sdg"),
        ("save.dtype", "float32"),
        ("model.name_or_path", 3),
        ("model.model_kwargs", {"channels": "64,96"}),
        ("model.model_kwargs", None),
        ("name", 5),
        ("datasets", {"folder_path": "colours"}),
        ("datasets", []),
        ("train", None),
        ("network", "lora"),
    ],
)
def test_a_value_of_another_type_is_refused_by_name(faults, tiny_job, key, value) -> None:
    found = faults(tiny_job(**{key: value}))
    assert [fault.pointer.startswith("/" + key.replace(".", "/")) for fault in found] == [True] * len(found)


def test_the_refused_value_is_in_the_message(faults, tiny_job) -> None:
    [fault] = faults(tiny_job(**{"train.gradient_checkpointing": "False"}))
    assert (fault.pointer, fault.message) == ("/train/gradient_checkpointing", "must be true or false, not 'False'")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("train.steps", 0),
        ("train.steps", -1),
        ("train.steps", 10**30),
        ("train.batch_size", 0),
        ("train.lr", 0),
        ("train.lr", -1e-4),
        ("train.seed", -1),
        ("train.seed", 2**32),
        ("train.max_grad_norm", 0),
        ("save.recover_every_seconds", 0.5),
        ("sample.width", 0),
        ("sample.guidance_scale", -1),
        ("name", "a/b"),
        ("name", "a\nb"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(faults, tiny_job, key, value) -> None:
    [fault] = faults(tiny_job(**{key: value}))
    assert fault.pointer == "/" + key.replace(".", "/")
    assert repr(value) in fault.message


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("key", ["train.lr", "train.max_grad_norm", "sample.guidance_scale", "save.recover_every_seconds"])
def test_a_number_that_is_not_finite_is_refused(faults, tiny_job, key, number) -> None:
    [fault] = faults(tiny_job(**{key: number}))
    assert fault.pointer == "/" + key.replace(".", "/")


def test_steps_zero_says_what_is_right(faults, tiny_job) -> None:
    [fault] = faults(tiny_job(**{"train.steps": 0}))
    assert fault.message == "must be at least 1, not 0"


def test_a_missing_key_is_named(faults, tiny_job) -> None:
    [fault] = faults(tiny_job(datasets=[{}]))
    assert (fault.pointer, fault.message) == ("/datasets/0/folder_path", "must be given")


@pytest.mark.parametrize(
    ("key", "pixels", "message", "suggestion"),
    [
        ("sample.width", 1000, "1000 must be a multiple of 16; nearest: 992, 1008", "992"),
        ("sample.height", 1005, "1005 must be a multiple of 16; nearest: 992, 1008", "1008"),
        ("datasets", 33, "33 must be a multiple of 16; nearest: 32, 48", "32"),
    ],
)
def test_a_size_that_does_not_divide_names_its_neighbours(faults, tiny_job, key, pixels, message, suggestion) -> None:
    value, pointer = (
        ([{"folder_path": "x", "resolution": [32, pixels]}], "/datasets/0/resolution/1")
        if key == "datasets"
        else (pixels, "/" + key.replace(".", "/"))
    )
    [fault] = faults(tiny_job(**{key: value}))
    assert (fault.pointer, fault.message, fault.suggestion) == (pointer, message, suggestion)


def test_a_preview_of_its_own_size_must_divide_too(faults, tiny_job, sample_job) -> None:
    [fault] = faults(tiny_job(**{"sample.samples": [{"prompt": "a"}, {"prompt": "b", "width": 100}]}))
    assert fault.pointer == "/sample/samples/1/width"
    [fault] = faults({**sample_job, "samples": [{"prompt": "a", "height": 40}]})
    assert (fault.pointer, fault.suggestion) == ("/samples/0/height", "32")


def test_a_warm_up_longer_than_the_training_is_refused(faults, tiny_job) -> None:
    [fault] = faults(tiny_job(**{"train.steps": 6, "train.lr_warmup_steps": 7}))
    assert (fault.pointer, fault.message) == ("/train/lr_warmup_steps", "7 warm-up steps are more than the 6 steps")
    assert catalog.parse_job(tiny_job(**{"train.steps": 6, "train.lr_warmup_steps": 6})).name == "tiny"


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_a_full_fine_tune_in_half_precision_is_refused(faults, tiny_job, dtype) -> None:
    [fault] = faults(tiny_job(**{"model.dtype": dtype}))
    assert (fault.pointer, fault.suggestion) == ("/model/dtype", "fp32")


def test_training_an_adapter_in_fp16_is_refused_with_what_to_use_and_sampling_is_not(faults, tiny_job, sample_job) -> None:
    [fault] = faults(tiny_job(**{"model.dtype": "fp16", "network": {}}))
    assert (fault.pointer, fault.suggestion) == ("/model/dtype", "bf16")
    assert fault.message.startswith("training in fp16 loses small gradients; bf16 takes as little memory and keeps them")
    for dtype in ("bf16", "fp32"):
        assert catalog.parse_job(tiny_job(**{"model.dtype": dtype, "network": {}})).model.dtype == dtype
    spec = catalog.parse_job({**sample_job, "model": {**sample_job["model"], "dtype": "fp16"}})
    assert spec.model.dtype == "fp16"
    offered = [
        catalog.job_schema("pocket", kind)["$defs"]["ModelSpec"]["properties"]["dtype"]["enum"] for kind in ("train", "sample")
    ]
    assert offered == [["fp32", "bf16"], ["fp32", "bf16", "fp16"]]
    card = catalog.arch("flux2_klein_4b").model_copy(update={"defaults": {"model": {"dtype": "fp16"}}})
    assert catalog.default_faults(card) == []  # a sampling job may leave it so


def test_the_error_as_a_whole_reads_as_one_line() -> None:
    with pytest.raises(SpecError) as refused:
        catalog.parse_job({"kind": "trian"})
    assert str(refused.value) == "/kind: kind 'trian' is unknown; known: train, sample"
    assert (refused.value.code, refused.value.hint) == ("invalid_spec", "train")


def test_what_was_parsed_can_be_stored_and_parsed_again(tiny_job, sample_job) -> None:
    for job in (tiny_job(), sample_job):
        spec = catalog.parse_job(job)
        assert catalog.parse_job(spec.model_dump(mode="json")) == spec


@pytest.mark.parametrize("card", [*catalog.bundled().values(), *ARCHS], ids=lambda card: card.name)
def test_no_default_of_a_bundled_arch_is_wrong(card: Any) -> None:
    assert catalog.default_faults(card) == []


def test_only_timesteps_that_the_arch_can_have_are_offered() -> None:
    offered = {
        name: catalog.job_schema(name, "train")["$defs"]["TrainSettings"]["properties"]["timestep_type"]["enum"]
        for name in ("pocket", "flux2_klein_4b")
    }
    assert set(offered["flux2_klein_4b"]) - set(offered["pocket"]) == {"shift"}


def test_a_network_of_one_size_brings_it_as_the_default_and_refuses_others(monkeypatch: Any) -> None:
    card = catalog.arch("pocket").model_copy(update={"name": "one", "fixed_size": (64, 32), "defaults": {}})
    monkeypatch.setattr(catalog, "archs", lambda: {"one": card})
    catalog._job_type.cache_clear()
    job: dict[str, Any] = {
        "kind": "train", "name": "a", "model": {"arch": "one", "name_or_path": "random", "dtype": "fp32"},
        "datasets": [{"folder_path": "a"}],
    }  # fmt: skip
    spec: Any = catalog.parse_job(job)
    assert (spec.datasets[0].resolution, spec.sample.width, spec.sample.height) == ([64], 64, 32)
    wrong = {"width": 32, "samples": [{"prompt": "a", "height": 64}, {"prompt": "b", "width": 64}]}
    with pytest.raises(SpecError) as refused:
        catalog.parse_job({**job, "sample": wrong, "datasets": [{"folder_path": "a", "resolution": [32]}]})
    assert {problem.pointer: problem.suggestion for problem in refused.value.problems} == {
        "/datasets/0/resolution/0": "64", "/sample/width": "64", "/sample/samples/0/height": "32"
    }  # fmt: skip
    assert "arch 'one' makes pictures of 64x32 only; 32 must be 64" in refused.value.problems[0].message
    catalog._job_type.cache_clear()


def test_a_fixed_size_has_sides_that_the_network_takes() -> None:
    card = catalog.arch("pocket")
    with pytest.raises(ValueError, match=r"fixed_size \(64, 40\) must be multiples of bucket_divisibility 16"):
        type(card)(**{**dict(card), "fixed_size": (64, 40)})


def test_the_template_is_in_no_catalogue() -> None:
    assert ARCHS[0].name == "example" and "example" not in catalog.bundled() and "example" not in catalog.archs()
    with pytest.raises(UserError, match="arch 'example' is unknown; known: "):
        catalog.arch("example")
