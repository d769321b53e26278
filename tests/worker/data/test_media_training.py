"""Real jobs of three steps over real folders, for models that see more than a picture: control pictures, clips, sounds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from models import catalog
from models.batch import Batch
from models.errors import UserError
from models.extensions import Extension
from tests.media_files import shades, write_clip, write_sound
from tests.models import variants
from worker.data.batches import Batches
from worker.data.decode import levels_of, pixels_of, signed_pixels
from worker.data.encode import Latents


class SoundModel(variants.ExampleModel):
    """Sounds alone: a waveform, laid out as a picture of latents."""

    def encode_audio(self, audio_data_list: Any) -> torch.Tensor:
        squares = [sound["waveform"][:, :256].mean(dim=0).reshape(1, 16, 16).repeat(4, 1, 1) for sound in audio_data_list]
        return torch.stack(squares).to(self.torch_dtype)


class LongSoundModel(SoundModel):
    """The latents of a longer sound are wider: one column for 500 samples."""

    def encode_audio(self, audio_data_list: Any) -> torch.Tensor:
        waves = [sound["waveform"].mean(dim=0) for sound in audio_data_list]
        columns = [len(wave) // 500 for wave in waves]
        rows = [wave[: 496 * count].reshape(1, 16, count, 31).mean(-1) for wave, count in zip(waves, columns, strict=True)]
        return torch.stack([each.repeat(4, 1, 1) for each in rows]).to(self.torch_dtype)


def pictures(
    folder: Path, names: tuple[str, ...] = ("a", "b", "c"), size: tuple[int, int] = (32, 32), captions: bool = True
) -> str:
    folder.mkdir(parents=True)
    for number, name in enumerate(names):
        Image.effect_noise(size, 50 + number).convert("RGB").save(folder / f"{name}.png")
        if captions:
            (folder / f"{name}.txt").write_text(f"picture {name}")
    return str(folder)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Batch]:
    """All batches that a job trains on."""
    batches: list[Batch] = []
    make = Batches._batch

    def watched(self: Batches, *args: Any) -> Any:
        made = make(self, *args)
        batches.append(made.batch)
        return made

    monkeypatch.setattr(Batches, "_batch", watched)
    return batches


@pytest.fixture
def job(tmp_path: Path, run_here: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Any:
    """`job(cls, capabilities, dataset)` trains the variant for three steps and gives the job's folder."""

    def make(cls: type, capabilities: tuple[str, ...], dataset: dict[str, Any], channels: int = 4, **train: Any) -> Path:
        modality = "audio" if issubclass(cls, SoundModel) else "image"
        weights = tmp_path / cls.__name__
        if not weights.exists():
            weights.mkdir()
            variants.subject(cls, weights, *capabilities, in_channels=channels)
        code = f"{cls.__module__}:{cls.__name__}"
        card = variants.card(*capabilities, modality=modality).model_copy(update={"name": "variant", "code": code})
        monkeypatch.setitem(
            vars(catalog), "_registered", (len(str(weights)), {"variant": Extension("variant", "here", "1", card)})
        )
        spec = {
            "kind": "train",
            "name": "t",
            "model": {"arch": "variant", "name_or_path": str(weights), "dtype": "fp32"},
            "network": {"linear": 4},
            "datasets": [dataset],
            "train": {"steps": 3, "batch_size": 2, "disable_sampling": True, **train},
        }
        return run_here(spec, folder=f"run{len(list(tmp_path.glob('run*')))}")

    return make


def test_an_edit_job_gets_its_control_picture_cut_like_the_picture(job, seen, tmp_path, weights_of) -> None:
    folder = pictures(tmp_path / "data", size=(48, 32))
    control = pictures(tmp_path / "control", size=(48, 32), captions=False)
    done = job(variants.EditModel, ("edit",), {"folder_path": folder, "control_path": control, "flip_x": True}, channels=8)
    assert weights_of(done)
    assert {batch.control_tensor.shape[1:] for batch in seen} == {(3, 32, 48)}
    assert all(batch.control_tensor.min() >= 0 for batch in seen)


def test_a_multi_reference_job_gets_every_reference_at_its_own_size(job, seen, tmp_path, weights_of) -> None:
    dataset = {
        "folder_path": pictures(tmp_path / "data"),
        "control_path": pictures(tmp_path / "one", size=(64, 64), captions=False),
        "control_path_1": pictures(tmp_path / "two", size=(64, 64), captions=False),
    }
    assert weights_of(job(ReducedReferences, ("edit", "multi_reference"), dataset, channels=8))
    assert all(batch.control_tensor is None for batch in seen)
    sizes = {tuple(image.shape) for batch in seen for images in batch.control_tensor_list for image in images}
    assert sizes == {(3, 64, 64)}
    assert all(len(images) == 2 for batch in seen for images in batch.control_tensor_list)


