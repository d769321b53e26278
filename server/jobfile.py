"""Job files: JSON or YAML 1.2, in which 1e-4 is a number and `no` is a word. What JSON cannot hold is refused as what it is."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode

from models.data.texts import CONTROL

MOST_DIGITS = 1000  # of a whole number; Python itself reads 4300
MOST_VALUES = 100_000  # of a file: aliases of aliases grow without end
CORE = "tag:yaml.org,2002:"
HELD = ("map", "seq", "str", "int", "float", "bool", "null", "merge", "value")
OTHERS = {
    "binary": "binary data, which a job cannot hold",
    "set": "a set; write it as a list, with a dash before each",
    "omap": "an ordered map; leave the tag out",
    "pairs": "a list of pairs; leave the tag out",
}
BASES = {"0o": "an octal", "0x": "a hexadecimal", "0b": "a binary"}


class BadFile(ValueError):
    """A job file that cannot be read, for a reason that names its place."""


def read(path: Path) -> Any:
    """The file's value, as JSON has it. Raises BadFile naming the line, and what stands there."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise BadFile(f"{path} is missing") from None
    except UnicodeDecodeError as error:
        raise BadFile(f"{path} is no text in UTF-8: byte {error.start} is {text_of(error)}") from None
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror}") from None
    if control := CONTROL.search(text):
        line = text.count("\n", 0, control.start()) + 1
        raise BadFile(f"{path}, line {line}: U+{ord(control[0]):04X} is a control character, which a job cannot hold")
    yaml = YAML(typ="safe", pure=True)
    try:
        root = yaml.compose(text)
        if root is None:
            raise BadFile(f"{path} is empty")
        for line, fault in _faults(root):
            raise BadFile(f"{path}, line {line}: {fault}")
        job = YAML(typ="safe", pure=True).load(text)
        return json.loads(json.dumps(job))  # joins what JSON escapes as two halves of a character, which YAML leaves apart
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        several = "another document" in str(error.problem)
        why = "a second document begins; a job file holds one" if several else error.problem
        raise BadFile(f"{path} is neither JSON nor YAML: line {mark.line + 1 if mark else '?'}: {why}") from None
    except BadFile:
        raise
    except (KeyError, ValueError):
        raise BadFile(f"{path} holds a value that does not fit its tag (!!int, !!bool), or a number of too many digits") from None
    except RecursionError:
        raise BadFile(f"{path} is neither JSON nor YAML: it is nested too deeply") from None
    except YAMLError as error:
        raise BadFile(f"{path} is neither JSON nor YAML: {' '.join(str(error).split())}") from None


def text_of(error: UnicodeDecodeError) -> str:
    return f"0x{error.object[error.start]:02x}"


def _faults(root: Node) -> Iterator[tuple[int, str]]:
    """(line, what stands there) of what a job cannot hold, in the order of the file."""
    left = MOST_VALUES
    around: list[tuple[Node, str, frozenset[int]]] = [(root, "", frozenset())]
    while around:
        node, place, inside = around.pop()
        left -= 1
        if left < 0:
            yield _line(root), f"it has more than {MOST_VALUES} values with its aliases written out"
            return
        if id(node) in inside:
            yield _line(node), f"{place} is an alias of what it stands in"
            return
        if said := _unheld(node):
            yield _line(node), f"{place or 'the file'} is {said}"
        below: list[tuple[Node, str, frozenset[int]]] = []
        if isinstance(node, MappingNode):
            seen: dict[str, int] = {}
            for key, value in node.value:
                name = str(key.value) if isinstance(key, ScalarNode) else "a list or an object"
                if key.tag not in (CORE + "str", CORE + "merge"):
                    yield _line(key), f"the key {name} is no text; put it in quotes"
                if name in seen and key.tag != CORE + "merge":
                    yield _line(key), f"key {name!r} stands twice in one object, first in line {seen[name]}"
                seen[name] = _line(key)
                below.append((value, f"{place}.{name}".lstrip("."), inside | {id(node)}))
        elif not isinstance(node, ScalarNode):
            below = [(each, f"{place}.{index}".lstrip("."), inside | {id(node)}) for index, each in enumerate(node.value)]
        around += reversed(below)


def _unheld(node: Node) -> str | None:
    """What this value is, if JSON has no such thing or other readers take it for another number."""
    tag = str(node.tag)
    kind = tag.removeprefix(CORE)
    text = str(node.value)
    if kind == "timestamp":
        return f"a date{' with a time' if len(text) > len('2026-11-30') else ''}, {text}; put it in quotes to make it a text"
    if kind in OTHERS:
        return OTHERS[kind]
    if kind not in HELD:
        return f"tagged {tag.replace(CORE, '!!')}, which means nothing here; leave the tag out"
    if kind == "float" and re.search("nan|inf", text, re.IGNORECASE):
        return f"{text}, which is no number that a job can hold"
    if kind == "int" and len(text) > MOST_DIGITS:
        return f"a number of {len(text)} digits, which no job takes"
    if kind == "int" and (based := BASES.get(text.lstrip("+-")[:2].lower())):
        return f"{text}, {based} number; write {int(text, 0)}"
    if kind == "int" and re.fullmatch(r"[+-]?0\d+", text):
        return f"{text}, which some readers take for an octal number; write it without the zero in front, or in quotes as a text"
    return None


def _line(node: Node) -> int:
    return int(node.start_mark.line) + 1
