"""The contract's own behaviour, where no architecture overrides it."""

import pickle
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

from models.archs import example
from models.attention import attention, set_attention_backend
from models.base import BaseModel
from models.batch import Audio, Batch, Clip, GenerateImageConfig
from models.declared import call_declared
from models.errors import UserError
from models.prompt_embeds import AdvancedPromptEmbeds, PromptEmbeds, concat_prompt_embeds, pad_prompt_embeds
from models.spec import TrainSettings
from models.weights import save_tensors
from worker.data.batches import TrainBatch
from worker.report import Reporter
from worker.sampling import preview
from worker.training.steps import TrainStep, stage_of
from worker.training.timesteps import Timesteps


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.attention_backend = "native"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


class Small(BaseModel):
    arch = "small"
    is_flow_matching = True

    def load_model(self) -> None:
        torch.manual_seed(0)
        self.model = Net()

    def get_noise_prediction(self, latent_model_input: Any, timestep: Any, text_embeddings: Any, batch: Any) -> torch.Tensor:
        self.seen = batch
        return self.model(latent_model_input)

    def get_generation_pipeline(self) -> Any:
        return None

    def generate_single_image(self, pipeline: Any, gen_config: Any, *_: Any) -> Any:
        return gen_config.extra_kwargs["make"](self)


@pytest.fixture
def model() -> Small:
    made = Small("cpu", SimpleNamespace(vae_dtype="bf16"), dtype="fp32")
    made.load_model()
    return made


def test_component_dtypes_follow_the_config(model: Small) -> None:
    assert (model.vae_torch_dtype, model.te_torch_dtype) == (torch.bfloat16, torch.float32)


def test_a_flag_on_the_class_is_not_overwritten() -> None:
    class New(Small):
        use_old_lokr_format = False

    assert New("cpu", SimpleNamespace(), dtype="fp32").use_old_lokr_format is False
    assert Small("cpu", SimpleNamespace(), dtype="fp32").use_old_lokr_format is True


def test_arguments_go_only_where_they_are_declared(model: Small) -> None:
    embeds = AdvancedPromptEmbeds(text_embeds=[torch.zeros(1, 2)])
    batch = Batch(torch.zeros(1, 4), ["x"])
    model.predict_noise(torch.zeros(1, 4), embeds, 500.0, batch=batch)
    assert model.seen is batch
    assert call_declared(lambda a: a, a=1, b=2) == 1
    assert call_declared(lambda **all: all, a=1, b=2) == {"a": 1, "b": 2}


def test_signatures_are_looked_at_once_per_function_and_not_once_per_step(model: Small, monkeypatch: Any) -> None:
    embeds = AdvancedPromptEmbeds(text_embeds=[torch.zeros(1, 2)])
    model.predict_noise(torch.zeros(1, 4), embeds, 500.0)
    looked: list[Any] = []
    monkeypatch.setattr("inspect.signature", looked.append)
    model.predict_noise(torch.zeros(1, 4), embeds, 500.0)
    assert looked == []


@pytest.mark.parametrize(("stride", "wanted"), [(None, [1, 1, 1, 9, 9, 17]), (4, [1, 1, 1, 9, 13, 17])])
def test_frames_are_rounded_down_to_what_a_video_model_takes(model: Small, stride: int | None, wanted: list[int]) -> None:
    model.model.config = SimpleNamespace(temporal_compression_ratio=stride)
    snap = pickle.loads(pickle.dumps(model.get_frame_count_snapper()))
    assert [snap(count) for count in (0, 1, 2, 9, 16, 17)] == wanted


def test_hooks_that_few_models_need_do_nothing_by_default(model: Small) -> None:
    assert model.get_quantization_exclude_modules() == []
    assert model.get_additional_loss(torch.zeros(1), torch.ones(1)) is None


def test_the_target_gets_timesteps_if_it_names_them(model: Small) -> None:
    class Timed(Small):
        def get_loss_target(self, *, noise: Any, batch: Any, timesteps: Any) -> Any:
            return timesteps

    batch, t = Batch(torch.zeros(1, 4), ["x"]), torch.tensor([3.0])
    assert torch.equal(model.loss_target(torch.ones(1, 4), batch, t), torch.ones(1, 4))
    assert Timed("cpu", SimpleNamespace(), dtype="fp32").loss_target(torch.ones(1, 4), batch, t) is t


