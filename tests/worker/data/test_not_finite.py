"""Latents, texts, sounds and first frames with NaN or infinite values: made again in fp32, else named; never kept."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from models import catalog
from models.base import BaseModel
from models.data import datasets
from models.data.fileindex import FileIndex, stamp_of
from models.precise import NotFinite, finite, in_fp32, not_finite
from models.prompt_embeds import AdvancedPromptEmbeds
from models.tiny import tiny_vae
from worker.data.batches import Batches
from worker.data.cache import CHECKSUM, DiskCache, checksum
from worker.data.encode import AUDIO, FIRST_FRAME, LATENTS, Latents
from worker.report import Reporter
from worker.sampling.preview import encode
from worker.training.loop import naming

SPOILT = "odd"
LEVELS = {"a": 126, "b": 127, "c": 128, "d": 255}


class Encoders(BaseModel):
    """A VAE in fp16 that overflows on a white picture; its text encoder gives NaN for one caption, in any precision."""

    def __init__(self, spoilt_white: bool = False) -> None:
        super().__init__("cpu", SimpleNamespace(vae_dtype="fp16"), dtype="fp32")
        torch.manual_seed(0)
        self.vae = tiny_vae(latent_channels=4)
        with torch.no_grad():
            self.vae.encoder.conv_in.weight.fill_(torch.nan if spoilt_white else 2600.0)  # 27 of them overflow on values of 1
        self.vae.half().requires_grad_(False)

    def get_bucket_divisibility(self) -> int:
        return 16

    def get_prompt_embeds(self, prompt: list[str]) -> AdvancedPromptEmbeds:
        return AdvancedPromptEmbeds(text_embeds=[torch.full((1, 2), torch.nan if SPOILT in text else 1.0) for text in prompt])


@pytest.fixture
def batches(home: Path, tmp_path: Path, tiny_job: Any) -> Any:
    """`batches(model, captions, **dataset)`: what a job makes of three gray pictures and a white one, which is the last, named d.png."""
    folder = home / "datasets" / "set"

    def make(model: BaseModel, captions: str = "abcd", **dataset: Any) -> Batches:
        folder.mkdir(parents=True, exist_ok=True)
        for name, caption in zip("abcd", captions, strict=True):
            Image.new("RGB", (32, 32), (LEVELS[name],) * 3).save(folder / f"{name}.png")
            (folder / f"{name}.txt").write_text(SPOILT if caption == "!" else caption)
        job = tiny_job(datasets=[{"folder_path": "set", "resolution": [32], "cache_latents_to_disk": True, **dataset}])
        spec = catalog.parse_job(job)
        surveys = [datasets.survey(each, datasets.Folders(folder)) for _, each in datasets.every_dataset(spec)]
        made = Batches(model, spec, surveys)
        made.cache(Reporter(tmp_path / "run", 1))
        return made

    return make


def kept(home: Path) -> list[Path]:
    """The cache's files, each of them finite."""
    found = list((home / "cache").rglob("*.safetensors"))
    assert all(not not_finite(load_file(path)) for path in found)
    return found


def test_latents_that_overflow_in_fp16_are_made_again_in_fp32(home: Path, batches: Any, caplog) -> None:
    model = Encoders()
    before = {name: tensor.clone() for name, tensor in model.vae.state_dict().items()}
    white = torch.ones(1, 3, 32, 32)
    with torch.no_grad():
        assert not_finite(model.encode_images(white))
        assert not not_finite(model.encode_images(torch.zeros(1, 3, 32, 32)))
    made = batches(model)
    assert len(kept(home)) == 8  # four pictures and their captions
    (entry,) = [entry for entry in made.entries if entry.item.name == "d.png"]
    with torch.no_grad(), in_fp32([model.vae]):
        assert torch.equal(made._latents.stored(entry)[LATENTS], model.encode_images(white)[0])
    assert [f"{entry.item.path} were not finite in float16, and are made again in fp32" in text for text in caplog.messages] == [
        True
    ]
    after = model.vae.state_dict()
    assert all(torch.equal(tensor, after[name]) and after[name].dtype == torch.float16 for name, tensor in before.items())


@pytest.mark.parametrize("dataset", [{}, {"cache_latents_to_disk": False, "cache_latents": True}], ids=["on disk", "in memory"])
def test_a_picture_whose_latents_stay_bad_is_named(home: Path, batches: Any, dataset: Any) -> None:
    with pytest.raises(NotFinite) as refused:
        batches(Encoders(spoilt_white=True), **dataset)
    assert refused.value.code == "not_finite"
    said = f"{refused.value.message} {refused.value.hint}"
    assert (
        f"the latents of {home / 'datasets/set/a.png'} are not finite in float16 (NaN or infinite: latents), nor in fp32" in said
    )
    assert "set on_bad_file to skip" in said and "learning rate" not in said
    kept(home)


