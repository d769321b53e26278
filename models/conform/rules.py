"""The rules, but for those that train: each says what it saw, or raises Broken. None when it does not apply."""

import ast
import inspect
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

from models.base import BaseModel
from models.batch import Batch
from models.conform.subject import PROMPTS, Broken, Subject
from models.errors import UserError
from models.flow import has_shift
from models.prompt_embeds import AdvancedPromptEmbeds, concat_prompt_embeds
from models.weights import DTYPES

OPTIONAL_KERNELS = ("flash_attn", "xformers", "sageattention", "apex", "triton")
SAME = 2e-5  # fp32 sums of another order: padding and chunking change it, nothing else may


def names_agree(s: Subject) -> str:
    _is(type(s.model).arch, s.card.name, "the class's `arch`")
    _is(s.model.get_bucket_divisibility(), s.card.bucket_divisibility, "get_bucket_divisibility()")
    _is(s.model.use_old_lokr_format, s.has("old_lokr_names"), "use_old_lokr_format, beside the card's capability old_lokr_names")
    _is(
        has_shift(s.model.noise_scheduler),
        s.has("schedule"),
        "a noise_scheduler with a shift, beside the card's capability schedule",
    )
    return f"{s.card.name}, sizes in multiples of {s.card.bucket_divisibility}"