def test_a_training_adapter_acts_in_training_and_is_off_in_previews(model: Small, tmp_path: Path) -> None:
    x = torch.randn(2, 4)
    base = model.model(x)
    a, b = torch.randn(2, 4), torch.randn(4, 2)
    save_tensors(
        {"diffusion_model.linear.lora_A.weight": a, "diffusion_model.linear.lora_B.weight": b}, tmp_path / "a.safetensors"
    )
    model.load_training_adapter(tmp_path / "a.safetensors")
    assert torch.allclose(model.model(x), base + x @ a.T @ b.T, atol=1e-5)  # float32 sums in another order
    config = GenerateImageConfig("", extra_kwargs={"make": lambda m: m.model(x)})
    [made] = model.generate_images([config], lambda _: (None, None))
    assert torch.allclose(made, base, atol=1e-5)
    assert not torch.allclose(model.model(x), base, atol=1e-2)


def test_frames_become_a_clip_and_sounds_stay_sounds(model: Small) -> None:
    frames = [Image.new("RGB", (2, 2))] * 3
    sound = Audio(torch.zeros(1, 10), 100)
    configs = [GenerateImageConfig("", fps=7, extra_kwargs={"make": lambda _, made=made: made}) for made in (frames, sound)]
    clip, audio = model.generate_images(configs, lambda _: (None, None))
    assert isinstance(clip, Clip)
    assert (len(clip.frames), clip.fps) == (3, 7)
    assert audio is sound


def test_experts_take_turns_and_draw_within_their_range(model: Small) -> None:
    model.is_multistage, model.multistage_boundaries, model.trainable_multistage_boundaries = True, [0.875, 0.0], [0, 1]
    assert [model.multistage_range(k) for k in (0, 1)] == [(875.0, 1000.0), (0.0, 875.0)]
    spec: Any = SimpleNamespace(train=SimpleNamespace(switch_boundary_every=3))
    assert [stage_of(model, spec, step) for step in range(8)] == [0, 0, 0, 1, 1, 1, 0, 0]
    torch.manual_seed(0)
    for kind in ("sigmoid", "linear"):
        pick = Timesteps(model, TrainSettings(timestep_type=kind)).picker((4,), 875.0, 1000.0)  # type: ignore[arg-type]
        assert all(875.0 < pick() <= 1000.0 for _ in range(200))


def test_sigmoid_timesteps_are_logit_normal(model: Small) -> None:
    torch.manual_seed(0)
    pick = Timesteps(model, TrainSettings(timestep_type="sigmoid")).picker((4,))
    drawn = torch.tensor([pick() for _ in range(4000)], dtype=torch.float64) / 1000
    logits = torch.logit(drawn)
    assert abs(float(logits.mean())) < 0.06  # 4 standard errors of 4,000 draws
    assert abs(float(logits.std()) - 1) < 0.06


def test_attention_backends_are_checked_by_name_and_by_kernel(model: Small) -> None:
    with pytest.raises(UserError, match="attention backend 'sage' is unknown; known: native, flash"):
        model.set_attention_backend("sage")
    with pytest.raises(UserError, match="needs the package flash-attn"):
        model.set_attention_backend("flash")
    model.set_attention_backend("native")
    assert model.model.attention_backend == "native"
    set_attention_backend(nn.Linear(1, 1), "native")


def test_attention_leaves_masked_keys_out() -> None:
    q, k, v = (torch.randn(1, 2, 3, 4) for _ in range(3))
    mask = torch.tensor([[[[True, True, False]]]])
    wanted = torch.softmax(q.double() @ k[:, :, :2].double().transpose(2, 3) / 2, dim=-1) @ v[:, :, :2].double()
    assert torch.allclose(attention(q, k, v, mask, "native").double(), wanted, atol=1e-6)


def test_the_template_names_every_hook_and_flag_of_the_contract() -> None:
    folder = Path(example.__file__).parent
    told = (folder / "model.py").read_text() + (folder / "README.md").read_text()
    names = {name for name in [*vars(BaseModel), *vars(BaseModel("cpu", None))] if not name.startswith("_")}
    assert len(names) > 60 and {name for name in names if not re.search(rf"\b{name}\b", told)} == set()