def test_a_bad_caption_is_named_or_its_file_left_out(home: Path, batches: Any, caplog) -> None:
    with pytest.raises(NotFinite, match=rf"the embeds of the caption '{SPOILT}' of .*b\.png are not finite"):
        batches(Encoders(), "a!cd")
    made = batches(Encoders(), "a!c!", on_bad_file="skip")
    assert sorted(entry.item.name for entry in made.entries) == ["a.png", "c.png"]
    assert made.num_batches == made.order.num_batches
    assert any(text.startswith("2 of 4 files are left out, since on_bad_file is skip: the embeds of") for text in caplog.messages)
    assert all(torch.isfinite(next(made.from_number(0)).batch.latents).flatten())
    with pytest.raises(NotFinite, match="no file is left to train on"):
        batches(Encoders(), "!!!!", on_bad_file="skip")
    kept(home)


def test_a_prompt_whose_embeds_are_bad_is_named(tmp_path: Path) -> None:
    wanted: Any = [SimpleNamespace(prompt=SPOILT, negative_prompt="", control_images=[])]
    with pytest.raises(NotFinite, match=f"the embeds of the prompt '{SPOILT}' are not finite"):
        encode(Encoders(), wanted, Reporter(tmp_path, 1))


def test_first_frames_and_sounds_are_looked_at_too(tmp_path: Path) -> None:
    class Moving(Encoders):
        def encode_images(self, image_list: Any, *_: Any) -> torch.Tensor:
            return torch.stack([torch.full((1,), torch.nan if len(each) == 1 else 0.0) for each in image_list])

        def encode_audio(self, audio_data_list: Any) -> torch.Tensor:
            return torch.full((1, 1), torch.inf)

    facts = SimpleNamespace(do_i2v=True, do_audio=True, cache_latents=False, cache_latents_to_disk=False)
    entry: Any = SimpleNamespace(dataset=0, item=SimpleNamespace(path=Path("clip.mp4"), name="clip.mp4"))
    latents = Latents(Moving(), None, [facts], tmp_path)  # type: ignore[arg-type, list-item]
    latents._facts = lambda _: {}  # type: ignore[method-assign]
    with pytest.raises(NotFinite, match=rf"the latents of clip\.mp4 .*\(NaN or infinite: {FIRST_FRAME}, {AUDIO}\)"):
        latents.encode(entry, torch.zeros(2, 3, 4, 4), {"waveform": torch.zeros(1, 4)})


def test_a_bad_entry_of_an_earlier_version_counts_as_damaged(tmp_path: Path, caplog) -> None:
    cache, bad = DiskCache(tmp_path), {LATENTS: torch.full((2, 2), torch.inf)}
    with pytest.raises(ValueError, match="values of latents are not finite, and no cache keeps such"):
        cache.write("abcd", bad)
    cache.path("abcd").parent.mkdir(parents=True)
    save_file(bad, cache.path("abcd"), {CHECKSUM: checksum(bad)})
    index = FileIndex(tmp_path / "index")
    index.remember(
        [(str(cache.path("abcd")), stamp_of(cache.path("abcd")), {})], own=True
    )  # as earlier versions noted whole ones
    assert cache.sound(["abcd"], index) == set()
    assert not cache.path("abcd").exists()
    assert "is damaged (values of latents are not finite) and is made again" in caplog.text
    cache.write("abcd", {LATENTS: torch.ones(2), "attention_mask": torch.full((2,), -torch.inf)})
    assert cache.sound(["abcd"], index) == {"abcd"}
    index.close()


def test_an_encoder_that_cannot_be_in_fp32_is_said() -> None:
    class Fails(Encoders):
        def encode_images(self, image_list: Any, *_: Any) -> torch.Tensor:
            if self.vae.dtype == torch.float32:
                raise RuntimeError("expected Half but found Float")
            return torch.full((1,), torch.nan)

    model = Fails()
    with pytest.raises(NotFinite, match=r"in float16 .*, and encoding in fp32 failed: expected Half but found Float"):
        finite(model, "latents", lambda: model.encode_images([]), "the latents of a.png")
    assert model.vae.dtype == torch.float16 and model.vae_torch_dtype == torch.float16


def test_a_step_says_which_files_its_bad_control_picture_belongs_to() -> None:
    taken: Any = SimpleNamespace(batch=SimpleNamespace(file_items=[SimpleNamespace(path="a.png"), SimpleNamespace(path="b.png")]))
    with pytest.raises(NotFinite, match=r"the latents of a control picture .*; it belongs to a\.png, b\.png"), naming(taken):
        raise NotFinite("the latents of a control picture are not finite")
