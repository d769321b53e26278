"""The contract's rules hold for the template, its variants and every bundled arch, and they see seeded faults."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from models import catalog, conform
from models.archs.example.card import ARCHS
from models.archs.example.model import ExampleModel
from models.archs.example.network import Attention
from models.archs.example.pipeline import ExamplePipeline
from models.conform import Subject, adapters, check, rules, subject_for
from models.conform import closure as sampling
from models.prompt_embeds import AdvancedPromptEmbeds, pad_prompt_embeds
from models.samplers import euler, flow_timesteps
from tests.models import variants

VARIANTS = [
    (variants.EditModel, ("edit",), 8),
    (variants.MultiReferenceModel, ("edit", "multi_reference"), 8),
    (variants.SeeingModel, ("edit",), 8),
    (variants.VideoModel, ("video",), 4),
    (variants.ShortenedVideoModel, ("video",), 4),
    (variants.ImageToVideoModel, ("video", "i2v"), 8),
    (variants.MultistageModel, ("multistage",), 4),
    (variants.AudioModel, ("video", "audio"), 4),
]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def broken(subject: Subject, *, but: tuple[str, ...] = ()) -> dict[str, str]:
    return {seen.rule: seen.text for seen in check(subject) if not seen.holds and seen.rule not in but}


def test_the_template_conforms(tmp_path: Path) -> None:
    assert broken(subject_for(ARCHS[0], tmp_path)) == {}


@pytest.mark.parametrize(("cls", "capabilities", "channels"), VARIANTS, ids=lambda value: getattr(value, "__name__", None))
def test_its_variants_conform(cls: type, capabilities: tuple[str, ...], channels: int, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(conform, "RULES", [rule for rule in conform.RULES if rule is not sampling.closure])
    assert broken(variants.subject(cls, tmp_path, *capabilities, in_channels=channels)) == {}


def test_a_left_padded_model_gets_its_texts_to_the_right_of_their_padding(tmp_path: Path) -> None:
    subject = variants.subject(variants.LeftPaddedModel, tmp_path)
    assert "equal within" in rules.mixed_lengths_change_nothing(subject)
    (short, long), *_ = subject.model.masks
    assert long.all() and not short[0] and short[-1] and short.tolist() == sorted(short.tolist())


@pytest.mark.slow
@pytest.mark.parametrize(("cls", "capabilities", "channels"), VARIANTS, ids=lambda value: getattr(value, "__name__", None))
def test_its_variants_learn_what_they_are_shown(cls: type, capabilities: tuple[str, ...], channels: int, tmp_path: Path) -> None:
    assert "within" in str(sampling.closure(variants.subject(cls, tmp_path, *capabilities, in_channels=channels)))


@pytest.mark.parametrize("name", list(catalog.archs()))
def test_every_bundled_arch_conforms(name: str, tmp_path: Path) -> None:
    assert broken(subject_for(catalog.arch(name), tmp_path)) == {}


class NegatedTarget(ExampleModel):
    def get_loss_target(self, *, noise: Any, batch: Any) -> Any:
        return (batch.latents - noise).detach()


class FlippedTimeInSampling(ExampleModel):
    def get_generation_pipeline(self) -> Any:
        class Flipped(ExamplePipeline):
            def __call__(self, noise: Any, config: Any, cond: Any, uncond: Any, batch: Any) -> Any:
                ask = lambda x, t: self.model.predict_noise(x, timestep=t, text_embeddings=cond, batch=batch)  # noqa: E731
                return euler(ask, noise, flow_timesteps(config.num_inference_steps).flip(0))

        return Flipped(self)


class FlippedNoise(ExampleModel):
    def add_noise(self, original_samples: Any, noise: Any, timesteps: Any) -> Any:
        return super().add_noise(original_samples, noise, 1000 - timesteps)


class DroppedVaeShift(ExampleModel):
    def encode_images(self, image_list: Any, device: Any = None, dtype: Any = None) -> Any:
        return super().encode_images(image_list, device, dtype) + self.vae.config.shift_factor * self.vae.config.scaling_factor


class ShiftDroppedBothWays(DroppedVaeShift):
    def decode_latents(self, latents: Any, device: Any = None, dtype: Any = None) -> Any:
        return super().decode_latents(latents - self.vae.config.shift_factor * self.vae.config.scaling_factor, device, dtype)


class SampledPosterior(ExampleModel):
    def encode_images(self, image_list: Any, device: Any = None, dtype: Any = None) -> Any:
        latents = super().encode_images(image_list, device, dtype)
        return latents + 0.01 * torch.randn_like(latents)


class SwappedGuidance(ExampleModel):
    def predict_noise(self, latents: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("unconditional_embeddings") is not None:
            kwargs["conditional_embeddings"], kwargs["unconditional_embeddings"] = (
                kwargs["unconditional_embeddings"],
                kwargs["conditional_embeddings"],
            )
        return super().predict_noise(latents, *args, **kwargs)


class PaddingSeen(ExampleModel):
    def get_noise_prediction(self, latent_model_input: Any, timestep: Any, text_embeddings: Any, **kwargs: Any) -> Any:
        text, mask = pad_prompt_embeds(text_embeddings.text_embeds, "cpu", torch.float32)
        return self.model(latent_model_input, timestep / 1000, text, torch.ones_like(mask))


class MaskOnTheWrongSide(ExampleModel):
    def get_noise_prediction(self, latent_model_input: Any, timestep: Any, text_embeddings: Any, **kwargs: Any) -> Any:
        text, mask = pad_prompt_embeds(text_embeddings.text_embeds, "cpu", torch.float32)
        return self.model(latent_model_input, timestep / 1000, text, mask.flip(1))


class ThreeAxisEmbeds(ExampleModel):
    def get_prompt_embeds(self, prompt: list[str], control_images: Any = None) -> Any:
        embeds = super().get_prompt_embeds(prompt)
        return AdvancedPromptEmbeds(text_embeds=[item[None] for item in embeds.text_embeds])


class EmbedsDependOnNeighbours(ExampleModel):
    def get_prompt_embeds(self, prompt: list[str], control_images: Any = None) -> Any:
        embeds = super().get_prompt_embeds(prompt)
        return AdvancedPromptEmbeds(text_embeds=[item + 0.1 * len(prompt) for item in embeds.text_embeds])


class NothingForEmptyPrompts(ExampleModel):
    def get_prompt_embeds(self, prompt: list[str], control_images: Any = None) -> Any:
        embeds = super().get_prompt_embeds(prompt)
        return AdvancedPromptEmbeds(
            text_embeds=[item if text else item[:0] for text, item in zip(prompt, embeds.text_embeds, strict=True)]
        )


class IgnoresText(ExampleModel):
    def get_noise_prediction(self, latent_model_input: Any, timestep: Any, text_embeddings: Any, **kwargs: Any) -> Any:
        blank = AdvancedPromptEmbeds(text_embeds=[torch.zeros(1, 32) for _ in text_embeddings.text_embeds])
        return super().get_noise_prediction(latent_model_input, timestep, blank, **kwargs)


class GatedOnTraining(ExampleModel):
    """Checkpoints only in training mode."""

    def load_model(self) -> None:
        super().load_model()
        network = self.model

        class Gated(type(network)):  # type: ignore[misc]
            def forward(self, *args: Any, **kwargs: Any) -> Any:
                wanted, self.gradient_checkpointing = self.gradient_checkpointing, self.gradient_checkpointing and self.training
                try:
                    return super().forward(*args, **kwargs)
                finally:
                    self.gradient_checkpointing = wanted

        network.__class__ = Gated


class CheckpointingForgotten(ExampleModel):
    def enable_gradient_checkpointing(self) -> None:
        pass


class FourAxisLinear(ExampleModel):
    def load_model(self) -> None:
        super().load_model()
        first = self.model.blocks[0].mlp[0]
        first.register_forward_pre_hook(lambda _, args: (args[0],))
        plain = first.forward
        self.model.blocks[0].mlp[0] = _FourAxes(first, plain)


class _FourAxes(torch.nn.Module):
    def __init__(self, inner: torch.nn.Linear, _plain: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x[:, None])[:, 0]


class AnyBackend(ExampleModel):
    def set_attention_backend(self, name: str) -> None:
        for module in self.model.modules():
            if isinstance(module, Attention):
                module.attention_backend = name


class UnnamedSpace(ExampleModel):
    text_embedding_space_version = None  # type: ignore[assignment]


class LoraKeysLost(ExampleModel):
    def convert_lora_weights_before_load(self, state_dict: Any) -> Any:
        kept = {key: tensor for key, tensor in state_dict.items() if "blocks.1" not in key}
        return super().convert_lora_weights_before_load(kept)


class InnerLoraNames(ExampleModel):
    def convert_lora_weights_before_save(self, state_dict: Any) -> Any:
        return {f"module.{key}": tensor for key, tensor in state_dict.items()}


class LokrAlphaLost(ExampleModel):
    def convert_lora_weights_before_save(self, state_dict: Any) -> Any:
        kept = {key: tensor for key, tensor in state_dict.items() if not key.endswith(".alpha")}
        return super().convert_lora_weights_before_save(kept)


class OldLokrNamesLost(ExampleModel):
    """Its own keys survive, the names of LoKr's old format do not."""

    use_old_lokr_format = True

    def convert_lora_weights_before_load(self, state_dict: Any) -> Any:
        kept = {key: tensor for key, tensor in state_dict.items() if not key.startswith("lycoris_blocks_1")}
        return super().convert_lora_weights_before_load(kept)