def test_flash_computes_a_padded_batch_natively_and_says_so_once_for_each_choice(
    model: Small, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("models.attention.flash_attn_func", lambda q, *_: torch.zeros_like(q))
    q, k, v = (torch.randn(1, 2, 3, 4) for _ in range(3))
    mask = torch.tensor([[[[True, True, False]]]])
    for _ in range(2):
        model.set_attention_backend("flash")
        assert attention(q, k, v, None, "flash").abs().sum() == 0 and caplog.messages == []
        for _ in range(2):
            assert torch.equal(attention(q, k, v, mask, "flash"), attention(q, k, v, mask, "native"))
        assert [text.partition(":")[0] for text in caplog.messages] == ["attention backend 'flash' has no mask"]
        caplog.clear()


def test_gradient_checkpointing_sets_the_flag_where_there_is_no_method(model: Small) -> None:
    model.enable_gradient_checkpointing()
    assert model.model.gradient_checkpointing is True


@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_keeps_the_text_and_says_where_it_is(side: str) -> None:
    items = [torch.full((2, 3), 1.0), torch.full((4, 3), 2.0)]
    padded, mask = pad_prompt_embeds(items, "cpu", torch.float32, padding_side=side)
    assert padded.shape == (2, 4, 3)
    assert mask.tolist()[0] == ([True, True, False, False] if side == "right" else [False, False, True, True])
    assert torch.equal(padded[0][mask[0]], items[0])
    assert padded[0][~mask[0]].abs().sum() == 0


def test_the_older_container_pads_when_it_joins_and_reads_either_file(tmp_path: Path) -> None:
    short = PromptEmbeds(torch.ones(1, 2, 3), torch.ones(1, 5), torch.ones(1, 2))
    long = PromptEmbeds(torch.ones(1, 4, 3) * 2, torch.ones(1, 5) * 2, torch.ones(1, 4))
    joined = concat_prompt_embeds([short, long], padding_side="left")
    assert joined.text_embeds[0].sum(dim=1).tolist() == [0, 0, 3, 3]
    assert joined.attention_mask.tolist() == [[0, 0, 1, 1], [1, 1, 1, 1]]
    assert len(joined.to(torch.float64)) == 2
    with pytest.raises(ValueError, match="different classes"):
        concat_prompt_embeds([short, AdvancedPromptEmbeds(text_embeds=[torch.zeros(1, 3)])])
    short.save(tmp_path / "old.safetensors")
    AdvancedPromptEmbeds(text_embeds=[torch.zeros(1, 3)]).save(tmp_path / "new.safetensors")
    assert isinstance(PromptEmbeds.load(tmp_path / "old.safetensors"), PromptEmbeds)
    assert isinstance(PromptEmbeds.load(tmp_path / "new.safetensors"), AdvancedPromptEmbeds)
    assert len(short.expand_to_batch(3)) == 3


def test_what_is_not_overridden_says_so(model: Small) -> None:
    with pytest.raises(NotImplementedError, match="Small must override get_prompt_embeds"):
        model.encode_prompt("x")
    with pytest.raises(NotImplementedError, match="Small does not take audio"):
        model.encode_audio([])


def test_a_model_may_weigh_its_loss_element_by_element(model: Small) -> None:
    class FirstHalf(Small):
        def scale_loss(self, loss: torch.Tensor) -> torch.Tensor:
            self.seen_loss = loss
            return loss * torch.tensor([1.0, 1.0, 0.0, 0.0])

    weighed = FirstHalf("cpu", SimpleNamespace(), dtype="fp32")
    weighed.load_model()
    spec: Any = SimpleNamespace(train=TrainSettings(seed=1, timestep_type="linear"))
    batch, embeds = Batch(torch.ones(2, 4), ["a", "b"]), AdvancedPromptEmbeds(text_embeds=[torch.zeros(1, 2)] * 2)
    taken = TrainBatch(batch, embeds)
    loss = TrainStep(weighed, spec)(taken)["loss"]
    assert weighed.seen_loss.shape == (2, 4)
    assert torch.equal(loss, (weighed.seen_loss * torch.tensor([1.0, 1.0, 0.0, 0.0])).mean())
    assert loss < TrainStep(model, spec)(taken)["loss"]


def test_a_model_hears_of_each_preview_before_its_prompt_is_encoded(tmp_path: Path) -> None:
    class Listening(Small):
        def prepare_sample_prompt_context(self, gen_config: GenerateImageConfig) -> None:
            self.size = gen_config.width

        def get_prompt_embeds(self, prompt: list[str], control_images: Any = None) -> Any:
            return AdvancedPromptEmbeds(text_embeds=[torch.full((1, 1), float(self.size)) for _ in prompt])

    listening = Listening("cpu", SimpleNamespace(), dtype="fp32")
    wanted = [GenerateImageConfig("a", width=64), GenerateImageConfig("b", width=32)]
    made = preview.encode(listening, wanted, Reporter(tmp_path, 1))
    assert [[part.text_embeds[0].item() for part in embeds] for embeds in made.embeds] == [[64.0, 64.0], [32.0, 32.0]]
