"""What is encoded once: it equals a fresh encode, is shared, survives being cut off, and is made again when it is damaged."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from models import catalog
from models.base import BaseModel
from models.data import datasets
from models.data.fileindex import FileIndex
from models.prompt_embeds import AdvancedPromptEmbeds, PromptEmbeds
from models.spec import TrainSpec
from models.toolkit.embeds import PromptEmbeds as ForeignEmbeds
from worker.data.batches import Batches, TrainBatch
from worker.data.cache import DiskCache, Recent, embeds_from_tensors, embeds_to_tensors
from worker.report import Reporter, Stop


class Sampling(BaseModel):
    """Its latents are samples of a posterior, and its embeds random too; it counts what it encodes."""

    def __init__(self, home: Path) -> None:
        super().__init__("cpu", SimpleNamespace(), dtype="fp32")
        self.vae, self.text_encoder = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
        for part in (self.vae, self.text_encoder):
            torch.nn.init.eye_(part.weight)
            torch.nn.init.zeros_(part.bias)
        self.encoded: list[Any] = []
        self.cache_folder = home / "cache"

    def get_bucket_divisibility(self) -> int:
        return 16

    def encode_images(self, image_list: Any, *_: Any) -> torch.Tensor:
        self.encoded += list(image_list)
        return torch.stack([image + torch.randn_like(image) * self.vae.weight[0, 0].detach() for image in image_list])

    def get_prompt_embeds(self, prompt: list[str]) -> AdvancedPromptEmbeds:
        self.encoded += prompt
        return AdvancedPromptEmbeds(text_embeds=[torch.randn(len(text) + 1, 3) for text in prompt])


def spec_for(tiny_job: Any, train: dict[str, Any], **dataset: Any) -> TrainSpec:
    job = tiny_job(datasets=[{"folder_path": "x", "caption_dropout_rate": 0.3, "flip_x": True, **dataset}])
    spec = catalog.parse_job({**job, "train": {**job["train"], **train}})
    assert isinstance(spec, TrainSpec)
    return spec


@pytest.fixture
def batches(home: Path, tmp_path: Path, pictures: Callable[..., Path], tiny_job: Any) -> Any:
    """`batches()` is a new job's: its model, and its batches once it has cached."""
    folder = pictures(count=5)

    def make(reporter: Any = None, model: Any = None, train: Any = None, **dataset: Any) -> tuple[Sampling, Batches]:
        spec = spec_for(tiny_job, train or {}, **dataset)
        index = FileIndex(home / "cache" / "index.sqlite")
        model = model or Sampling(home)
        made = Batches(model, spec, [datasets.survey(spec.datasets[0], folder, index=index)])
        index.close()
        made.cache(reporter or Reporter(tmp_path / "run", 1))
        return model, made

    return make


def take(made: Batches, count: int = 12) -> list[TrainBatch]:
    stream = made.from_number(0)
    return [next(stream) for _ in range(count)]


def check_same(one: list[TrainBatch], other: list[TrainBatch]) -> None:
    for a, b in zip(one, other, strict=True):
        assert a.batch.captions == b.batch.captions
        assert torch.equal(a.batch.latents, b.batch.latents)
        assert all(torch.equal(x, y) for x, y in zip(a.embeds.text_embeds, b.embeds.text_embeds, strict=True))


FRESH = {"cache_latents": False, "cache_latents_to_disk": False, "train": {"cache_text_embeddings": False}}


@pytest.mark.parametrize(("memory", "disk"), [(True, True), (True, False), (False, True)])
def test_a_cached_run_equals_one_that_encodes_at_every_step(batches, memory, disk) -> None:
    model, made = batches(cache_latents=memory, cache_latents_to_disk=disk)
    encoded = len(model.encoded)
    cached = take(made)
    assert len(model.encoded) == encoded
    check_same(cached, take(batches(**FRESH)[1]))


def test_a_second_job_encodes_nothing(batches) -> None:
    first, made = batches()
    assert len(first.encoded) == 10 + 6
    second, again = batches()
    assert second.encoded == []
    check_same(take(made), take(again))


def test_another_encoder_size_flip_or_precision_has_entries_of_its_own(batches, home) -> None:
    batches()
    other = Sampling(home)
    with torch.no_grad():
        other.vae.weight[0, 1] = 1e-3
    assert len(batches(model=other)[0].encoded) == 10
    half = Sampling(home)
    half.torch_dtype = torch.bfloat16
    assert len(batches(model=half)[0].encoded) == 10 + 6
    assert len(batches(flip_y=True)[0].encoded) == 10
    assert len(batches(resolution=[16])[0].encoded) == 10
    assert len(batches(train={"seed": 5})[0].encoded) == 0


@pytest.mark.parametrize("same_time", [True, False])
def test_an_edited_picture_is_encoded_again(batches, home, same_time) -> None:
    batches()
    path = home / "datasets" / "colours" / "002.png"
    before = path.stat()
    negative = np.asarray(255 - np.asarray(Image.open(path)))
    Image.fromarray(negative).save(path)
    data = path.read_bytes()
    path.write_bytes(data + b"\0" * max(0, before.st_size - len(data)))
    if same_time:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    model, made = batches()
    assert len(model.encoded) == 2
    check_same(take(made), take(batches(**FRESH)[1]))


