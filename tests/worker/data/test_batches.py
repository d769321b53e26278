"""What a micro-batch holds beside latents: masks, control pictures, weights, preservation, and what is held out."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image

from models import catalog
from models.base import BaseModel
from models.data import datasets
from models.data.datasets import Folders
from models.prompt_embeds import AdvancedPromptEmbeds
from models.spec import DatasetSpec, TrainSpec
from worker.data.batches import Batches, TrainBatch
from worker.report import Reporter


class Plain(BaseModel):
    """Latents are the pixels, embeds as long as the text."""

    def __init__(self) -> None:
        super().__init__("cpu", SimpleNamespace(), dtype="fp32")

    def get_bucket_divisibility(self) -> int:
        return 16

    def encode_images(self, image_list: Any, *_: Any) -> torch.Tensor:
        return torch.stack(list(image_list))

    def get_prompt_embeds(self, prompt: list[str]) -> AdvancedPromptEmbeds:
        return AdvancedPromptEmbeds(text_embeds=[torch.full((max(1, len(text)), 1), float(len(text))) for text in prompt])


@pytest.fixture
def batches(tmp_path: Path, tiny_job: Any, pictures: Callable[..., Path]) -> Any:
    """`batches(dataset, ..., train={}, model=None)`, each dataset with a folder of five pictures of its own."""

    def make(*given: dict[str, Any], model: Any = None, validation: Any = None, **train: Any) -> Batches:
        spec = catalog.parse_job(tiny_job(validation=validation))
        assert isinstance(spec, TrainSpec)
        made = [DatasetSpec(**{"folder_path": f"set{number}", **each}) for number, each in enumerate(given)]
        spec = spec.model_copy(update={"datasets": made, "train": spec.train.model_copy(update=train), "trigger_word": "number"})
        named = datasets.every_dataset(spec)
        for _, dataset in named:
            folder = tmp_path / "home" / "datasets" / dataset.folder_path
            if not folder.exists():
                pictures(dataset.folder_path, 5)
        surveys = [datasets.survey(dataset, folders_of(tmp_path, dataset)) for _, dataset in named]
        batches_of = Batches(model or Plain(), spec, surveys)
        batches_of.cache(Reporter(tmp_path / "run", 1))
        return batches_of

    return make


def folders_of(tmp_path: Path, dataset: DatasetSpec) -> Folders:
    controls = tuple(tmp_path / name for key in ("control_path", "control_path_1") if (name := getattr(dataset, key)))
    masks = tmp_path / dataset.mask_path if dataset.mask_path else None
    return Folders(tmp_path / "home" / "datasets" / dataset.folder_path, masks, controls)


def grey(folder: Path, names: str, level: int = 64, size: tuple[int, int] = (32, 32)) -> None:
    folder.mkdir()
    for name in names:
        Image.new("RGB", size, (level, level, level)).save(folder / f"00{name}.png")


def take(made: Batches, count: int) -> list[TrainBatch]:
    stream = made.from_number(0)
    return [next(stream) for _ in range(count)]


def test_each_dataset_s_settings_come_with_its_batches(batches) -> None:
    made = batches({"loss_multiplier": 0.5}, {"is_reg": True, "prior_reg": True, "loss_multiplier": 3.0}, gradient_accumulation=2)
    for number, each in enumerate(take(made, 16)):
        reg = number // 2 % 2 == 1
        assert (each.step, each.first) == (number // 2, number % 2 * 2)
        assert (each.is_reg, each.prior_reg, each.loss_multiplier) == ((True, True, 3.0) if reg else (False, False, 0.5))
        folders = {Path(item.path).parent.name for item in each.batch.file_items}
        assert folders == {"set1" if reg else "set0"}


def test_masks_come_with_their_pictures_and_ones_where_there_is_none(batches, tmp_path) -> None:
    grey(tmp_path / "masks", "0123")
    for each in take(batches({"mask_path": "masks", "mask_min_value": 0.5}), 9):
        assert each.batch.mask_tensor.shape == (len(each.batch.captions), 1, 32, 32)
        for item, mask in zip(each.batch.file_items, each.batch.mask_tensor, strict=True):
            wanted = 1.0 if item.path.endswith("004.png") else 0.5 + 0.5 * 64 / 255
            torch.testing.assert_close(mask, torch.full((1, 32, 32), wanted))


def test_one_control_picture_is_a_tensor_and_several_are_lists_at_their_own_sizes(batches, tmp_path) -> None:
    grey(tmp_path / "one", "01234", 51, (64, 64))
    grey(tmp_path / "two", "01234", 102, (80, 48))
    for each in take(batches({"control_path": "one"}), 3):
        assert each.batch.control_tensor_list is None
        torch.testing.assert_close(each.batch.control_tensor, torch.full_like(each.batch.latents, 0.2))
    for each in take(batches({"control_path": "one", "control_path_1": "two"}), 3):
        assert each.batch.control_tensor is None
        for images in each.batch.control_tensor_list:
            assert [tuple(image.shape) for image in images] == [(3, 64, 64), (3, 48, 80)]
            assert [float(image.mean()) for image in images] == pytest.approx([0.2, 0.4])
    model = Plain()
    model.use_raw_control_images = True
    [each] = take(batches({"control_path": "one"}, model=model), 1)
    assert {tuple(image.shape) for images in each.batch.control_tensor_list for image in images} == {(3, 64, 64)}


def test_embeds_keep_their_natural_length_and_follow_the_caption(batches) -> None:
    for each in take(batches({"caption_dropout_rate": 0.5}), 20):
        assert [len(item) for item in each.embeds.text_embeds] == [max(1, len(caption)) for caption in each.batch.captions]
        assert each.preservation_embeds is None


def test_the_class_is_preserved_with_the_very_captions_of_the_step(batches) -> None:
    made = batches({"caption_dropout_rate": 0.4}, diff_output_preservation=True, diff_output_preservation_class="an old thing")
    seen = set()
    for each in take(made, 20):
        wanted = [caption.replace("number", "an old thing") for caption in each.batch.captions]
        assert [len(item) for item in each.preservation_embeds.text_embeds] == [max(1, len(caption)) for caption in wanted]
        seen |= set(each.batch.captions)
    assert seen > {"", "colour number 0"}


def test_the_blank_prompt_is_preserved_beside_any_caption(batches) -> None:
    for each in take(batches({}, blank_prompt_preservation=True), 3):
        assert [float(item) for item in each.preservation_embeds.text_embeds] == [0.0] * len(each.batch.captions)


def test_shuffled_captions_are_encoded_at_each_step(batches, tmp_path) -> None:
    made = batches({"shuffle_tokens": True, "default_caption": ""}, cache_text_embeddings=False)
    for each in take(made, 6):
        assert [len(item) for item in each.embeds.text_embeds] == [len(caption) for caption in each.batch.captions]


def held(made: Batches) -> list[TrainBatch]:
    return list(made.held_out())


def test_a_share_is_held_out_in_fixed_batches_and_never_trained(batches, pictures) -> None:
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in pictures("set0", 5).glob("*.png")]
    ranks = sorted(int(hashlib.sha256(f"held out/{digest}".encode()).hexdigest(), 16) / 2**256 for digest in digests)
    fraction = (ranks[2] + ranks[3]) / 2  # three lie below
    made = batches({"flip_x": True, "caption_dropout_rate": 1.0, "num_repeats": 2}, validation={"fraction": fraction})
    once, twice = held(made), held(made)
    assert [each.batch.captions for each in once] == [each.batch.captions for each in twice]
    assert [(each.first, len(each.batch.captions)) for each in once] == [(0, 2), (2, 1)]
    assert all(torch.equal(a.batch.latents, b.batch.latents) for a, b in zip(once, twice, strict=True))
    paths = {item.path for each in once for item in each.batch.file_items}
    trained = {item.path for each in take(made, 30) for item in each.batch.file_items}
    assert (len(paths), len(trained)) == (3, 2)
    assert paths.isdisjoint(trained)
    assert all("colour number" in caption for each in once for caption in each.batch.captions)


def test_a_dataset_of_its_own_is_held_out_whole(batches, pictures) -> None:
    pictures("other", 5, size=48)
    made = batches({}, validation={"dataset": {"folder_path": "other"}})
    once = held(made)
    assert [len(each.batch.captions) for each in once] == [2, 2, 1]
    assert {Path(item.path).parent.name for each in once for item in each.batch.file_items} == {"other"}
    assert {Path(item.path).parent.name for each in take(made, 9) for item in each.batch.file_items} == {"set0"}


def test_without_validation_nothing_is_held_out(batches) -> None:
    assert held(batches({})) == []


def test_an_odd_number_is_used_whole_and_a_short_batch_stays_short(batches) -> None:
    sizes = [len(each.batch.captions) for each in take(batches({}, batch_size=4), 6)]
    assert sorted(sizes) == [1, 1, 1, 4, 4, 4]


def test_the_data_s_hash_is_a_digest(batches) -> None:
    assert len(bytes.fromhex(batches({}).dataset_hash)) == 32
