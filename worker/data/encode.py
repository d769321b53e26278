"""What the model makes of items and captions, out of the cache or new. Both give the same numbers: items are encoded one at a time, each
after torch was seeded by what it is, so that an encoder that draws (a posterior's sample) draws the same whenever it is asked.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from models import prompt_embeds
from models.base import BaseModel, Embeds
from models.data.datasets import is_moving
from models.data.entries import Entry, cut
from models.data.fileindex import FileIndex
from models.data.pictures import READING
from models.errors import UserError
from models.precise import finite
from models.spec import DatasetSpec, JobSpec, TrainSpec
from models.toolkit.embeds import PromptEmbeds as ForeignEmbeds
from server.store.settings import settings
from worker.data.cache import DiskCache, Recent, Tensors, embeds_from_tensors, embeds_to_tensors, key_of
from worker.data.decode import RESAMPLING, levels_of
from worker.data.fingerprint import space
from worker.seeds import sow

LATENTS, FIRST_FRAME, AUDIO = "latents", "first_frame_latents", "audio_latents"
FIRST_LEVELS = "first_frame_levels"  # what an image-to-video model looks at itself, as bytes


def cache_of(model: BaseModel) -> Path:
    """The folder in which everything that the model encoded is kept."""
    return model.cache_folder or settings().home / "cache"


def about_text(caption: str, **more: Any) -> str:
    """What a text is encoded after torch was seeded by."""
    return json.dumps({"caption": caption, **more}, sort_keys=True)


class Latents:
    """Latents of entries. `datasets` are those of the job, and after them a held-out one."""

    def __init__(self, model: BaseModel, spec: TrainSpec, datasets: list[DatasetSpec], folder: Path) -> None:
        self.model, self.spec, self.datasets = model, spec, datasets
        self.disk = DiskCache(folder / "latents")
        self._memory: dict[str, Tensors] = {}
        self._space = ""
        self._keys: dict[int, str] = {}  # by the entry's identity: entries live as long as the job

    def is_cached(self, entry: Entry) -> bool:
        dataset = self.datasets[entry.dataset]
        return dataset.cache_latents or dataset.cache_latents_to_disk

    def missing(self, entries: Iterable[Entry], index: FileIndex | None) -> list[Entry]:
        """The cached ones among the entries that are still to be encoded, one for each key."""
        wanted = {self.key(entry): entry for entry in entries if self.is_cached(entry)}
        on_disk = [key for key, entry in wanted.items() if self.datasets[entry.dataset].cache_latents_to_disk]
        there = self.disk.sound(on_disk, index) | self._memory.keys()
        return [entry for key, entry in wanted.items() if key not in there]

    def stored(self, entry: Entry) -> Tensors | None:
        """What was encoded before, on the CPU; None if there is nothing, or nothing whole. May be called in any thread."""
        if not self.is_cached(entry):
            return None
        key, dataset = self.key(entry), self.datasets[entry.dataset]
        if (kept := self._memory.get(key)) is not None:
            return kept
        found = self.disk.read(key) if dataset.cache_latents_to_disk else None
        if found and dataset.cache_latents:
            self._memory[key] = found[0]
        return found[0] if found else None

    def encode(self, entry: Entry, pixels: torch.Tensor | None, sound: dict[str, Any] | None) -> dict[str, torch.Tensor]:
        """The latents of one entry without a batch axis, and if the dataset asks for them those of its first frame and of its sound; beside
        latents that are cached also that frame itself, so that no step decodes the clip. Raises NotFinite naming the file."""
        if "vae" in self.model.absent:
            raise UserError(
                f"the cached latents of {entry.item.name} are damaged, and the VAE is not loaded any more",
                code="cache_damaged",
                hint="resume the job; they are encoded again",
            )
        return finite(self.model, "latents", lambda: self._made(entry, pixels, sound), f"the latents of {entry.item.path}")

    def _made(self, entry: Entry, pixels: torch.Tensor | None, sound: dict[str, Any] | None) -> dict[str, torch.Tensor]:
        dataset = self.datasets[entry.dataset]
        made: dict[str, torch.Tensor] = {}
        sow(self.model.device_torch, "encode", json.dumps(self._facts(entry), sort_keys=True))
        with torch.no_grad():
            if pixels is not None:
                shown = pixels.to(self.model.device_torch, non_blocking=True)
                made[LATENTS] = self.model.encode_images([shown])[0]
                if dataset.do_i2v and shown.ndim == 4:
                    made[FIRST_FRAME] = self.model.encode_images([shown[:1]])[0]
                if dataset.do_i2v and self.is_cached(entry):
                    made[FIRST_LEVELS] = levels_of(pixels[:1] if pixels.ndim == 4 else pixels)
            if sound is not None:
                made[LATENTS if pixels is None else AUDIO] = self.model.encode_audio([sound])[0]
        return made

    def keep(self, entry: Entry, made: Tensors) -> None:
        key, dataset = self.key(entry), self.datasets[entry.dataset]
        on_cpu = {name: tensor.cpu() for name, tensor in made.items()}
        if dataset.cache_latents_to_disk:
            self.disk.write(key, on_cpu)
        if dataset.cache_latents:
            self._memory[key] = on_cpu

    def key(self, entry: Entry) -> str:
        if id(entry) not in self._keys:
            self._space = self._space or key_of(space(self.model, self.spec, "latents"))
            self._keys[id(entry)] = key_of(self._space, self._facts(entry))
        return self._keys[id(entry)]

    def _facts(self, entry: Entry) -> dict[str, Any]:
        """What is encoded: the file's content, and all that is done to it first."""
        dataset, media = self.datasets[entry.dataset], entry.item.media
        facts: dict[str, Any] = {"file": media.digest, "view": cut(entry.view), "resampling": RESAMPLING, "reading": READING}
        if media.kind == "clip":
            facts |= {"frames": entry.item.num_frames, "fps": dataset.fps, "auto": dataset.auto_frame_count}
            facts |= {"spread": dataset.shrink_video_to_frames}
        first = "with its pixels" if dataset.do_i2v else False  # another value whenever an entry holds other parts
        return {**facts, "moving": is_moving(dataset), "first": first, "sound": dataset.do_audio}