class SavesHalf(ExampleModel):
    def save_model(self, output_path: Path, meta: Any, save_dtype: Any) -> None:
        super().save_model(output_path, meta, torch.bfloat16)


class GlobalNoise(ExampleModel):
    def starting_noise(self, gen_config: Any, generator: Any) -> Any:
        return torch.randn(1, 4, gen_config.height // 8, gen_config.width // 8)


class WrongShape(ExampleModel):
    def get_noise_prediction(self, *args: Any, **kwargs: Any) -> Any:
        return super().get_noise_prediction(*args, **kwargs)[:, :2]


class OtherDivisibility(ExampleModel):
    def get_bucket_divisibility(self) -> int:
        return 8


class OldLokr(ExampleModel):
    use_old_lokr_format = True


MUTANTS: list[tuple[type[ExampleModel], Callable[[Subject], Any]]] = [
    (NegatedTarget, sampling.closure),
    (FlippedTimeInSampling, sampling.closure),
    (SwappedGuidance, rules.guidance_is_combined_in_order),
    (FlippedNoise, rules.noise_runs_from_clean_to_noise),
    (DroppedVaeShift, rules.decoding_undoes_encoding),
    (ShiftDroppedBothWays, rules.decoding_undoes_encoding),
    (SampledPosterior, rules.encoding_is_repeatable),
    (PaddingSeen, rules.mixed_lengths_change_nothing),
    (MaskOnTheWrongSide, rules.mixed_lengths_change_nothing),
    (ThreeAxisEmbeds, rules.embeds_are_two_dimensional),
    (EmbedsDependOnNeighbours, rules.embeds_are_two_dimensional),
    (NothingForEmptyPrompts, rules.empty_prompt_works),
    (IgnoresText, rules.text_matters),
    (GatedOnTraining, rules.checkpointing_changes_memory_only),
    (CheckpointingForgotten, rules.checkpointing_changes_memory_only),
    (FourAxisLinear, rules.linears_see_two_or_three_axes),
    (AnyBackend, rules.attention_backends_agree),
    (UnnamedSpace, rules.space_versions_are_named),
    (LoraKeysLost, adapters.lora_keys_round_trip),
    (InnerLoraNames, adapters.lora_keys_round_trip),
    (LokrAlphaLost, adapters.lokr_keys_round_trip),
    (OldLokrNamesLost, adapters.lokr_keys_round_trip),
    (SavesHalf, rules.save_and_reload_is_exact),
    (GlobalNoise, sampling.seeds_decide),
    (WrongShape, rules.prediction_fits_the_target),
    (OtherDivisibility, rules.names_agree),
    (OldLokr, rules.names_agree),
]


@pytest.mark.parametrize(("mutant", "rule"), MUTANTS, ids=lambda value: value.__name__)
def test_a_seeded_fault_is_seen_by_the_rule_meant_for_it(
    mutant: type[ExampleModel], rule: Callable[[Subject], Any], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(conform, "RULES", (rule,))
    monkeypatch.setattr(sampling, "MOST_STEPS", 400)  # the template itself passes its closure within these
    assert list(broken(subject_for(ARCHS[0], tmp_path, mutant))) == [rule.__name__]


def test_the_mutants_start_from_something_that_passes_every_rule_meant_for_them(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(conform, "RULES", tuple(dict.fromkeys(rule for _, rule in MUTANTS if rule is not sampling.closure)))
    assert broken(subject_for(ARCHS[0], tmp_path)) == {}
