"""What is released, what waits outside, and that no option changes a number."""

import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from models import budget, memory
from models.adapters.attach import new_network
from models.archs.example.card import ARCHS
from models.base import BaseModel
from models.batch import GenerateImageConfig
from models.conform import Subject, subject_for
from models.conform.subject import PROMPTS
from models.errors import UserError
from models.offload import is_offloaded
from models.quantize import is_quantized
from models.released import Absent
from models.spec import CONTROL_FOLDERS

OPTIONS: dict[str, dict[str, Any]] = {
    "checkpointing": {},
    "low_vram": {"low_vram": True},
    "offloading": {"layer_offloading": True},
    "half": {"layer_offloading": True, "layer_offloading_transformer_percent": 0.5},
    "everything": {"layer_offloading": True, "low_vram": True},
}


@pytest.fixture
def subject(tmp_path: Path) -> Subject:
    return subject_for(ARCHS[0], tmp_path / "tiny")


def load(subject: Subject, **config: Any) -> BaseModel:
    """A loaded and settled model whose job says `config`."""
    shares = {"layer_offloading_transformer_percent": 1.0, "layer_offloading_text_encoder_percent": 1.0}
    model = subject.build()
    model.model_config = SimpleNamespace(**{**vars(model.model_config), **shares, **config})
    model.load_device_torch = memory.load_device(model.model_config, model.device_torch)
    memory.settle(model, parked=memory.is_low(model))
    return model


def step(subject: Subject, model: BaseModel) -> list[torch.Tensor]:
    """The loss and gradients of an adapter at one step, as the loop makes it."""
    torch.manual_seed(3)
    model.get_model_to_train().requires_grad_(False).train()
    model.network = new_network(model.get_model_to_train(), 4, 4.0, device=model.device_torch)
    for _, layer in model.network.named_layers():
        nn.init.normal_(layer.lora_B, std=0.02)
    batch, noise = subject.batch(subject.latents), torch.randn(subject.latents.shape, generator=torch.Generator().manual_seed(3))
    t = torch.tensor([300.0, 800.0])
    memory.encoding(model)
    embeds = model.encode_prompt(list(PROMPTS))
    model.unload_text_encoder()
    memory.denoising(model)
    prediction = model.predict_noise(model.add_noise(batch.latents, noise, t), text_embeddings=embeds, timestep=t, batch=batch)
    loss = (prediction - model.loss_target(noise, batch, t)).square().mean()
    loss.backward()
    return [loss.detach(), *(param.grad for param in model.network.parameters() if param.grad is not None)]


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", OPTIONS)
def test_no_option_changes_a_number(subject: Subject, name: str, checkpointing: bool) -> None:
    plain, saving = load(subject), load(subject, **OPTIONS[name])
    if checkpointing:
        saving.enable_gradient_checkpointing()
    wanted, found = step(subject, plain), step(subject, saving)
    assert len(wanted) == len(found) > 10
    assert all(torch.equal(one, other) for one, other in zip(wanted, found, strict=True))
    assert is_offloaded(saving.model) == ("layer_offloading" in OPTIONS[name])


def test_quantized_and_offloaded_is_only_quantized(subject: Subject) -> None:
    quantized = {"quantize": True, "qtype": "qint8", "quantize_te": True, "qtype_te": "qint8"}
    wanted = step(subject, load(subject, **quantized))
    saving = load(subject, **quantized, layer_offloading=True, low_vram=True)
    saving.enable_gradient_checkpointing()
    assert is_quantized(saving.model) and is_offloaded(saving.model) and is_offloaded(saving.text_encoder)
    assert all(torch.equal(one, other) for one, other in zip(wanted, step(subject, saving), strict=True))


def test_a_released_text_encoder_holds_no_memory(subject: Subject) -> None:
    model = load(subject)
    encoder = model.text_encoder
    model.pipeline = SimpleNamespace(text_encoder=encoder, other=[encoder])
    weight = weakref.ref(next(encoder.parameters()))
    model.unload_text_encoder()
    assert model.absent == {"text_encoder"}
    assert weight() is None  # although `encoder` is still held here
    assert model.pipeline.text_encoder is model.text_encoder is model.pipeline.other[0]
    assert model.text_encoder.dtype == torch.float32 and model.text_encoder.device.type == "cpu"
    assert model.text_encoder.to(torch.bfloat16).dtype == torch.bfloat16
    assert model.text_encoder.config.hidden_size == 32
    with pytest.raises(RuntimeError, match="text_encoder was released"):
        model.encode_prompt("a")
    model.unload_text_encoder()  # again does no harm


def test_encoders_in_a_list(subject: Subject) -> None:
    model = load(subject)
    model.text_encoder = [model.text_encoder, nn.Linear(2, 2)]
    model.unload_text_encoder()
    assert [type(each) for each in model.text_encoder] == [Absent, Absent]


def test_weights_that_the_denoiser_shares_stay(subject: Subject) -> None:
    model = load(subject)
    shared = nn.Sequential(model.model.text_in, nn.Linear(2, 2))
    model.text_encoder = shared
    model.unload_text_encoder()
    assert model.model.text_in.weight.device.type == "cpu"
    assert shared[1].weight.device.type == "meta"  # type: ignore[union-attr]


def dataset(cached: bool = True, control: str | None = None) -> Any:
    controls = {**dict.fromkeys(CONTROL_FOLDERS), "control_path": control}
    return SimpleNamespace(cache_latents=cached, cache_latents_to_disk=False, **controls)


def spec(subject: Subject, cached: bool = True, keeps_text: bool = True) -> Any:
    datasets = [dataset(), dataset(cached)]
    train = SimpleNamespace(cache_text_embeddings=keeps_text)
    return SimpleNamespace(datasets=datasets, train=train, validation=None, model=SimpleNamespace(arch="pocket"))