def test_names_that_share_a_stem_share_no_entry(home, tmp_path, tiny_job) -> None:
    folder = home / "datasets" / "stems"
    folder.mkdir(parents=True)
    for name, colour in (("aaa.bbb.jpg", (250, 0, 0)), ("aaa.ccc.jpg", (0, 250, 0))):
        Image.new("RGB", (32, 32), colour).save(folder / name)
    spec = spec_for(tiny_job, {"batch_size": 1}, default_caption="", flip_x=False)
    made = Batches(Sampling(home), spec, [datasets.survey(spec.datasets[0], folder)])
    made.cache(Reporter(tmp_path / "run", 1))
    red = {Path(each.batch.file_items[0].path).name: bool(each.batch.latents[0, 0].mean() > 0) for each in take(made, 4)}
    assert red == {"aaa.bbb.jpg": True, "aaa.ccc.jpg": False}


def entries_on_disk(home: Path, kind: str) -> list[Path]:
    return sorted((home / "cache" / kind).rglob("*.safetensors"))


@pytest.mark.parametrize("damage", ["truncate", "flip a bit", "empty", "text"])
@pytest.mark.parametrize("memory", [True, False])
def test_a_damaged_entry_is_told_once_and_made_again(batches, home, caplog, damage, memory) -> None:
    whole = take(batches(cache_latents=memory)[1])
    for path in (entries_on_disk(home, "latents")[0], entries_on_disk(home, "text")[0]):
        data = path.read_bytes()
        flipped = data[:-1] + bytes([data[-1] ^ 1])
        path.write_bytes({"truncate": data[:-9], "flip a bit": flipped, "empty": b"", "text": b"I am text"}[damage])
    model, made = batches(cache_latents=memory)
    assert len(model.encoded) == 2
    check_same(take(made), whole)
    assert sum("is damaged" in record.message for record in caplog.records) == 2
    assert batches(cache_latents=memory)[0].encoded == []


def test_an_entry_damaged_while_the_job_runs_is_made_again(batches, home) -> None:
    whole = take(batches()[1])
    model, made = batches(cache_latents=False)
    entries_on_disk(home, "latents")[3].write_bytes(b"")
    entries_on_disk(home, "text")[1].unlink()
    check_same(take(made), whole)
    assert len(model.encoded) == 2


def test_without_its_encoder_a_damaged_entry_ends_the_job_with_what_to_do(batches, home) -> None:
    model, made = batches(cache_latents=False)
    model.absent.add("vae")
    for path in entries_on_disk(home, "latents"):
        path.write_bytes(b"")
    with pytest.raises(Exception, match="the VAE is not loaded any more"):
        take(made)


def test_a_stop_while_caching_keeps_what_is_done(batches, home, tmp_path) -> None:
    class Stopping(Reporter):
        checks = 0

        def check(self) -> None:
            self.checks += 1
            if self.checks > 9:
                raise Stop("cancel")

    with pytest.raises(Stop):
        batches(reporter=Stopping(tmp_path / "run", 1))
    done = [*entries_on_disk(home, "latents"), *entries_on_disk(home, "text")]
    assert len(done) == 9
    model, made = batches()
    assert len(model.encoded) == 16 - 9
    check_same(take(made), take(batches(**FRESH)[1]))
    assert not [path for path in (home / "cache").rglob("*") if path.name.startswith(".")]


KILLED = """
import os, sys, torch
from pathlib import Path
from worker.data.cache import DiskCache
cache = DiskCache(Path(sys.argv[1]))
for number in range(10_000):
    cache.write(f"{number:064d}", {"x": torch.full((2000,), float(number))})
    if number == 3:
        print("ready", flush=True)
"""


def test_entries_of_a_killed_process_are_whole(tmp_path) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.kill()
    process.wait()
    found = sorted(tmp_path.rglob("*.safetensors"))
    assert len(found) >= 4
    for number, path in enumerate(found):
        assert torch.equal(load_file(path)["x"], torch.full((2000,), float(number)))
        assert DiskCache(tmp_path).read(path.stem) is not None


def test_caching_is_told_from_begin_to_end(batches, scripted) -> None:
    reporter = scripted()
    batches(reporter=reporter)
    assert set(reporter.heard("phase")) == {"caching"}


def test_recent_values_stay_within_their_bytes() -> None:
    recent = Recent(max_bytes=100)
    for number in range(5):
        recent.put(str(number), number, 40)
        recent.get("0")
    assert [recent.get(str(number)) for number in range(5)] == [0, None, None, None, 4]


@pytest.mark.parametrize(
    "embeds",
    [
        AdvancedPromptEmbeds(text_embeds=[torch.rand(4, 3)], ids=[torch.arange(4)]),
        PromptEmbeds(torch.rand(1, 4, 3), torch.rand(1, 5), torch.ones(1, 4, dtype=torch.bool)),
        ForeignEmbeds([[torch.rand(1, 4, 3), torch.rand(1, 4, 2)], torch.rand(1, 5)], attention_mask=[torch.ones(4)]),
    ],
)
def test_embeds_of_every_class_come_back_as_they_were(tmp_path, embeds) -> None:
    cache = DiskCache(tmp_path)
    if isinstance(embeds, AdvancedPromptEmbeds):
        embeds.frozen_dtype_keys = ["ids"]
    cache.write("k" * 64, *embeds_to_tensors(embeds))
    found = cache.read("k" * 64)
    assert found is not None
    again = embeds_from_tensors(*found)
    assert type(again) is type(embeds)
    assert embeds_to_tensors(again)[1] == embeds_to_tensors(embeds)[1]
    old, new = embeds_to_tensors(embeds)[0], embeds_to_tensors(again)[0]
    assert sorted(old) == sorted(new)
    assert all(torch.equal(tensor, new[name]) and tensor.dtype == new[name].dtype for name, tensor in old.items())


def test_an_item_s_digest_is_its_bytes_sha256(pictures, tiny_job) -> None:
    folder = pictures()
    for item in datasets.survey(spec_for(tiny_job, {}).datasets[0], folder).items:
        assert item.media.digest == hashlib.sha256(item.path.read_bytes()).hexdigest()
