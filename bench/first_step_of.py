"""One process of `bench.first_step`: `python -m bench.first_step_of ours|bare HOME FOLDER` ends with its first training step."""

import sys
from pathlib import Path
from typing import Any

from bench.first_step import BLOCKS, LENGTH, PICTURES, RANK, say_and_leave


def ours(home: Path, folder: Path) -> None:
    from worker import run

    def step(*_: Any) -> None:
        say_and_leave()

    run.Reporter.step = step  # type: ignore[method-assign]
    (home / "cache").rename(folder / "old") if (home / "cache").exists() else None  # it encodes, as the bare loop does
    run.main(str(home / "job.json"), str(folder / "run"))


def bare(home: Path, _: Path) -> None:
    import numpy as np
    import torch
    from diffusers import AutoencoderKLFlux2, Flux2Transformer2DModel
    from peft import LoraConfig
    from PIL import Image
    from transformers import AutoTokenizer, Qwen3Model

    torch.set_num_threads(1)
    model = home / "models" / "tiny"
    network: Any = Flux2Transformer2DModel.from_pretrained(model / "transformer").requires_grad_(False)
    vae: Any = AutoencoderKLFlux2.from_pretrained(model / "vae").requires_grad_(False)
    tokenizer = AutoTokenizer.from_pretrained(model / "tokenizer")
    encoder = Qwen3Model.from_pretrained(model / "text_encoder", dtype=torch.float32).requires_grad_(False)
    layers = [name for name, part in network.named_modules() if isinstance(part, torch.nn.Linear) and name.startswith(BLOCKS)]
    network.add_adapter(LoraConfig(r=RANK, lora_alpha=RANK, target_modules=layers))
    params = [param for param in network.parameters() if param.requires_grad]
    optimizer = torch.optim.AdamW(params, lr=1e-4, fused=True)
    data = home / "datasets" / "bench"
    latents, texts = [], []
    with torch.no_grad():
        for index in range(PICTURES):
            said = [{"role": "user", "content": (data / f"{index}.txt").read_text()}]
            text = tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True, enable_thinking=False)
            tokens = tokenizer(text, return_tensors="pt", padding="max_length", truncation=True, max_length=LENGTH)
            hidden = encoder(**tokens, output_hidden_states=True, use_cache=False).hidden_states
            texts.append(torch.cat([hidden[layer] for layer in (9, 18, 27)], dim=-1))
            pixels = torch.from_numpy(np.asarray(Image.open(data / f"{index}.png").convert("RGB")).copy())
            mode = vae.encode(pixels.permute(2, 0, 1)[None] / 127.5 - 1).latent_dist.mode()
            latents.append(torch.nn.functional.pixel_unshuffle(mode, 2))
    x = latents[0]
    tokens_of_x = x.flatten(2).transpose(1, 2)
    noise, t = torch.randn_like(tokens_of_x), torch.rand(1)
    places = torch.cartesian_prod(*(torch.arange(n) for n in (1, *x.shape[-2:], 1)))[None]
    words = torch.cartesian_prod(*(torch.arange(n) for n in (1, 1, 1, LENGTH)))[None]
    predicted = network(
        hidden_states=(1 - t) * tokens_of_x + t * noise, timestep=t, encoder_hidden_states=texts[0], img_ids=places, txt_ids=words,
        return_dict=False,
    )[0]  # fmt: skip
    torch.nn.functional.mse_loss(predicted, noise - tokens_of_x).backward()
    torch.nn.utils.clip_grad_norm_(params, 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    say_and_leave()


if __name__ == "__main__":
    {"ours": ours, "bare": bare}[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