class ReducedReferences(variants.MultiReferenceModel):
    """References of twice the picture's size."""

    def condition_noisy_latents(self, latents: torch.Tensor, batch: Batch) -> torch.Tensor:
        assert batch.control_tensor_list is not None
        smaller = [[image[:, ::2, ::2] for image in images] for images in batch.control_tensor_list]
        return super().condition_noisy_latents(latents, Batch(latents, [], control_tensor_list=smaller))


def test_a_text_encoder_sees_the_control_pictures(job, seen, tmp_path, weights_of) -> None:
    folder = pictures(tmp_path / "data")
    control = pictures(tmp_path / "control", captions=False)
    dataset = {"folder_path": folder, "control_path": control, "caption_dropout_rate": 0.5}
    cached = weights_of(job(variants.SeeingModel, ("edit",), dataset, channels=8))
    fresh = weights_of(job(variants.SeeingModel, ("edit",), dataset, channels=8, cache_text_embeddings=False))
    assert all(torch.equal(tensor, fresh[name]) for name, tensor in cached.items())


def clips(folder: Path, *, sound: bool = False) -> str:
    for number in range(3):
        write_clip(folder / f"{number}.mkv", shades(9 + number), tone=(8000, 1.5) if sound else None)
        (folder / f"{number}.txt").write_text(f"clip {number}")
    return str(folder)


def test_a_video_job_trains_on_clips_and_stills(job, seen, tmp_path, weights_of) -> None:
    folder = clips(tmp_path / "data")
    Image.new("RGB", (32, 32), (9, 9, 9)).save(tmp_path / "data" / "still.png")
    (tmp_path / "data" / "still.txt").write_text("a still")
    dataset = {"folder_path": folder, "num_frames": 5, "fps": 10, "cache_latents": False, "cache_latents_to_disk": False}
    assert weights_of(job(variants.VideoModel, ("video",), dataset, batch_size=3))
    shapes = {(batch.num_frames, tuple(batch.tensor.shape[1:]), tuple(batch.latents.shape[1:])) for batch in seen}
    assert shapes == {(5, (5, 3, 32, 32), (4, 5, 4, 4)), (1, (1, 3, 32, 32), (4, 1, 4, 4))}


def test_an_image_to_video_job_is_given_first_frames(job, seen, tmp_path, weights_of) -> None:
    dataset = {"folder_path": clips(tmp_path / "data"), "num_frames": 5, "fps": 10, "do_i2v": True}
    assert weights_of(job(variants.ImageToVideoModel, ("video", "i2v"), dataset, channels=8))
    assert {tuple(batch.first_frame_latents.shape[1:]) for batch in seen} == {(4, 1, 4, 4)}
    assert all(batch.tensor is not None and batch.dataset_config.do_i2v for batch in seen)


CACHED: dict[str, Any] = {"cache_latents": True, "cache_latents_to_disk": True}


@pytest.fixture
def i2v_job(job: Any, tmp_path: Path) -> Callable[..., Path]:
    """`i2v_job(**dataset)`, over clips and a still."""
    folder = clips(tmp_path / "data")
    Image.effect_noise((32, 32), 60).convert("RGB").save(tmp_path / "data" / "still.png")
    (tmp_path / "data" / "still.txt").write_text("a still")
    dataset = {"folder_path": folder, "num_frames": 5, "fps": 10, "do_i2v": True, "flip_x": True}
    return lambda **more: job(variants.ImageToVideoModel, ("video", "i2v"), {**dataset, **more}, channels=8)