class Texts:
    """Embeds of captions, each with the control pictures that the text encoder may see, and of prompts, which have no entry."""

    def __init__(self, model: BaseModel, spec: JobSpec, folder: Path, cached: bool) -> None:
        self.model, self.spec, self.cached = model, spec, cached
        self.disk = DiskCache(folder / "text")
        self._recent = Recent()
        self._pinned: dict[str, Embeds] = {}  # of classes that cannot be stored
        self._space = ""

    def sees(self, entry: Entry | None) -> bool:
        """Whether the embeds of this entry's captions depend on its control pictures."""
        return entry is not None and self.model.encode_control_in_text_embeddings and bool(entry.item.controls)

    def missing(self, wanted: Iterable[tuple[str, Entry]], index: FileIndex | None) -> list[tuple[str, Entry]]:
        """The pairs of a caption and an entry that are still to be encoded, one for each key."""
        keyed = {self.key(caption, entry): (caption, entry) for caption, entry in wanted}
        there = self.disk.sound(keyed, index)
        return [pair for key, pair in keyed.items() if key not in there and key not in self._pinned]

    def stored(self, caption: str, entry: Entry | None) -> Embeds | None:
        """What was encoded before, on the CPU; None if there is nothing, or nothing whole. May be called in any thread."""
        if not self.cached:
            return None
        key = self.key(caption, entry)
        kept: Embeds | None = self._pinned.get(key) or self._recent.get(key)
        if kept is None and (found := self.disk.read(key)) is not None:
            kept = embeds_from_tensors(*found)
            self._recent.put(key, kept, sum(tensor.nbytes for tensor in found[0].values()))
        return kept

    def encode(self, caption: str, entry: Entry | None, controls: Any) -> Embeds:
        """`controls` as `BaseModel.encode_prompt` takes them. Raises NotFinite naming the text and the file."""
        if "text_encoder" in self.model.absent:
            raise UserError(
                f"the cached embeds of the caption {caption!r:.80} are damaged, and the text encoder is not loaded any more",
                code="cache_damaged",
                hint="resume the job; they are encoded again",
            )

        def make() -> Embeds:
            sow(self.model.device_torch, "encode", about_text(**self._facts(caption, entry)))
            return self.model.encode_prompt(caption, control_images=controls)

        of = f"the caption {caption!r:.80} of {entry.item.path}" if entry else f"the prompt {caption!r:.80}"
        return finite(self.model, "text", make, f"the embeds of {of}")

    def keep(self, caption: str, entry: Entry | None, embeds: Embeds) -> None:
        key, on_cpu = self.key(caption, entry), embeds.to("cpu")
        if type(embeds) not in (prompt_embeds.AdvancedPromptEmbeds, prompt_embeds.PromptEmbeds, ForeignEmbeds):
            self._pinned[key] = on_cpu
            return
        self.disk.write(key, *embeds_to_tensors(on_cpu))

    def key(self, caption: str, entry: Entry | None) -> str:
        self._space = self._space or key_of(space(self.model, self.spec, "text"))
        return key_of(self._space, self._facts(caption, entry))

    def _facts(self, caption: str, entry: Entry | None) -> dict[str, Any]:
        if entry is None or not self.sees(entry):
            return {"caption": caption}
        view = entry.view
        return {
            "caption": caption,
            "controls": [each.digest for each in entry.item.controls],
            "reading": READING,
            "flips": [view.flip_x, view.flip_y],
        }
