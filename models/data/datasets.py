"""Folders of captioned pictures, clips or sounds: what is in them, and what is wrong with them. Torch-free.

The folder is never written to. Control and mask folders that lie within are passed over. Masks and control pictures belong to the file
that has the same path but for the extension.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from models.data.captions import one_line, read_caption
from models.data.clips import BadClip, Snapper, wanted_frames
from models.data.fileindex import FileIndex
from models.data.look import KINDS, Kind, Looks, Media, Tell, kind_of, listing
from models.data.metadata import METADATA, Metadata, misplaced, read_metadata
from models.data.names import beside, stem
from models.data.texts import BadText
from models.spec import CONTROL_FOLDERS, DatasetSpec, TrainSpec

LONGEST_SIDE = 32  # times the other one: of a longer strip a bucket shows next to nothing
NO_DATA = {"md", "db", "ini", "html"}  # what people and systems lay beside pictures


@dataclass(frozen=True)
class Item:
    """What is trained on: a file with its caption as written. `name` is its path within the folder, `num_frames` what is taken of it."""

    media: Media
    caption: str
    name: str
    num_frames: int = 1
    mask: Media | None = None
    controls: tuple[Media, ...] = ()

    @property
    def path(self) -> Path:
        return self.media.path

    @property
    def width(self) -> int:
        return self.media.width

    @property
    def height(self) -> int:
        return self.media.height


@dataclass(frozen=True)
class Folders:
    """Where a dataset's files lie: found, and allowed to be read. `controls` in the order of CONTROL_FOLDERS, without those not given.
    `roots` are the folders, resolved, that links to files may lead into."""

    items: Path
    masks: Path | None = None
    controls: tuple[Path, ...] = ()
    roots: tuple[Path, ...] = ()


@dataclass
class Survey:
    """What a dataset's folder holds. `refused` and `bad_json` are (file name, reason); `uncaptioned` are file names without a usable
    caption, `defaulted` those that `default_caption` is for; `no_control` is (key of the control folder, file name); `orphans` are
    caption files of nothing; `unread` is what no rule speaks of; `not_read`, `misplaced`, `spare` and (key, sentence) `unclear` say of
    files why they are not read; `undecoded` were looked at only as far as their header."""

    folder: Path
    kinds: tuple[Kind, ...] = ("picture",)
    items: list[Item] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    uncaptioned: list[str] = field(default_factory=list)
    defaulted: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    not_read: list[tuple[str, str]] = field(default_factory=list)
    misplaced: list[str] = field(default_factory=list)
    spare: list[str] = field(default_factory=list)
    unclear: list[tuple[str, str]] = field(default_factory=list)
    bad_captions: list[str] = field(default_factory=list)
    bad_json: list[tuple[str, str]] = field(default_factory=list)
    metadata: Metadata = field(default_factory=Metadata)
    there: Collection[str] = ()
    no_control: list[tuple[str, str]] = field(default_factory=list)
    no_mask: list[str] = field(default_factory=list)
    passed_over: dict[Kind, int] = field(default_factory=dict)
    undecoded: int = 0


def is_moving(spec: DatasetSpec) -> bool:
    """Whether the dataset is one of clips; stills among them count as one frame."""
    return spec.num_frames > 1 or spec.auto_frame_count


def every_dataset(spec: TrainSpec) -> list[tuple[str, DatasetSpec]]:
    """The job's datasets, and after them a held-out one, each with its place in the job."""
    named = [(f"/datasets/{index}", dataset) for index, dataset in enumerate(spec.datasets)]
    held = spec.validation.dataset if spec.validation else None
    return [*named, *([("/validation/dataset", held)] if held else [])]


def as_model_takes(found: Survey, spec: DatasetSpec, snap: Snapper) -> Survey:
    """The same with clips as long as a model takes them; a survey alone knows only what most models take."""
    if not spec.auto_frame_count:
        return found
    clips = {item.name: wanted_frames(spec, item.media.seconds, snap) for item in found.items if item.media.kind == "clip"}
    return replace(found, items=[replace(item, num_frames=clips.get(item.name, 1)) for item in found.items])


def pictures(folder: Path) -> list[Path]:
    """The picture files under `folder`, sorted, recursively, hidden ones passed over."""
    return [folder / name for name in listing(folder).names if kind_of(name) == "picture"]


def survey(
    spec: DatasetSpec,
    folders: Folders | Path,
    *,
    sounds: bool = False,
    decode_at_most: int | None = None,
    index: FileIndex | None = None,
    check: Callable[[], None] = lambda: None,
    tell: Tell = lambda _done, _total: None,
) -> Survey:
    """Look at every file and caption. Files are decoded in full, which is the only way to know that they can be, but no more than
    `decode_at_most` of them (None: all). What `index` knows of an unchanged file is not looked at again. `check` is called between files
    and may raise; `tell` gets how many are done, of how many that are known of, masks and control pictures counted. `sounds` is for an
    architecture whose medium is sound."""
    folders = Folders(folders) if isinstance(folders, Path) else folders
    kinds: tuple[Kind, ...] = ("sound",) if sounds else ("picture", "clip") if is_moving(spec) else ("picture",)
    listed = listing(folders.items, [path for path in (folders.masks, *folders.controls) if path], folders.roots)
    there = listed.names
    found = Survey(folders.items, kinds, metadata=read_metadata(folders.items, there), there=there)
    counts = Counter(map(kind_of, there))
    found.passed_over = {kind: counts[kind] for kind in KINDS if kind not in kinds and counts[kind]}
    found.refused = [(name, reason) for name, reason in listed.unusable.items() if kind_of(name) in kinds]
    if reason := listed.unusable.get(METADATA):
        found.metadata.faults.append((0, reason))
    names = [name for name in there if kind_of(name) in kinds]
    captions = _note_others(found, spec, listed.unusable)
    looks = Looks(index, decode_at_most, check, tell)
    media = looks.at(folders.items, names)
    reader = _Reader(spec, found, captions, listed.unusable)
    if folders.masks:
        reader.masks = _companions("mask_path", folders.masks, folders, names, looks, found)
    given = [key for key in CONTROL_FOLDERS if getattr(spec, key)]
    reader.controls = [
        (key, _companions(key, folder, folders, names, looks, found)) for key, folder in zip(given, folders.controls, strict=True)
    ]
    for name in names:
        check()
        if (item := reader.item(name, media[name])) is not None:
            found.items.append(item)
    found.undecoded = looks.undecoded
    return found