@pytest.mark.parametrize("memory", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_cached_image_to_video_job_equals_one_that_decodes_and_decodes_nothing_itself(
    i2v_job, seen, weights_of, same, monkeypatch, memory
) -> None:
    fresh = weights_of(i2v_job(cache_latents=False, cache_latents_to_disk=False))
    assert {batch.tensor.shape[1] for batch in seen} == {1, 5}
    seen.clear()
    assert same(weights_of(i2v_job(**CACHED | {"cache_latents": memory})), fresh)
    assert {tuple(batch.tensor.shape[1:]) for batch in seen} == {(1, 3, 32, 32)}
    monkeypatch.setattr("worker.data.load.Loader.pixels", lambda *_: pytest.fail("decoded although everything is cached"))
    assert same(weights_of(i2v_job(**CACHED | {"cache_latents": memory})), fresh)


@pytest.mark.parametrize("given", [True, False], ids=["do_i2v", "without_do_i2v"])
def test_a_model_that_looks_at_pixels_finds_them_beside_cached_latents(i2v_job, weights_of, same, monkeypatch, given) -> None:
    """Also where the cache holds no first frame: entries of before it did, and datasets that do not ask for it."""
    facts = Latents._facts
    monkeypatch.setattr(Latents, "_facts", lambda *given: {**facts(*given), "first": True})
    monkeypatch.setattr("worker.data.encode.FIRST_LEVELS", "nothing_reads_this")
    cached = weights_of(i2v_job(**CACHED, do_i2v=given))
    assert same(weights_of(i2v_job(cache_latents=False, cache_latents_to_disk=False, do_i2v=given)), cached)


def test_bytes_give_back_the_pixels_that_they_were_made_of() -> None:
    levels = torch.arange(256, dtype=torch.uint8)
    strip = signed_pixels(Image.frombytes("RGB", (256, 1), bytes(each for level in range(256) for each in [level] * 3)))
    assert torch.equal(levels_of(strip)[0, 0], levels)
    assert torch.equal(pixels_of(levels_of(strip)), strip)


def test_a_job_with_sound_gets_waveforms_and_their_latents(job, seen, tmp_path, weights_of) -> None:
    dataset = {"num_frames": 5, "fps": 10, "shrink_video_to_frames": False, "do_audio": True}
    dataset |= {"folder_path": clips(tmp_path / "data", sound=True), "cache_latents": False, "cache_latents_to_disk": False}
    assert weights_of(job(variants.AudioModel, ("video", "audio"), dataset))
    assert {tuple(sound["waveform"].shape) for batch in seen for sound in batch.audio_data} == {(2, 4000)}
    assert all(batch.audio_latents.shape[1:] == (40,) for batch in seen)


@pytest.mark.parametrize("cached", [True, False])
def test_clips_whose_sounds_are_of_unlike_lengths_share_a_batch(job, seen, tmp_path, weights_of, cached) -> None:
    """Longer than the frames it is cut, shorter it is filled up with silence."""
    for number, seconds in enumerate((0.2, 0.5, 1.5)):
        write_clip(tmp_path / "data" / f"{number}.mkv", shades(9), tone=(8000, seconds))
        (tmp_path / "data" / f"{number}.txt").write_text(f"clip {number}")
    dataset = {
        "folder_path": str(tmp_path / "data"),
        "num_frames": 5,
        "fps": 10,
        "shrink_video_to_frames": False,
        "do_audio": True,
    }
    caches = {"cache_latents": cached, "cache_latents_to_disk": cached}
    assert weights_of(job(variants.AudioModel, ("video", "audio"), {**dataset, **caches}))
    assert {tuple(batch.audio_latents.shape[1:]) for batch in seen} == {(40,)}
    assert {len(batch.audio_latents) for batch in seen} == {1, 2}


def test_sounds_that_a_model_cannot_batch_are_named(job, tmp_path, weights_of) -> None:
    for rate in (8000, 16000):
        write_clip(tmp_path / "data" / f"{rate}.mkv", shades(9), tone=(rate, 1.0))
        (tmp_path / "data" / f"{rate}.txt").write_text("a clip")
    dataset = {
        "folder_path": str(tmp_path / "data"),
        "num_frames": 5,
        "fps": 10,
        "shrink_video_to_frames": False,
        "do_audio": True,
    }
    with pytest.raises(
        UserError, match=r"audio_latents of unlike shapes cannot share a batch: \((4|8)0,\) of .*\.mkv.*batch_size to 1"
    ):
        job(variants.AudioModel, ("video", "audio"), dataset)
    assert weights_of(job(variants.AudioModel, ("video", "audio"), dataset, batch_size=1))


@pytest.mark.parametrize("cached", [True, False])
def test_sounds_share_batches_with_those_of_their_own_length(job, seen, tmp_path, weights_of, cached) -> None:
    for number, seconds in enumerate((0.5, 1.0, 0.5, 1.0)):
        write_sound(tmp_path / "data" / f"{number}.wav", seconds=seconds)
        (tmp_path / "data" / f"{number}.txt").write_text("a tone")
    caches = {"cache_latents": cached, "cache_latents_to_disk": cached}
    assert weights_of(job(LongSoundModel, ("audio",), {"folder_path": str(tmp_path / "data"), **caches}))
    assert {tuple(batch.latents.shape) for batch in seen} == {(2, 4, 16, 8), (2, 4, 16, 16)}


@pytest.mark.parametrize("extension", [".wav", ".flac"])
def test_an_architecture_of_sounds_trains_on_sound_files(job, seen, tmp_path, weights_of, extension) -> None:
    for number in range(3):
        write_sound(tmp_path / "data" / f"{number}{extension}")
        (tmp_path / "data" / f"{number}.txt").write_text("a tone")
    assert weights_of(job(SoundModel, ("audio",), {"folder_path": str(tmp_path / "data")}))
    assert {tuple(batch.latents.shape[1:]) for batch in seen} == {(4, 16, 16)}
