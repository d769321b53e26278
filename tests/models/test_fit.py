"""Keys that are right alone and wrong together, each refused by its place."""

from collections.abc import Callable
from typing import Any

import pytest

from models import catalog
from models.arch import Arch
from models.errors import Problem
from models.fit import misfits
from models.spec import OPTIMIZERS, OptimizerParams, TrainSpec, optimizer_options

LORA = {"linear": 4, "linear_alpha": 4.0}


@pytest.fixture
def refused(faults: Callable[[Any], list[Problem]], tiny_job: Callable[..., dict[str, Any]]) -> Callable[..., list[str]]:
    """`refused(**{"train.lr": 1})`: the places of what is wrong."""
    return lambda **changes: [fault.pointer for fault in faults(tiny_job(**changes))]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"train.optimizer": "adamm"}, "/train/optimizer"),
    ({"model.attention_backend": "flash", "model.dtype": "fp32"}, "/model/attention_backend"),
    ({"train.optimizer": "AdamW"}, "/train/optimizer"),
    ({"datasets": [{"folder_path": "x", "keep_tokens": 1}]}, "/datasets/0/keep_tokens"),
    ({"model.quantize_kwargs": {"exclude": ["x"]}}, "/model/quantize_kwargs/exclude"),
    ({"model.model_kwargs": {"channels": [8, 16]}}, "/model/model_kwargs/channels/0"),
    ({"train.optimizer_kwargs": {"lr": 1.0}}, "/train/optimizer_kwargs"),
    ({"train.optimizer": "a.b:C", "train.optimizer_kwargs": {"lr": 1.0}}, "/train/optimizer_kwargs/lr"),
    ({"train.optimizer": "a.b:C", "train.optimizer_kwargs": {"params": 1}}, "/train/optimizer_kwargs/params"),
    ({"train.optimizer": "a.b:C", "train.optimizer_params": {"eps": 0.1}}, "/train/optimizer_params/eps"),
    ({"train.optimizer": "sgd", "train.optimizer_params": {"beta1": 0.1}}, "/train/optimizer_params/beta1"),
    ({"train.optimizer": "sgd", "train.optimizer_params": {"nesterov": True}}, "/train/optimizer_params/nesterov"),
    ({"train.optimizer": "adafactor", "train.optimizer_params": {"warmup_init": True}}, "/train/optimizer_params/warmup_init"),
    (
        {"train.optimizer": "adafactor", "train.optimizer_params": {"relative_step": True}, "train.lr_scheduler": "cosine"},
        "/train/lr_scheduler",
    ),
    (
        {"train.optimizer": "adafactor", "train.optimizer_params": {"relative_step": True}, "train.lr_warmup_steps": 2},
        "/train/lr_warmup_steps",
    ),
    ({"train.optimizer": "prodigy"}, "/train/lr"),
    ({"train.lr_warmup_steps": 7}, "/train/lr_warmup_steps"),
    ({"train.lr_scheduler_params": {"power": 2.0}}, "/train/lr_scheduler_params/power"),
    ({"train.lr_scheduler": "cosine", "train.lr_scheduler_params": {"num_cycles": 2}}, "/train/lr_scheduler_params/num_cycles"),
    (
        {"train.lr_scheduler": "step", "train.lr_scheduler_params": {"min_lr_ratio": 0.1}},
        "/train/lr_scheduler_params/min_lr_ratio",
    ),
    ({"train.lr_scheduler": "cosine", "train.lr_scheduler_params": {"step_size": 5}}, "/train/lr_scheduler_params/step_size"),
    ({"train.lr_scheduler": "linear", "train.lr_scheduler_params": {"gamma": 0.1}}, "/train/lr_scheduler_params/gamma"),
    ({"train.ema_config": {"ema_decay": 0.9}}, "/train/ema_config/ema_decay"),
    # Where the optimizer itself is unknown, nothing can be said of its options.
    ({"train.optimizer": "adamm", "train.optimizer_params": {"beta1": 0.1}}, "/train/optimizer"),
    ({"train.min_denoising_steps": 500, "train.max_denoising_steps": 500}, "/train/max_denoising_steps"),
    ({"train.timestep_type": "four_step", "train.content_or_style": "style"}, "/train/content_or_style"),
    ({"train.timestep_type": "one_step", "train.min_denoising_steps": 1}, "/train/max_denoising_steps"),
    (
        {"train.timestep_type": "two_step", "train.min_denoising_steps": 10, "train.max_denoising_steps": 500},
        "/train/max_denoising_steps",
    ),
    ({"train.huber_c": 0.2}, "/train/huber_c"),
    ({"train.min_snr_gamma": 5.0}, "/train/min_snr_gamma"),
    ({"train.reg_weight": 0.5}, "/train/reg_weight"),
    ({"train.audio_loss_multiplier": 0.5}, "/train/audio_loss_multiplier"),
    ({"train.blank_prompt_preservation": True}, "/train/blank_prompt_preservation"),
    (
        {"train.diff_output_preservation": True, "train.diff_output_preservation_class": "dog", "network": LORA},
        "/trigger_word",
    ),
    (
        {"train.diff_output_preservation": True, "network": LORA, "trigger_word": "sks"},
        "/train/diff_output_preservation_class",
    ),
    ({"sample.samples": [{"prompt": "an apple"}, {"prompt": "a [Trigger] apple"}]}, "/sample/samples/1/prompt"),
    ({"sample.samples": [{"prompt": "an apple", "neg": "no [name]"}]}, "/sample/samples/0/neg"),
    ({"sample.samples": [{"prompt": "an apple"}], "sample.neg": "[trigger]"}, "/sample/neg"),
    ({"trigger_word": " "}, "/trigger_word"),
    ({"trigger_word": "ohwx\n"}, "/trigger_word"),
    ({"trigger_word": "\u200b"}, "/trigger_word"),
    ({"datasets": [{"folder_path": "x", "trigger_word": "[trigger]"}]}, "/datasets/0/trigger_word"),
    ({"validation": {}}, "/validation"),
    ({"validation": {"fraction": 0.5, "timesteps": [250, 500, 250.0000001]}}, "/validation/timesteps/2"),
    ({"validation": {"fraction": 0.5, "dataset": {"folder_path": "x"}}}, "/validation"),
    *(
        ({"validation": {"dataset": {"folder_path": "x", key: value}}}, f"/validation/dataset/{key}")
        for key, value in {
            "num_repeats": 2,
            "flip_x": True,
            "random_crop": True,
            "caption_dropout_rate": 0.1,
            "is_reg": True,
            "shuffle_tokens": True,
            "mask_path": "m",
            "prior_reg": True,
            "loss_multiplier": 0.5,
        }.items()
    ),
]