@pytest.mark.parametrize(
    ("cached", "keeps_text", "previews", "gone"),
    [
        (True, True, False, {"text_encoder", "vae"}),
        (True, True, True, {"text_encoder"}),
        (False, True, False, {"text_encoder"}),
        (True, False, False, {"vae"}),
        (False, False, True, set()),
    ],
)
def test_what_a_job_releases(subject: Subject, cached: bool, keeps_text: bool, previews: bool, gone: set[str]) -> None:
    model = load(subject)
    memory.encoded(model, spec(subject, cached, keeps_text), previews=previews)
    assert model.absent == gone
    assert model.get_bucket_divisibility() == 16


class Recorder(nn.Module):
    """Notes where it is sent."""

    def __init__(self, name: str, told: list[tuple[str, str]]) -> None:
        super().__init__()
        self.name, self.told = name, told

    def to(self, device: Any) -> Any:  # type: ignore[override]
        self.told.append((self.name, str(device)))
        return self


def test_each_part_is_on_a_small_device_only_at_work() -> None:
    told: list[tuple[str, str]] = []
    root, encoder, vae = (Recorder(name, told) for name in ("denoiser", "text", "vae"))
    gpu = torch.device("cuda", 0)
    model = SimpleNamespace(
        model_config=SimpleNamespace(low_vram=True), get_model_to_train=lambda: root, text_encoder=encoder, vae=vae,
        device_torch=gpu, te_device_torch=gpu,
    )  # fmt: skip
    memory.encoding(model)
    assert told == [("denoiser", "cpu"), ("text", "cuda:0")]
    told.clear()
    memory.denoising(model)
    assert told == [("text", "cpu"), ("vae", "cpu"), ("denoiser", "cuda:0")]
    told.clear()
    model.model_config.low_vram = False
    memory.encoding(model)
    memory.denoising(model)
    assert told == [("vae", "cpu"), ("denoiser", "cuda:0")]
    told.clear()
    memory.denoising(model, vae_too=True)
    assert told == [("denoiser", "cuda:0")]
    told.clear()
    model.model_config.low_vram = True
    memory.denoising(model, vae_too=True, text_too=True)
    assert told == [("denoiser", "cuda:0")]
    assert memory.load_device(SimpleNamespace(quantize=True), gpu) == torch.device("cpu")
    assert memory.load_device(SimpleNamespace(quantize=False), gpu) == gpu


@pytest.mark.parametrize("cached", [True, False])
def test_captions_that_steps_encode_keep_the_text_encoder_there(
    subject: Subject, cached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(memory, "denoising", lambda *_, text_too: asked.append(text_too))
    memory.encoded(load(subject), spec(subject, keeps_text=cached), previews=True)
    assert asked == [not cached]


def test_held_out_pictures_that_are_not_cached_keep_the_vae(subject: Subject) -> None:
    wanted = spec(subject)
    for cached in (True, False):
        wanted.validation = SimpleNamespace(dataset=dataset(cached))
        assert memory.steps_need_vae(wanted) is not cached


def test_steps_of_an_edit_model_need_the_vae_only_where_the_data_has_control_pictures(subject: Subject) -> None:
    wanted = spec(subject)
    wanted.model.arch = "flux2_klein_4b"
    assert not memory.steps_need_vae(wanted)
    wanted.datasets[1].control_path = "sketches"
    assert memory.steps_need_vae(wanted)


def test_previews_are_tiled_and_encoding_is_not(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(subject, low_vram=True)
    seen: list[bool] = []
    decode = model.vae.decode
    monkeypatch.setattr(
        model.vae, "decode", lambda *args, **kwargs: (seen.append(model.vae.use_tiling), decode(*args, **kwargs))[1]
    )
    embeds = model.encode_prompt("a")
    config = GenerateImageConfig("a", width=32, height=32, num_inference_steps=1)
    list(model.generate_images([config], lambda _: (embeds, embeds)))
    assert seen == [True]
    assert model.vae.use_tiling is False


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nmore"),
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
)
def test_running_out_of_memory_is_explained(error: Exception) -> None:
    with pytest.raises(UserError, match="out of memory") as caught, memory.explaining("Set train.batch_size to 1."):
        raise error
    assert caught.value.code == "out_of_memory" and caught.value.hint == "Set train.batch_size to 1."
    with pytest.raises(RuntimeError, match="something else"), memory.explaining(""):
        raise RuntimeError("something else")


def test_advice_names_what_is_not_set() -> None:
    train = SimpleNamespace(gradient_checkpointing=True, batch_size=4)
    config = SimpleNamespace(quantize=False, quantize_te=True, low_vram=True, layer_offloading=False)
    job = SimpleNamespace(kind="train", train=train, model=config, network=object())
    assert budget.general_advice(job) == (
        "Set model.quantize: true (a small error), or train.batch_size: 1 (noisier steps; train.gradient_accumulation makes good for "
        "it), or model.layer_offloading: true (much slower steps); or a smaller resolution."
    )
    job.network, train.batch_size = None, 1
    assert budget.general_advice(job) == "Use a smaller resolution, or a larger device."


def test_the_parts_precision_is_the_jobs(subject: Subject) -> None:
    model = subject.build(te_dtype="bf16", vae_dtype="fp16")
    assert (model.model.image_in.weight.dtype, model.text_encoder.dtype, model.vae.dtype) == (
        torch.float32, torch.bfloat16, torch.float16,
    )  # fmt: skip
    assert model.encode_prompt("a").text_embeds[0].dtype == torch.float32
    assert model.encode_images(torch.zeros(1, 3, 32, 32)).dtype == torch.float32
