"""What is wrong with a dataset's files, in words: what refuses the job, and what people should know. Torch-free."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sized

from models.data.captions import KEYS
from models.data.datasets import Survey, is_moving
from models.data.look import KINDS, Kind, kind_of
from models.data.metadata import METADATA, fitting_names
from models.data.names import Names, stem
from models.data.pictures import SEVERAL_FRAMES
from models.data.trigger import placeholder_in
from models.errors import Problem
from models.spec import CONTROL_FOLDERS, DatasetSpec
from models.words import NAMED, named

PLURALS: Mapping[Kind, str] = {"picture": "pictures", "clip": "clips", "sound": "sounds"}
CAPTION_EXTENSIONS = ("txt", "caption", "captions", "cap", "json", "tags", "tag", "text", "prompt")  # that people use


def dataset_problems(
    found: Survey, spec: DatasetSpec, pointer: str, trigger_word: str | None = None
) -> tuple[list[Problem], list[Problem]]:
    """(what refuses the job, what the user should know), with `pointer` being the dataset's place in the job and `trigger_word` what
    fills the placeholders in its captions."""
    errors, warnings = [], []
    folder = f"{pointer}/folder_path"
    if found.refused:
        first = named([f"{name} ({reason})" for name, reason in found.refused])
        if spec.on_bad_file == "stop":
            errors.append(
                Problem(folder, f"unreadable {_nouns(found)}: {first}", "repair or remove them, or set on_bad_file to skip")
            )
        else:
            warnings.append(Problem(folder, f"skipped, unreadable: {first}"))
    faults = (*_caption_faults(found, spec), *_unfilled(found, spec, trigger_word), *_companion_faults(found, spec))
    errors += [Problem(f"{pointer}/{key}", message, hint) for key, message, hint in faults]
    warnings += [Problem(f"{pointer}/{key}", message) for key, message in _notes(found, spec)]
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
        yield "caption_ext", f"captions are not UTF-8 or UTF-16 text: {named(found.bad_captions)}", "save them as UTF-8"
    if found.bad_json:
        first = named([f"{name} ({reason})" for name, reason in found.bad_json])
        hint = f"a JSON caption is an object with a key {', '.join(KEYS)}" if spec.caption_ext.endswith("json") else None
        yield "caption_ext", f"caption files that cannot be used: {first}", hint
    if found.metadata.faults:
        first = named([f"line {number} ({reason})" if number else reason for number, reason in found.metadata.faults])
        yield "folder_path", f"{METADATA} is broken: {first}", "a line is an object with file_name and a caption"
    if found.uncaptioned:
        message = "; ".join(
            [f"{_uncaptioned(found, spec, found.uncaptioned)}: {named(found.uncaptioned)}", *_advice(found, spec)]
        )
        yield "default_caption", message, "write the captions, or set default_caption (an empty text allows none)"


def _companion_faults(found: Survey, spec: DatasetSpec) -> Iterator[tuple[str, str, str | None]]:
    """The same of masks and control pictures, and of files that could belong to several others."""
    for key in CONTROL_FOLDERS:
        if lacking := [name for each, name in found.no_control if each == key]:
            yield key, f"no control picture of the same name in {getattr(spec, key)} for: {named(lacking)}", None
    if found.no_mask and spec.on_missing_mask == "stop":
        message = f"no mask of the same name in {spec.mask_path} for: {named(found.no_mask)}"
        yield "mask_path", message, "add the masks, or set on_missing_mask to whole"
    for key in dict.fromkeys(key for key, _ in found.unclear):
        first = named([sentence for each, sentence in found.unclear if each == key])
        yield key, f"it is not clear what these belong to: {first}", "give them the very name of their picture"


def _notes(found: Survey, spec: DatasetSpec) -> Iterator[tuple[str, str]]:
    """(key, message) of what people should know."""
    if found.no_mask and spec.on_missing_mask == "whole":
        yield "mask_path", f"no mask of the same name, so all of it is trained: {named(found.no_mask)}"
    if found.defaulted:
        message = f"{_uncaptioned(found, spec, found.defaulted)}, so default_caption is taken: {named(found.defaulted)}"
        yield "default_caption", "; ".join([message, *_advice(found, spec)])
    elif not found.uncaptioned:
        for message in _about_metadata(found):
            yield "folder_path", message
    for note, names in _ignored_parts(found).items():
        yield "folder_path", f"{'1 file' if len(names) == 1 else f'{len(names)} files'} with {note}: {named(names)}"
    for key, names, what in (
        ("caption_ext", found.orphans, "captions of nothing that is there"),
        ("folder_path", found.unread, "not read, being no kind of file that is known here"),
        ("folder_path", [f"{name} ({reason})" for name, reason in found.not_read], "not read"),
        ("folder_path", found.spare, "not read, since there is another for the same picture"),
    ):
        if names:
            yield key, f"{what}: {named(names)}"


def _ignored_parts(found: Survey) -> dict[str, list[str]]:
    """Return notes on parts of files that are ignored, each with the files' names. Of masks only further frames count: they are read
    without a profile."""
    names: dict[str, list[str]] = {}
    for item in found.items:
        for media, name in ((item.media, item.name), *((each, f"control picture of {item.name}") for each in item.controls)):
            for note in media.notes:
                names.setdefault(note, []).append(name)
        if item.mask and SEVERAL_FRAMES in item.mask.notes:
            names.setdefault(SEVERAL_FRAMES, []).append(f"mask of {item.name}")
    return names


def _uncaptioned(found: Survey, spec: DatasetSpec, names: Sized) -> str:
    total = sum(kind_of(name) in found.kinds for name in found.there)
    return f"{len(names)} of {total} {_nouns(found)} have no caption in a .{spec.caption_ext.lstrip('.')} file or in {METADATA}"


def _advice(found: Survey, spec: DatasetSpec) -> Iterator[str]:
    """Where the captions may be that were not found."""
    lacking = Names(stem(name) for name in (*found.uncaptioned, *found.defaulted))
    others = [name for name in found.there if kind_of(name) is None]
    beside = Counter(name.rpartition(".")[2] for name in others if lacking.find(stem(name)))
    for extension, count in beside.most_common():
        if extension.lower() in CAPTION_EXTENSIONS and extension.lower() != spec.caption_ext.lstrip(".").lower():
            yield f"{count} of them have a .{extension} file of their name: set caption_ext to {extension}"
    media = {name for name in found.there if kind_of(name)}
    if doubled := [name for name in found.orphans if stem(name) in media]:
        fitting = f"{stem(stem(doubled[0]))}.{doubled[0].rpartition('.')[2]}"
        yield f"{len(doubled)} caption files keep the picture's extension in their name: {doubled[0]} must be {fitting}"
    yield from _about_metadata(found)


def _about_metadata(found: Survey) -> Iterator[str]:
    """What of metadata is not used."""
    if unmatched := found.metadata.unmatched:
        fitting = fitting_names(unmatched[:NAMED], found.there)
        listed = [f"{name} ({fitting[name]} would fit)" if name in fitting else name for name in unmatched[:NAMED]]
        yield f"{METADATA}: {found.metadata.counts()}, no file is there for: {named(listed, len(unmatched))}"
    if found.misplaced:
        yield named(found.misplaced)


def _unfilled(found: Survey, spec: DatasetSpec, trigger_word: str | None) -> Iterator[tuple[str, str, str]]:
    """(key, message, hint) of placeholders that no trigger word fills."""
    if trigger_word is None and (names := [item.name for item in found.items if placeholder_in(item.caption)]):
        message = f"captions with a [trigger] or [name] that nothing fills: {named(names)}"
        if spec.is_reg:
            yield "is_reg", f"{message}; a regularisation set gets no trigger word", "write the general word for it there"
        else:
            yield "trigger_word", message, "give a trigger word"


def _nouns(found: Survey) -> str:
    return " or ".join(PLURALS[kind] for kind in found.kinds)