@pytest.mark.parametrize(("changes", "pointer"), WRONG, ids=[pointer for _, pointer in WRONG])
def test_what_means_nothing_is_refused_by_its_place(refused: Any, changes: dict[str, Any], pointer: str) -> None:
    assert refused(**changes) == [pointer]


RIGHT: list[dict[str, Any]] = [
    {"train.optimizer": "prodigy", "train.lr": 1.0},
    {"train.optimizer": "sgd", "train.optimizer_params": {"nesterov": True, "momentum": 0.9}},
    {"train.optimizer": "adafactor", "train.optimizer_params": {"relative_step": True, "warmup_init": True}},
    {"train.optimizer": "my.optim:Lion", "train.optimizer_kwargs": {"betas": [0.9, 0.99], "cautious": True}},
    {"train.optimizer": "my.optim:Lion", "train.optimizer_params": {"weight_decay": None}},
    {"train.optimizer": "adafactor", "train.optimizer_params": {"relative_step": False, "warmup_init": False}},
    {"train.ema_config": {"use_ema": True, "ema_decay": 0.9}},
    {"train.lr_scheduler": "step", "train.lr_scheduler_params": {"step_size": 5, "gamma": 0.1}},
    {"train.timestep_type": "two_step", "train.min_denoising_steps": 10, "train.max_denoising_steps": 501},
    {"train.loss_type": "huber", "train.huber_c": 0.2},
    {"train.lr_scheduler": "cosine_with_restarts", "train.lr_scheduler_params": {"num_cycles": 3, "min_lr_ratio": 0.1}},
    {"train.reg_weight": 0.5, "datasets": [{"folder_path": "a"}, {"folder_path": "b", "is_reg": True}]},
    {
        "train.diff_output_preservation": True,
        "train.diff_output_preservation_class": "dog",
        "network": LORA,
        "trigger_word": "sks",
    },
    {"validation": {"fraction": 0.5}},
    {"validation": {"dataset": {"folder_path": "x", "resolution": [64], "caption_ext": "json", "cache_latents": False}}},
]


@pytest.mark.parametrize("changes", RIGHT)
def test_what_goes_together_is_taken(tiny_job: Any, changes: dict[str, Any]) -> None:
    assert isinstance(catalog.parse_job(tiny_job(**changes)), TrainSpec)


def test_a_placeholder_in_a_sampling_job_needs_its_trigger_word(faults: Any) -> None:
    job = {"kind": "sample", "name": "x", "model": {"arch": "pocket", "name_or_path": "random"}, "sample": {"neg": "no [name]"}}
    job |= {"samples": [{"prompt": "a sea"}, {"prompt": "[TRIGGER] at sea"}]}
    assert [fault.pointer for fault in faults(job)] == ["/sample/neg", "/samples/1/prompt"]
    assert catalog.parse_job({**job, "trigger_word": "ohm"})


