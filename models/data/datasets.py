"""Folders of captioned pictures, clips or sounds: what is in them, and what is wrong with them. Torch-free.

The folder is never written to. Control and mask folders that lie within are passed over. Masks and control pictures belong to the file
that has the same path but for the extension.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from models.data.captions import KEYS, METADATA, Metadata, read_caption, read_metadata
from models.data.clips import BadClip, Snapper, wanted_frames
from models.data.fileindex import FileIndex
from models.data.look import KINDS, Kind, Looks, Media, Tell, file_names, kind_of
from models.data.texts import BadText
from models.data.trigger import placeholder_in
from models.errors import Problem
from models.spec import CONTROL_FOLDERS, DatasetSpec, TrainSpec

NO_DATA = {"md", "db", "ini", "html"}  # what people and systems lay beside pictures
NAMED = 5  # how many files an error names before it says "and N more"
PLURALS: Mapping[Kind, str] = {"picture": "pictures", "clip": "clips", "sound": "sounds"}


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
    """Where a dataset's files lie: found, and allowed to be read. `controls` in the order of CONTROL_FOLDERS, without those not given."""

    items: Path
    masks: Path | None = None
    controls: tuple[Path, ...] = ()


@dataclass
class Survey:
    """What a dataset's folder holds. `refused` and `bad_json` are (file name, reason); `uncaptioned` are file names without a usable
    caption, `defaulted` those that `default_caption` is for; `no_control` is (key of the control folder, file name); `orphans` are
    caption files of nothing; `unread` is what no rule speaks of; `undecoded` were looked at only as far as their header."""

    folder: Path
    kinds: tuple[Kind, ...] = ("picture",)
    items: list[Item] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    uncaptioned: list[str] = field(default_factory=list)
    defaulted: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    bad_captions: list[str] = field(default_factory=list)
    bad_json: list[tuple[str, str]] = field(default_factory=list)
    metadata: Metadata = field(default_factory=Metadata)
    unknown_in_metadata: list[str] = field(default_factory=list)
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
    return [folder / name for name in file_names(folder) if kind_of(name) == "picture"]


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
    found = Survey(folders.items, kinds, metadata=read_metadata(folders.items))
    there = file_names(folders.items, skip=[path for path in (folders.masks, *folders.controls) if path])
    counts = Counter(map(kind_of, there))
    found.passed_over = {kind: counts[kind] for kind in KINDS if kind not in kinds and counts[kind]}
    files = frozenset(there)
    found.unknown_in_metadata = [name for name in found.metadata.captions if name not in files]
    names = [name for name in there if kind_of(name) in kinds]
    _note_others(found, spec, there)
    looks = Looks(index, decode_at_most, check, tell)
    media = looks.at(folders.items, names)
    reader = _Reader(spec, found, files)
    if folders.masks:
        reader.masks = _companions(folders.masks, names, looks)
    given = [key for key in CONTROL_FOLDERS if getattr(spec, key)]
    reader.controls = [(key, _companions(folder, names, looks)) for key, folder in zip(given, folders.controls, strict=True)]
    for name in names:
        check()
        if (item := reader.item(name, media[name])) is not None:
            found.items.append(item)
    found.undecoded = looks.undecoded
    return found


def _note_others(found: Survey, spec: DatasetSpec, there: Collection[str]) -> None:
    """What is neither a medium nor the caption of one."""
    stems = {_stem(name) for name in there if kind_of(name)}
    ending = f".{spec.caption_ext.lstrip('.')}"
    for name in there:
        if kind_of(name) is None and name != METADATA and name.rpartition(".")[2].lower() not in NO_DATA:
            if not name.endswith(ending):
                found.unread.append(name)
            elif _stem(name) not in stems:
                found.orphans.append(name)


@dataclass
class _Reader:
    """Makes items of files, and notes in `found` what is wrong with the others."""

    spec: DatasetSpec
    found: Survey
    files: Collection[str]
    masks: dict[str, Media | str] | None = None
    controls: list[tuple[str, dict[str, Media | str]]] = field(default_factory=list)

    def item(self, name: str, media: Media | str) -> Item | None:
        if isinstance(media, str):
            self.found.refused.append((name, media))
            return None
        caption, num_frames = self._caption(name), self._num_frames(name, media)
        if self.masks is None and not self.controls:
            return None if caption is None or num_frames is None else Item(media, caption, name, num_frames)
        beside = {f"its mask ({name})": (self.masks or {}).get(_stem(name))}
        beside |= {f"its picture in {key} ({name})": each.get(_stem(name)) for key, each in self.controls}
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
        beside = f"{_stem(name)}.{self.spec.caption_ext.lstrip('.')}"
        caption = ""
        try:
            if beside in self.files:
                caption = read_caption(f"{self.found.folder}/{beside}")
        except UnicodeDecodeError:
            self.found.bad_captions.append(name)
            return None
        except BadText as error:
            self.found.bad_json.append((beside, str(error)))
            return None
        caption = caption or self.found.metadata.captions.get(name, "")
        if caption:
            return caption
        (self.found.uncaptioned if self.spec.default_caption is None else self.found.defaulted).append(name)
        return self.spec.default_caption

    def _num_frames(self, name: str, media: Media) -> int | None:
        try:
            if self.spec.do_audio and media.kind != "sound" and not media.has_sound:
                raise BadClip("no sound in it")
            return wanted_frames(self.spec, media.seconds) if media.kind == "clip" else 1
        except BadClip as error:
            self.found.refused.append((name, str(error)))
            return None