def _note_others(found: Survey, spec: DatasetSpec, unusable: Mapping[str, str]) -> Mapping[str, str]:
    """The caption files, by the path without extension of the file that they belong to. Notes in `found` the files that are neither media
    nor captions."""
    everything = [*found.there, *unusable]
    ending = f".{spec.caption_ext.lstrip('.')}"
    others = [name for name in everything if kind_of(name) is None and name != METADATA]
    written = [name for name in others if name.lower().endswith(ending.lower())]
    captions = beside(written, map(stem, filter(kind_of, everything)), ending)
    found.spare += captions.spare
    found.unclear += [("caption_ext", sentence) for sentence in captions.unclear]
    belonging = {*written} - {*captions.orphans}
    for name in others:
        if name in belonging or name.rpartition(".")[2].lower() in NO_DATA:
            continue
        if (sentence := misplaced(name)) is not None:
            found.misplaced.append(sentence)
        elif name in unusable:
            found.not_read.append((name, unusable[name]))
        else:
            (found.orphans if name in captions.orphans else found.unread).append(name)
    return captions.of


@dataclass
class _Reader:
    """Makes items of files, and notes in `found` what is wrong with the others."""

    spec: DatasetSpec
    found: Survey
    captions: Mapping[str, str]
    unusable: Mapping[str, str]
    masks: dict[str, Media | str] | None = None
    controls: list[tuple[str, dict[str, Media | str]]] = field(default_factory=list)

    def item(self, name: str, media: Media | str) -> Item | None:
        if isinstance(media, str):
            self.found.refused.append((name, media))
            return None
        if max(media.width, media.height) > LONGEST_SIDE * min(media.width, media.height):
            reason = f"{media.width} x {media.height}: one side is more than {LONGEST_SIDE} times the other"
            self.found.refused.append((name, reason))
            return None
        caption, num_frames = self._caption(name), self._num_frames(name, media)
        if self.masks is None and not self.controls:
            return None if caption is None or num_frames is None else Item(media, caption, name, num_frames)
        beside = {f"its mask ({name})": (self.masks or {}).get(stem(name))}
        beside |= {f"its picture in {key} ({name})": each.get(stem(name)) for key, each in self.controls}
        bad = [(what, reason) for what, reason in beside.items() if isinstance(reason, str)]
        self.found.refused += bad
        mask, *controls = beside.values()
        lacking = [key for (key, _), each in zip(self.controls, controls, strict=True) if each is None]
        self.found.no_control += [(key, name) for key in lacking]
        if self.masks is not None and mask is None:
            self.found.no_mask.append(name)
        if bad or lacking or caption is None or num_frames is None:
            return None
        whole = tuple(each for each in controls if isinstance(each, Media))
        return Item(media, caption, name, num_frames, mask if isinstance(mask, Media) else None, whole)

    def _caption(self, name: str) -> str | None:
        """The caption file's, else metadata.jsonl's, else the default; None if there is none that can be used."""
        beside, caption = self.captions.get(stem(name)), ""
        try:
            if beside is not None:
                if reason := self.unusable.get(beside):
                    raise BadText(reason)
                caption = read_caption(f"{self.found.folder}/{beside}")
        except UnicodeDecodeError:
            self.found.bad_captions.append(name)
            return None
        except BadText as error:
            self.found.bad_json.append((str(beside), str(error)))
            return None
        caption = caption or self.found.metadata.captions.get(name, "")
        if caption:
            return caption
        (self.found.uncaptioned if self.spec.default_caption is None else self.found.defaulted).append(name)
        return None if self.spec.default_caption is None else one_line(self.spec.default_caption)

    def _num_frames(self, name: str, media: Media) -> int | None:
        try:
            if self.spec.do_audio and media.kind != "sound" and not media.has_sound:
                raise BadClip("no sound in it")
            return wanted_frames(self.spec, media.seconds) if media.kind == "clip" else 1
        except BadClip as error:
            self.found.refused.append((name, str(error)))
            return None


def _companions(
    key: str, folder: Path, folders: Folders, names: Collection[str], looks: Looks, found: Survey
) -> dict[str, Media | str]:
    """The pictures in `folder`, which the dataset's `key` names, that belong to one of `names`, by its path without extension; what cannot
    be used as the reason why."""
    listed = listing(folder, roots=folders.roots)
    pictures = [name for name in (*listed.names, *listed.unusable) if kind_of(name) == "picture"]
    belonging = beside(pictures, map(stem, names))
    found.spare += belonging.spare
    found.unclear += [(key, sentence) for sentence in belonging.unclear]
    wanted = belonging.of.items()
    media = looks.at(folder, [name for _, name in wanted if name not in listed.unusable])
    return {owner: media.get(name) or listed.unusable[name] for owner, name in wanted}
