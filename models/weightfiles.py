"""Files of weights, judged by their first bytes and, for safetensors, by their header. Torch-free, and cheap however large a file is.

A file's name says little: downloads end as web pages, as Git LFS pointers or half-way. Each function here says what the file is
instead and what to do about it, with the same words when a job is submitted and when it runs.
"""

import json
import os
import re
import stat
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.adapterkeys import adapter_kind, check_keys
from models.data.names import printable
from models.errors import UserError

LARGEST_HEADER = 100_000_000  # bytes; the safetensors library reads no longer one
LARGEST_JSON = 1 << 28  # bytes
PARSED_JSON = 1 << 20  # bytes; of longer texts only both ends are looked at
BLANK = b"\xef\xbb\xbf \t\r\n"
FIRST = 512  # bytes by which a file is recognised
LFS = b"version https://git-lfs.github.com/spec/"

AGAIN = "download it again"
ONLY = "only safetensors files are read; download the weights as safetensors, or convert them"
INSTEAD = "download the file itself (an error message may have been saved in its place)"
SIGNATURES: tuple[tuple[bytes, str, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", "a PNG picture", "name the file of the weights"),
    (b"\xff\xd8\xff", "a JPEG picture", "name the file of the weights"),
    (b"GIF8", "a GIF picture", "name the file of the weights"),
    (b"%PDF", "a PDF document", "name the file of the weights"),
    (b"GGUF", "a GGUF file", ONLY),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file", ONLY),
    (b"\x1f\x8b", "a gzip archive", "unpack it"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it"),
    (b"Rar!", "a RAR archive", "unpack it"),
    (b"\xfd7zXZ\0", "an xz archive", "unpack it"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive", "unpack it"),
)

ANY = ("folder", "file")  # what a base may be, if its arch says no more
PART_FOLDERS = r"(transformer|unet|vae|text_encoder|tokenizer|scheduler|image_encoder|processor|feature_extractor)(_\d+)?"
TEXT_PARTS = r"(text_encoder|tokenizer|processor)(_\d+)?"
WEIGHTS_OF_PART = ("diffusion_pytorch_model.safetensors", "model.safetensors")
INDEX = ".index.json"  # behind such a name: which file holds which tensor
VOCABULARY = r"tokenizer\.json|tekken\.json|vocab\.txt|.+\.(model|spm|tiktoken)"  # each is enough for a tokenizer
WITHOUT_VOCABULARY = r"(ByT5|Canine|Perceiver)Tokenizer(Fast)?"  # their tokens are bytes or characters
TEXTS_OF_PART = ("merges.txt", "vocab.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
JSON_OF_PART = (
    r"((tokenizer|scheduler|generation|preprocessor|processor)_)?config\.json"
    r"|tokenizer\.json|special_tokens_map\.json|added_tokens\.json|vocab\.json|.+\.index\.json"
)
PICKLES_OF_PART = r"(pytorch_model|diffusion_pytorch_model)(-\d+-of-\d+)?\.(bin|pt|pth|ckpt)"
PIPELINE = "model_index.json"
PEFT_WEIGHTS, PEFT_CONFIG = "adapter_model.safetensors", "adapter_config.json"  # of PEFT's folders
PART_MARKERS = ("config.json", "tokenizer_config.json")


@dataclass(frozen=True)
class Header:
    """What a safetensors file says of itself. `shapes` are the tensors' by key, in the file's order; `metadata` is its text."""

    path: Path
    shapes: Mapping[str, tuple[int, ...]]
    metadata: Mapping[str, str]


def read_header(path: Path) -> Header:
    """Raises UserError (`bad_weights`, or `missing_file`) saying what the file is where it is no whole safetensors file."""
    first, size = _first_bytes(path)
    if not _is_safetensors(first):
        raise _bad(path, *_described(first, size))
    length = int.from_bytes(first[:8], "little")
    if size < 8 + length:
        raise _cut_short(path, size, f"at least {8 + length}")
    try:
        with path.open("rb") as file:
            file.seek(8)
            raw = json.loads(file.read(length), object_pairs_hook=_without_doubles)
        metadata = {key: str(value) for key, value in raw.pop("__metadata__", {}).items()}
        shapes = {key: tuple(int(side) for side in about["shape"]) for key, about in raw.items()}
        ends = sorted((int(start), int(end)) for start, end in (about["data_offsets"] for about in raw.values()))
    except _Doubled as error:
        raise _bad(path, f"a safetensors file whose header names '{error}' twice", AGAIN) from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        raise _bad(path, "a safetensors file with a damaged header", AGAIN) from None
    if any(start != before for (start, _), before in zip(ends, [0, *(end for _, end in ends)], strict=False)):
        raise _bad(path, "a safetensors file with a damaged header: its tensors overlap or leave gaps", AGAIN)
    whole = 8 + length + (ends[-1][1] if ends else 0)
    if size < whole:
        raise _cut_short(path, size, str(whole))
    if size > whole:
        raise _bad(path, f"a safetensors file with {size - whole} bytes too many behind its {whole}", AGAIN)
    return Header(path, shapes, metadata)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object of a config or an index. Raises UserError (`bad_weights`, or `missing_file`) saying what the file is where it is
    none."""
    first, size = _first_bytes(path)
    try:
        found = json.loads(path.read_bytes()) if _begins_as_json(first) and size <= LARGEST_JSON else None
    except (ValueError, RecursionError) as error:
        raise _bad(path, f"a damaged JSON text ({error})", AGAIN) from None
    except OSError as error:
        raise _unreadable(path, error) from None
    if not isinstance(found, dict):
        raise _bad(path, *_described(first, size))
    return found


def check_json(path: Path) -> None:
    """Raises UserError as `read_json` does; of a long text (a vocabulary) only both ends are looked at."""
    first, size = _first_bytes(path)
    if size <= PARSED_JSON:
        read_json(path)
    elif not _begins_as_json(first):
        raise _bad(path, *_described(first, size))
    elif not _last_bytes(path).rstrip().endswith(b"}"):
        raise _bad(path, f"a JSON text that is cut short after {size} bytes", AGAIN)


def parts_by_key(te_name_or_path: str | None, vae_path: str | None) -> dict[str, str]:
    """By key of a job's `model` section that names a base, the parts that are read there, as a pattern of folders' names."""
    elsewhere = [*([TEXT_PARTS] if te_name_or_path else []), *(["vae"] if vae_path else [])]
    rest = rf"(?!({'|'.join(elsewhere)})$){PART_FOLDERS}" if elsewhere else PART_FOLDERS
    return {"name_or_path": rest, "te_name_or_path": TEXT_PARTS, "vae_path": "vae"}


def kinds_said(kinds: Sequence[str]) -> str:
    """What an arch's `starts_from` means, for a message."""
    said = {"folder": "a folder", "file": "a .safetensors file", "saved": "a file that a job of this architecture saved"}
    return " or ".join(said[kind] for kind in kinds)


def check_base(path: Path, kinds: Sequence[str], parts: str = PART_FOLDERS) -> None:
    """Look at what a model is loaded from: a file, or a folder of parts. `kinds` are what it may be, as in `Arch.starts_from`. Raises
    UserError (`bad_weights`)."""
    if path.is_dir():
        if "folder" not in kinds:
            raise _bad(path, "a folder", f"this model starts from {kinds_said(kinds)}")
        check_base_folder(path, parts)
        return
    if "folder" in kinds and path.name in (PIPELINE, *PART_MARKERS):
        raise _bad(path, "one file of a folder that a model is loaded from", "name its folder")
    header = check_base_file(path)
    if "file" not in kinds:
        saved_config(header)


def saved_config(header: Header, keys: Collection[str] = ()) -> dict[str, Any]:
    """The config that a file saved by a full fine-tune here carries in its header; it has the `keys` of its architecture. Raises UserError
    (`bad_weights`) for a file without it, which holds weights in another layout."""
    try:
        config = json.loads(header.metadata.get("config", ""))
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict) or not config.keys() >= set(keys):
        first = next(iter(header.shapes), "nothing")
        lacking = f"no config with {', '.join(keys)}" if keys else "no config"
        raise _bad(
            header.path,
            f"a safetensors file in a layout that is not read here ({len(header.shapes)} tensors, the first '{first}', and {lacking} "
            "in its header)",
            "give a file that a job of this architecture saved, or a folder where this architecture takes one",
        )
    return config


def check_base_file(path: Path) -> Header:
    """The header of a file that a model is loaded from. Raises UserError (`bad_weights`) as `read_header` does, and for an adapter."""
    header = read_header(path)
    for key in header.shapes:
        if kind := adapter_kind(key):
            raise _bad(
                path,
                f"an adapter ({kind}: it holds '{key}'), not a model",
                "name the model that it was trained on here, and this file as the adapter",
            )
    return header


def check_base_folder(folder: Path, parts: str = PART_FOLDERS) -> None:
    """Look at every file that loading the parts in `folder` would read: in `folder` itself where it is one part, and in its sub-folders
    whose names match `parts`. Raises UserError (`bad_weights`) for the first that is not what its name says."""
    entries = _entries(folder)
    if PIPELINE in entries:
        read_json(entries[PIPELINE])
    elif any(name in entries for name in PART_MARKERS):
        check_part(folder)
    for name, inner in entries.items():
        if re.fullmatch(parts, name) and inner.is_dir():
            check_part(inner)


def check_part(folder: Path) -> Path:
    """Look at the files of one part (its config, its weights with all of their shards, a tokenizer's texts); the answer is `folder`.
    Raises UserError (`bad_weights`) for the first that is not what its name says."""
    files = _entries(folder)
    for name, path in files.items():
        if re.fullmatch(JSON_OF_PART, name):
            check_json(path)
        elif name in TEXTS_OF_PART:
            _check_text(path)
        elif name in WEIGHTS_OF_PART:
            check_base_file(path)
    for index in (path for name, path in files.items() if name.endswith(f".safetensors{INDEX}")):
        for shard in shards(index):
            if shard.name not in files:
                raise _bad(index, f"the index of several files, of which {shard.name} is missing", "download that file")
            check_base_file(shard)
    if "config.json" in files and (mend := other_names(files)):
        raise _bad(folder, "a folder without weights under the names that are read", mend)
    if "tokenizer_config.json" in files:
        _check_vocabulary(folder, files)
    pickles = [path for name, path in files.items() if re.fullmatch(PICKLES_OF_PART, name)]
    if pickles and "config.json" in files and not any(name.endswith(".safetensors") for name in files):
        raise _bad(pickles[0], "a pickle, which can run code", ONLY)
    return folder


def other_names(names: Collection[str]) -> str:
    """What to do where a folder has no weights under the names that are read, but some of another precision, or several files without
    their index; an empty text for any other folder."""
    if any(name in WEIGHTS_OF_PART or name.endswith(f".safetensors{INDEX}") for name in names):
        return ""
    stems = "|".join(name.removesuffix(".safetensors") for name in WEIGHTS_OF_PART)
    pattern = rf"(?P<stem>{stems})(?P<variant>\.\w+)?(?P<number>-\d+-of-\d+)?\.safetensors"
    found = next(filter(None, (re.fullmatch(pattern, name) for name in names)), None)
    if found is None:
        return ""
    if not found["variant"]:
        return f"several files need their index: download {found['stem']}.safetensors{INDEX}"
    if found["number"]:
        return f"download the files without '{found['variant']}' in their names"
    return f"download {found['stem']}.safetensors, or rename {found[0]} to it"


def _check_vocabulary(folder: Path, files: Mapping[str, Path]) -> None:
    """Raises UserError for a tokenizer without its vocabulary: the library would make one that gives no tokens for any text."""
    if any(re.fullmatch(VOCABULARY, name) for name in files) or {"vocab.json", "merges.txt"} <= files.keys():
        return
    if not re.fullmatch(WITHOUT_VOCABULARY, str(read_json(files["tokenizer_config.json"]).get("tokenizer_class"))):
        lacking = "merges.txt" if "vocab.json" in files else "vocab.json" if "merges.txt" in files else "tokenizer.json"
        raise _bad(folder, f"the folder of a tokenizer whose vocabulary is missing: it has no {lacking}", "download that file")


def shards(index: Path) -> list[Path]:
    """The files that an index names, all of them beside it; they need not be there. Raises UserError (`bad_weights`) for another JSON."""
    listed = read_json(index).get("weight_map")
    names = sorted({str(name) for name in listed.values()}) if isinstance(listed, dict) else []
    if not names or any(Path(name).name != name for name in names):
        raise _bad(index, "no index of weights: its weight_map names no files beside it", AGAIN)
    return [index.parent / name for name in names]


def check_adapter_file(path: Path) -> Header:
    """The header of an adapter's file. Raises UserError: `bad_weights` as `read_header` does, and `bad_adapter`, with keys as they stand
    in the file, for whole weights, for kinds of adapters that are not read here, for parts of a text encoder, and for a layer that is
    named twice."""
    if (path / PEFT_WEIGHTS).is_file():
        raise _bad(path, "a folder that PEFT saved", f"name the {PEFT_WEIGHTS} in it")
    header = read_header(path)
    check_keys(path, header.shapes)
    return header


def _first_bytes(path: Path) -> tuple[bytes, int]:
    """The first bytes and the size. Raises UserError for anything that is not a file that can be read."""
    try:
        about = path.stat()
        if stat.S_ISDIR(about.st_mode):
            raise _bad(path, "a folder, not a file", "name a file in it")
        if not stat.S_ISREG(about.st_mode):
            raise _bad(path, "a pipe, socket or device, not a file", "name the file of the weights")
        with path.open("rb") as file:
            return file.read(FIRST), about.st_size
    except OSError as error:
        raise _unreadable(path, error) from None


def _is_safetensors(first: bytes) -> bool:
    return 2 <= int.from_bytes(first[:8], "little") <= LARGEST_HEADER and first[8:9] == b"{"


def _described(first: bytes, size: int) -> tuple[str, str]:
    """What a file is, if it is not what was expected, and what to do."""
    for magic, what, mend in SIGNATURES:
        if first.startswith(magic):
            return what, mend
    if not size:
        return "an empty file", AGAIN
    if first.startswith(LFS):
        pull = "run `git lfs pull` in its folder, or download the file"
        return f"a Git LFS pointer of {size} bytes, not the file itself", pull
    if _is_web_page(first):
        why = "download the file itself (a page for signing in may have come in its place)"
        return "a web page, not the file itself", why
    if first.startswith(b"PK\x03\x04"):
        if b"data.pkl" in first:
            return "a pickle in a zip archive, as torch.save writes it, which can run code", ONLY
        return "a zip archive", "unpack it"
    if first[:1] == b"\x80" and b"\x02" <= first[1:2] <= b"\x05":
        return "a pickle, which can run code", ONLY
    if _is_safetensors(first):
        return "a safetensors file", "name the file that is meant"
    if not first.strip(b"\0"):
        return "a file that begins with zeros, as a download leaves it that did not finish", AGAIN
    if first.lstrip(BLANK).startswith((b"{", b"[")):
        return f"a JSON text of {size} bytes", INSTEAD
    if first.lstrip(BLANK).startswith(b"<?xml"):
        return "an XML text", INSTEAD
    if first.isascii() and b"\0" not in first:
        return f"a text of {size} bytes", INSTEAD
    return "no safetensors file, nor of another kind that is known", ONLY


def _check_text(path: Path) -> None:
    """Raises UserError for a tokenizer's file that is a pointer, a web page or empty; its own form is not judged."""
    first, size = _first_bytes(path)
    if not size or first.startswith(LFS) or _is_web_page(first):
        raise _bad(path, *_described(first, size))


def _is_web_page(first: bytes) -> bool:
    return first.lstrip(BLANK)[:14].lower().startswith((b"<!doctype html", b"<html", b"<head", b"<!--"))


def _begins_as_json(first: bytes) -> bool:
    return first.lstrip(BLANK).startswith(b"{")


def _last_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(-FIRST, os.SEEK_END)
            return file.read()
    except OSError as error:
        raise _unreadable(path, error) from None


def _entries(folder: Path) -> dict[str, Path]:
    """What lies in a folder, by name."""
    try:
        return {path.name: path for path in sorted(folder.iterdir())}
    except OSError as error:
        raise _unreadable(folder, error) from None


def _bad(path: Path, what: str, mend: str) -> UserError:
    return UserError(printable(f"{path} is {what}; {mend}"), code="bad_weights")


def _cut_short(path: Path, size: int, whole: str) -> UserError:
    return _bad(path, f"a safetensors file that is cut short: {size} of {whole} bytes are there", AGAIN)


def _unreadable(path: Path, error: OSError) -> UserError:
    if isinstance(error, FileNotFoundError):
        where = f"; it is a link to {path.readlink()}" if path.is_symlink() else ""
        return UserError(f"{path} is missing{where}", code="missing_file")
    return UserError(f"{path} cannot be read: {error.strerror or error}", code="bad_weights")


class _Doubled(ValueError):
    pass


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    doubled = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]
    if doubled:
        raise _Doubled(doubled[0])
    return dict(pairs)