def nothing_optional_at_import(s: Subject) -> str:
    """No file of the arch imports an optional kernel at its top, outside a try."""
    home = Path(inspect.getfile(type(s.model)))
    files = sorted(home.parent.rglob("*.py")) if (home.parent / "card.py").exists() else [home]
    for path in files:
        for node in ast.parse(path.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                if name.split(".")[0] in OPTIONAL_KERNELS:
                    raise Broken(
                        f"{path.name} line {node.lineno} imports {name} at its top; guard it, so that the model loads without it"
                    )
    return f"{len(files)} files without {', '.join(OPTIONAL_KERNELS)}"


def latents_have_their_shape(s: Subject) -> str:
    rank = 5 if s.has("video") else 4
    if s.latents.ndim != rank or s.latents.shape[0] != 2:
        raise Broken(f"encode_images gives {tuple(s.latents.shape)}; wanted (2, C, {'F, ' if rank == 5 else ''}h, w)")
    with torch.no_grad():
        pixels = s.model.decode_latents(s.latents, dtype=torch.float32)
    _is(tuple(pixels.shape), tuple(s.pixels().shape), "decode_latents(encode_images(x)).shape")
    return f"pixels {tuple(s.pixels().shape)} <-> latents {tuple(s.latents.shape)}"


def encoding_is_repeatable(s: Subject) -> str:
    with torch.no_grad():
        again = s.model.encode_images(list(s.pixels()), dtype=torch.float32)
    if not torch.equal(again, s.latents):
        raise Broken("encode_images gives other latents for the same pixels; use the posterior's mode, not a sample")
    return "the same pixels give the same latents"


def decoding_undoes_encoding(s: Subject) -> str | None:
    """The VAE's own reconstruction, without our scale and shift on either way, is the reference."""
    vae = s.model.vae
    if vae is None or not hasattr(vae, "encode") or s.has("video"):
        with torch.no_grad():
            back = s.model.decode_latents(s.latents, dtype=torch.float32)
        if vae is None and not torch.allclose(back, s.pixels(), atol=1e-5):
            raise Broken("there is no VAE, yet decode_latents does not give the pixels back")
        return "exact, without a VAE" if vae is None else None
    with torch.no_grad():
        mode = vae.encode(s.pixels()).latent_dist.mode()
        own = vae.decode(mode).sample
        ours = s.model.decode_latents(s.latents, dtype=torch.float32)
    worst = float((own - ours).abs().max())
    if worst > 1e-4:
        raise Broken(
            f"decode_latents(encode_images(x)) is {worst:.3g} away from the VAE's own reconstruction: a scale or shift is lost"
        )
    scale, shift = getattr(vae.config, "scaling_factor", None), getattr(vae.config, "shift_factor", None)
    if scale is not None and mode.shape == s.latents.shape:
        wanted = (mode - (shift or 0.0)) * scale
        if not torch.allclose(wanted, s.latents, atol=1e-5):
            raise Broken(f"latents are not (z - {shift or 0.0}) * {scale}, as the VAE's config says")
    return f"within {worst:.1e} of the VAE's own reconstruction"


def embeds_are_two_dimensional(s: Subject) -> str:
    embeds = s.embeds(*PROMPTS, batch=s.batch(s.latents))
    if len(embeds) != len(PROMPTS):
        raise Broken(f"{len(PROMPTS)} prompts give {len(embeds)} embeds")
    if not isinstance(embeds, AdvancedPromptEmbeds):
        return "the older container, padded tensors"
    again = s.embeds(PROMPTS[0], batch=s.batch(s.latents))
    if not torch.equal(again.text_embeds[0], embeds.text_embeds[0]):
        raise Broken("a prompt's embeds depend on the prompts beside it; caches would not equal a fresh encoding")
    with tempfile.TemporaryDirectory() as folder:
        again.save(Path(folder) / "embeds.safetensors")
        loaded = AdvancedPromptEmbeds.load(Path(folder) / "embeds.safetensors")
    if not all(torch.equal(loaded[key][0], again[key][0]) for key in again.keys()):  # noqa: SIM118
        raise Broken("saved and loaded embeds differ")
    return f"per prompt {[tuple(item.shape) for item in embeds.text_embeds]}"


def empty_prompt_works(s: Subject) -> str:
    embeds = s.embeds("", batch=s.batch(s.latents))
    first = embeds.text_embeds[0]
    if not torch.isfinite(first).all() or first.numel() == 0:
        raise Broken('the embeds of "" are empty or not finite; it stands for "no caption"')
    return f'"" gives {tuple(first.shape)}'


def noise_runs_from_clean_to_noise(s: Subject) -> str:
    noise = torch.randn(s.latents.shape, generator=torch.Generator().manual_seed(3))
    at = {t: s.model.add_noise(s.latents, noise, torch.tensor([float(t)])) for t in (0, 1000)}
    if not torch.allclose(at[0], s.latents, atol=1e-5):
        raise Broken("add_noise at timestep 0 is not the clean latents")
    if torch.allclose(at[1000], s.latents, atol=1e-2):
        raise Broken("add_noise at timestep 1000 is still the clean latents; 1000 is pure noise")
    torch.manual_seed(0)
    drawn = s.model.get_latent_noise_from_latents(torch.zeros(64, *s.latents.shape[1:]))
    if abs(float(drawn.mean())) > 0.1:
        raise Broken(f"noise has mean {float(drawn.mean()):.3f}, not 0")
    return f"0 is clean, 1000 is noise of deviation {float(drawn.std()):.2f}"


def prediction_fits_the_target(s: Subject) -> str:
    with torch.no_grad():
        prediction = s.predict(s.model)
    target = s.model.loss_target(torch.randn_like(s.latents), s.batch(s.latents), torch.tensor([1.0, 2.0]))
    _is(tuple(prediction.shape), tuple(target.shape), "the prediction's shape, against the target's")
    _is(tuple(target.shape), tuple(s.latents.shape), "the target's shape, against the latents'")
    if target.requires_grad:
        raise Broken("get_loss_target is not detached")
    if not torch.isfinite(prediction).all():
        raise Broken("the prediction is not finite")
    return f"{tuple(prediction.shape)}"


def mixed_lengths_change_nothing(s: Subject) -> str:
    """A batch of a short and a long caption predicts what each does alone."""
    batch = s.batch(s.latents)
    t = torch.tensor([300.0, 800.0])
    x = s.model.condition_noisy_latents(s.latents, batch)
    singles = [s.embeds(prompt, batch=batch) for prompt in PROMPTS]
    with torch.no_grad():
        joined = concat_prompt_embeds(singles, padding_side=s.model.te_padding_side)
        together = s.model.predict_noise(x, text_embeddings=joined, timestep=t, batch=batch)
        alone = [
            s.model.predict_noise(x[i : i + 1], text_embeddings=single, timestep=t[i : i + 1], batch=_item(batch, i))
            for i, single in enumerate(singles)
        ]
    worst = float((together - torch.cat(alone)).abs().max() / together.abs().max().clamp(min=1e-6))
    if worst > SAME:
        raise Broken(
            f"captions of different length in one batch change the prediction by {worst:.1e} (relative): padding is seen"
        )
    return f"equal within {worst:.1e}"


def text_matters(s: Subject) -> str:
    batch = s.batch(s.latents)
    t = torch.tensor([500.0, 500.0])
    with torch.no_grad():
        x = s.model.condition_noisy_latents(s.latents, batch)
        one = s.model.predict_noise(x, text_embeddings=s.embeds(PROMPTS[0], PROMPTS[0], batch=batch), timestep=t, batch=batch)
        two = s.model.predict_noise(x, text_embeddings=s.embeds(PROMPTS[1], PROMPTS[1], batch=batch), timestep=t, batch=batch)
    _moved(one, two, "another caption")
    return f"another caption moves the prediction by {float((one - two).abs().max()):.1e}"


def guidance_is_combined_in_order(s: Subject) -> str:
    """[unconditional, conditional], u + s (c - u)."""
    batch = s.batch(s.latents)
    t = torch.tensor([500.0, 500.0])
    cond, uncond = s.embeds(*PROMPTS, batch=batch), s.embeds("", "", batch=batch)
    with torch.no_grad():
        x = s.model.condition_noisy_latents(s.latents, batch)
        c = s.model.predict_noise(x, text_embeddings=cond, timestep=t, batch=batch)
        u = s.model.predict_noise(x, text_embeddings=uncond, timestep=t, batch=batch)
        both = s.model.predict_noise(
            x, conditional_embeddings=cond, unconditional_embeddings=uncond, guidance_scale=3.0, timestep=t, batch=batch
        )
    worst = float((both - (u + 3 * (c - u))).abs().max() / both.abs().max().clamp(min=1e-6))
    if worst > 10 * SAME:
        raise Broken(f"guidance 3 is {worst:.1e} (relative) away from u + 3 (c - u)")
    return f"u + s (c - u) within {worst:.1e}"


def linears_see_two_or_three_axes(s: Subject) -> str:
    """A quantized Linear's kernel takes no other on a GPU; a CPU does not complain, so the inputs are looked at."""
    seen: dict[str, int] = {}
    hooks = []
    parts = {"model": s.model.model, "text_encoder": s.model.text_encoder}
    for part, root in parts.items():
        for module in root if isinstance(root, list) else [root]:
            for name, layer in module.named_modules() if isinstance(module, nn.Module) else ():
                if isinstance(layer, nn.Linear):
                    hooks.append(layer.register_forward_pre_hook(_ranks(seen, f"{part}.{name}")))
    try:
        with torch.no_grad():
            s.predict(s.model)
    finally:
        for hook in hooks:
            hook.remove()
    wrong = {name: rank for name, rank in seen.items() if rank not in (2, 3)}
    if wrong:
        name, rank = next(iter(wrong.items()))
        raise Broken(f"{name} sees {rank} axes ({len(wrong)} such layers); reshape to 3 and back, quantized kernels take 2 or 3")
    return f"{len(seen)} layers"


def checkpointing_changes_memory_only(s: Subject) -> str:
    """Same loss, same gradients, less kept for the backward pass, in eval mode too."""
    plain = s.build()
    saved_plain, loss_plain, grads_plain = _backward(s, plain)
    checkpointed = s.build()
    checkpointed.enable_gradient_checkpointing()
    saved, loss, grads = _backward(s, checkpointed)
    if not torch.equal(loss, loss_plain):
        raise Broken(f"the loss changes from {float(loss_plain):.8f} to {float(loss):.8f}")
    for name, grad in grads.items():
        if not torch.allclose(grad, grads_plain[name], rtol=1e-5, atol=1e-8):
            raise Broken(f"the gradient of {name} changes")
    if saved > 0.8 * saved_plain:
        raise Broken(
            f"nothing is recomputed in eval mode with gradients ({saved} of {saved_plain} numbers kept): "
            "test torch.is_grad_enabled(), not self.training"
        )
    return f"{saved / saved_plain:.0%} of the numbers kept, same loss and gradients"


def attention_backends_agree(s: Subject) -> str:
    model = s.build()
    try:
        model.set_attention_backend("no-such-kernel")
    except (UserError, ValueError):
        pass
    else:
        raise Broken("set_attention_backend takes a name that no kernel has")
    with torch.no_grad():
        native = s.predict(model)
        model.set_attention_backend("native")
        if not torch.equal(native, s.predict(model)):
            raise Broken("native is not what the model starts with")
        try:
            model.set_attention_backend("flash")
        except (UserError, ValueError, RuntimeError, ImportError) as error:
            return f"native; flash says: {str(error)[:80]}"
        if not torch.allclose(native, s.predict(model), atol=1e-3):
            raise Broken("flash and native differ by more than 1e-3")
    return "native and flash agree"


def space_versions_are_named(s: Subject) -> str:
    text, latent = s.model.text_embedding_space_version, s.model.latent_space_version
    if not text or not latent:
        raise Broken(f"space versions must be texts that caches can be keyed by, not {text!r} and {latent!r}")
    return f"text {text}, latents {latent}"


def save_and_reload_is_exact(s: Subject) -> str:
    model = s.build()
    with torch.no_grad():
        for parameter in model.get_model_to_train().parameters():
            parameter.add_(0.01)
        wanted = s.predict(model)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "saved.safetensors"
        model.save_model(path, {"format": "pt"}, DTYPES["fp32"])
        beside = s.checkpoint if s.checkpoint.is_dir() else None
        model = s.build(name_or_path=str(path), te_name_or_path=beside and str(beside), vae_path=_vae_of(beside))
        with torch.no_grad():
            if not torch.equal(s.predict(model), wanted):
                raise Broken("what save_model wrote gives another prediction when it is loaded")
    return "bit for bit"


def control_matters(s: Subject) -> str | None:
    if not (s.has("edit") or s.has("i2v")):
        return None
    with torch.no_grad():
        one = s.predict(s.model, seed=1)
        if s.has("edit"):
            two = s.predict(s.model, seed=2)
        else:
            batch = s.batch(s.latents)
            assert batch.tensor is not None
            batch.tensor = -batch.tensor
            t = torch.tensor([300.0, 800.0])
            noise = torch.randn(s.latents.shape, generator=torch.Generator().manual_seed(3))
            noisy = s.model.condition_noisy_latents(s.model.add_noise(s.latents, noise, t), batch)
            two = s.model.predict_noise(noisy, text_embeddings=s.embeds(*PROMPTS, batch=batch), timestep=t, batch=batch)
    _moved(one, two, "another control image")
    return f"another one moves the prediction by {float((one - two).abs().max()):.1e}"


def stages_cover_all_timesteps(s: Subject) -> str | None:
    if not s.model.is_multistage:
        return None
    bounds = [1.0, *s.model.multistage_boundaries]
    if bounds[-1] != 0.0 or any(low >= high for high, low in pairwise(bounds)):
        raise Broken(f"multistage_boundaries {s.model.multistage_boundaries} must fall from below 1 to 0.0")
    stages = range(len(s.model.multistage_boundaries))
    if not s.model.trainable_multistage_boundaries or any(k not in stages for k in s.model.trainable_multistage_boundaries):
        raise Broken(f"trainable stages {s.model.trainable_multistage_boundaries} are not among {list(stages)}")
    return ", ".join(f"stage {k}: {s.model.multistage_range(k)}" for k in stages)


def audio_is_encoded(s: Subject) -> str | None:
    if not s.has("audio"):
        return None
    sound = {"waveform": torch.sin(torch.linspace(0, 400, 4000)).expand(2, -1), "sample_rate": 16000}
    with torch.no_grad():
        latents = s.model.encode_audio([sound, sound])
    if latents.shape[0] != 2 or not torch.isfinite(latents).all():
        raise Broken(f"encode_audio of two sounds gives {tuple(latents.shape)}; the first axis is the batch")
    return f"two sounds give {tuple(latents.shape)}"


def _backward(s: Subject, model: BaseModel) -> tuple[int, torch.Tensor, dict[str, torch.Tensor]]:
    """(numbers kept for the backward pass, loss, gradients), in eval mode with gradients."""
    root = model.get_model_to_train().requires_grad_(True).eval()
    kept = 0

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal kept
        kept += 0 if isinstance(tensor, nn.Parameter) else tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = s.predict(model).square().mean()
    forward = kept
    loss.backward()
    return forward, loss.detach(), {name: p.grad for name, p in root.named_parameters() if p.grad is not None}


def _item(batch: Batch, index: int) -> Batch:
    """One item of the batch as a batch."""
    cut = {
        name: value[index : index + 1]
        for name, value in vars(batch).items()
        if isinstance(value, torch.Tensor | list) and len(value) > index
    }
    return Batch(**{**vars(batch), **cut})


def _ranks(seen: dict[str, int], name: str) -> Callable[..., None]:
    def look(_module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        seen[name] = max(seen.get(name, 2), args[0].ndim) if args[0].ndim > 1 else 1

    return look


def _vae_of(folder: Path | None) -> str | None:
    return str(folder / "vae") if folder is not None and (folder / "vae").is_dir() else None


def _is(seen: Any, wanted: Any, what: str) -> None:
    if seen != wanted:
        raise Broken(f"{what}: {seen!r}; wanted {wanted!r}")


def _moved(one: torch.Tensor, two: torch.Tensor, what: str) -> None:
    if float((one - two).abs().max()) < 1e-7:
        raise Broken(f"{what} changes nothing in the prediction")