def _companions(folder: Path, names: Collection[str], looks: Looks) -> dict[str, Media | str]:
    """The pictures in `folder` that belong to one of `names`, by the path without extension that they share; of several the first."""
    wanted = {_stem(name) for name in names}
    first: dict[str, str] = {}
    for name in file_names(folder):
        if kind_of(name) == "picture" and _stem(name) in wanted:
            first.setdefault(_stem(name), name)
    media = looks.at(folder, list(first.values()))
    return {stem: media[name] for stem, name in first.items()}


def _stem(name: str) -> str:
    return name.rpartition(".")[0]


def problems(
    found: Survey, spec: DatasetSpec, pointer: str, trigger_word: str | None = None
) -> tuple[list[Problem], list[Problem]]:
    """(what refuses the job, what the user should know), with `pointer` being the dataset's place in the job and `trigger_word` what
    fills the placeholders in its captions."""
    errors, warnings = [], []
    folder = f"{pointer}/folder_path"
    if found.refused:
        named = _named([f"{name} ({reason})" for name, reason in found.refused])
        if spec.on_bad_file == "stop":
            errors.append(
                Problem(folder, f"unreadable {_nouns(found)}: {named}", "repair or remove them, or set on_bad_file to skip")
            )
        else:
            warnings.append(Problem(folder, f"skipped, unreadable: {named}"))
    for key, message, hint in (*_caption_faults(found, spec), *_unfilled(found, spec, trigger_word)):
        errors.append(Problem(f"{pointer}/{key}", message, hint))
    for key in CONTROL_FOLDERS:
        if lacking := [name for each, name in found.no_control if each == key]:
            message = f"no control picture of the same name in {getattr(spec, key)} for: {_named(lacking)}"
            errors.append(Problem(f"{pointer}/{key}", message))
    if found.no_mask:
        warnings.append(
            Problem(f"{pointer}/mask_path", f"no mask of the same name, so all of it is trained: {_named(found.no_mask)}")
        )
    if found.unknown_in_metadata:
        named = _named(found.unknown_in_metadata)
        warnings.append(Problem(folder, f"{METADATA} speaks of files that are not there: {named}"))
    for key, names, what in (
        ("default_caption", found.defaulted, "no caption of their own, so default_caption is taken"),
        ("caption_ext", found.orphans, "captions of nothing that is there"),
        ("folder_path", found.unread, "not read, being no kind of file that is known here"),
    ):
        if names:
            warnings.append(Problem(f"{pointer}/{key}", f"{what}: {_named(names)}"))
    for kind, count in found.passed_over.items():
        hint = {"clip": "; set num_frames or auto_frame_count to train on them"}.get(kind, "")
        warnings.append(Problem(folder, f"{PLURALS[kind]} that are passed over: {count}{hint}"))
    if spec.do_audio and is_moving(spec) and spec.shrink_video_to_frames and not spec.auto_frame_count:
        message = "frames spread over the clip do not keep time with its sound; set shrink_video_to_frames to false, or auto_frame_count"
        errors.append(Problem(f"{pointer}/do_audio", message))
    if not (found.items or errors):
        extensions = sorted(extension for kind in found.kinds for extension in KINDS[kind])
        errors.append(Problem(folder, f"no {_nouns(found)} in {found.folder}; wanted: {', '.join(extensions)}"))
    return errors, warnings


def _caption_faults(found: Survey, spec: DatasetSpec) -> Iterator[tuple[str, str, str | None]]:
    """(key, message, hint) of each."""
    if found.bad_captions:
        yield "caption_ext", f"captions are not UTF-8 or UTF-16 text: {_named(found.bad_captions)}", "save them as UTF-8"
    if found.bad_json:
        named = _named([f"{name} ({reason})" for name, reason in found.bad_json])
        hint = f"a JSON caption is an object with a key {', '.join(KEYS)}" if spec.caption_ext.endswith("json") else None
        yield "caption_ext", f"caption files that cannot be used: {named}", hint
    if found.metadata.faults:
        named = _named([f"line {number} ({reason})" for number, reason in found.metadata.faults])
        yield "folder_path", f"{METADATA} is broken: {named}", "a line is an object with file_name and a caption"
    if found.uncaptioned:
        message = f"no caption in a .{spec.caption_ext.lstrip('.')} file for: {_named(found.uncaptioned)}"
        yield "default_caption", message, "write the captions, or set default_caption (an empty text allows none)"


def _unfilled(found: Survey, spec: DatasetSpec, trigger_word: str | None) -> Iterator[tuple[str, str, str]]:
    """(key, message, hint) of placeholders that no trigger word fills."""
    if trigger_word is None and (names := [item.name for item in found.items if placeholder_in(item.caption)]):
        message = f"captions with a [trigger] or [name] that nothing fills: {_named(names)}"
        if spec.is_reg:
            yield "is_reg", f"{message}; a regularisation set gets no trigger word", "write the general word for it there"
        else:
            yield "trigger_word", message, "give a trigger word"


def _nouns(found: Survey) -> str:
    return " or ".join(PLURALS[kind] for kind in found.kinds)


def _named(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