def test_a_held_out_dataset_has_the_defaults_of_the_others(tiny_job: Any) -> None:
    job = tiny_job(validation={"dataset": {"folder_path": "x"}})
    job["datasets"][0].pop("resolution", None)
    spec = catalog.parse_job(job)
    assert spec.validation.dataset.resolution == spec.datasets[0].resolution == [32]  # type: ignore[attr-defined]
    assert catalog.parse_job(tiny_job()).validation is None  # type: ignore[attr-defined]


def test_a_held_out_dataset_has_the_network_s_size(tiny_job: Any) -> None:
    card = catalog.arch("pocket").model_copy(update={"fixed_size": (64, 64)})
    spec = catalog.parse_job(tiny_job(validation={"dataset": {"folder_path": "x", "resolution": [64, 32]}}))
    assert "/validation/dataset/resolution/1" in [fault.pointer for fault in misfits(card, spec)]


def test_a_rate_that_would_stop_prodigy_is_refused_with_the_usual_one(faults: Any, tiny_job: Any) -> None:
    [fault] = faults(tiny_job(**{"train.optimizer": "prodigy", "train.lr": 1e-4}))
    assert fault.suggestion == "1.0"
    assert "0.0001 would all but stop it" in fault.message


def with_capabilities(*names: str) -> Arch:
    card = catalog.arch("pocket")
    return card.model_copy(update={"capabilities": (*card.capabilities, *names)})


def job_for(card: Arch, job: dict[str, Any]) -> Any:
    return catalog.job_type_of(card, "train").model_validate(job)


@pytest.mark.parametrize("kind", ["weighted", "shift", "lognorm_blend", "four_step"])
def test_flows_levels_are_not_for_models_that_predict_noise(tiny_job: Any, kind: str) -> None:
    flow, epsilon = with_capabilities("schedule"), with_capabilities("schedule", "epsilon")
    spec = job_for(flow, tiny_job(**{"train.timestep_type": kind}))
    assert [fault.pointer for fault in misfits(epsilon, spec)] == ["/train/timestep_type"]
    assert not list(misfits(flow, spec))


def test_an_arch_without_a_schedule_cannot_follow_one(faults: Any, tiny_job: Any) -> None:
    job = tiny_job(**{"train.timestep_type": "shift"})
    [fault] = faults(job)
    assert fault.pointer == "/train/timestep_type"
    assert fault.message.startswith("timestep_type 'shift' follows the schedule of arch 'pocket', and it has none")
    assert not list(misfits(with_capabilities("schedule"), job_for(with_capabilities("schedule"), job)))


def test_old_names_are_for_archs_that_had_them(faults: Any, tiny_job: Any) -> None:
    job = tiny_job(network={"type": "lokr", "old_lokr_format": True})
    [fault] = faults(job)
    assert fault.pointer == "/network/old_lokr_format"
    assert fault.message == "arch 'pocket' has no use for old_lokr_format: it lacks 'old_lokr_names'"
    old = with_capabilities("old_lokr_names")
    assert not list(misfits(old, job_for(old, job)))
    plain = job_for(old, tiny_job(network={"old_lokr_format": True}))
    assert [each.message for each in misfits(old, plain)] == ["old_lokr_format means nothing unless network.type is lokr"]


def test_every_option_belongs_to_an_optimizer() -> None:
    takes = {name: set(optimizer_options(name)) for name in OPTIMIZERS}
    assert set().union(*takes.values()) == set(OptimizerParams.model_fields)
    assert takes["sgd"] == {"momentum", "nesterov", "weight_decay"}
    assert takes["adamw"] == takes["adamw8bit"] == {"beta1", "beta2", "eps", "weight_decay"}
    assert optimizer_options("a.b:C") == []


OPTION = {"train.optimizer_params": {"nesterov": True, "momentum": 0.9}}
SAID: list[tuple[dict[str, Any], list[str]]] = [
    (
        {"train.optimizer": "adagrad", **OPTION},
        [
            "optimizer 'adagrad' has no momentum, an option of rmsprop, sgd; it takes: eps, weight_decay",
            "optimizer 'adagrad' has no nesterov, an option of sgd; it takes: eps, weight_decay",
        ],
    ),
    (
        {"train.optimizer": "a.b:C", "train.optimizer_params": {"nesterov": True}},
        ["nesterov is an option of sgd; give the arguments of 'a.b:C' in optimizer_kwargs"],
    ),
    (
        {"train.lr_scheduler_params": {"min_lr_ratio": 0.1}},
        ["min_lr_ratio means nothing unless train.lr_scheduler is linear or cosine or cosine_with_restarts or polynomial"],
    ),
    ({"train.ema_config": {"ema_decay": 0.9}}, ["ema_decay means nothing unless train.ema_config.use_ema is true"]),
]


@pytest.mark.parametrize(("changes", "said"), SAID)
def test_what_means_nothing_says_what_it_belongs_to(faults: Any, tiny_job: Any, changes: dict[str, Any], said: list[str]) -> None:
    assert [fault.message for fault in faults(tiny_job(**changes))] == said
