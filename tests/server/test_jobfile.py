"""A job file is JSON or YAML, and what it holds that a job cannot is named as what it is."""

import json

import pytest

from server import jobfile

YAML_JOB = "kind: train\nname: from yaml\nmodel: {arch: pocket}\n"
NEITHER = " is neither JSON nor YAML: "
BAD_FILES: dict[str, tuple[str | bytes, str]] = {
    "doubled.yaml": (YAML_JOB + "name: again\n", ", line 4: key 'name' stands twice in one object, first in line 2"),
    "doubled.json": ('{"kind": "train", "kind": "sample"}', ", line 1: key 'kind' stands twice in one object, first in line 1"),
    "broken.yaml": ("kind: [train\nname: x", NEITHER + "line 2: "),
    "two.yaml": ("kind: train\n---\nkind: train\n", NEITHER + "line 2: a second document begins; a job file holds one"),
    "empty.yaml": ("# nothing yet\n", " is empty"),
    "latin.yaml": (b"name: gr\xf6\xdfe\n", " is no text in UTF-8: byte 8 is 0xf6"),
    "date.yaml": ("a: 1\nname: 2026-11-30\n", ", line 2: name is a date, 2026-11-30; put it in quotes to make it a text"),
    "time.yaml": ("train: {steps: 2026-11-30 10:00:00}\n", ", line 1: train.steps is a date with a time, 2026-11-30 10:00:00; put it"),
    "nan.yaml": ("train:\n  lr: .nan\n", ", line 2: train.lr is .nan, which is no number that a job can hold"),
    "inf.yaml": ("datasets:\n  - flip: -.inf\n", ", line 2: datasets.0.flip is -.inf, which is no number"),
    "octal.yaml": ("train: {steps: 0o17}\n", ", line 1: train.steps is 0o17, an octal number; write 15"),
    "zero.yaml": ("train: {seed: 017}\n", ", line 1: train.seed is 017, which some readers take for an octal number"),
    "long.json": ('{"train": {"steps": %s}}' % ("9" * 5000), ", line 1: train.steps is a number of 5000 digits, which no job takes"),
    "deep.json": ("[" * 20_000, NEITHER + "it is nested too deeply"),
    "nul.yaml": ("a: 1\nname: 'a\0b'\n", ", line 2: U+0000 is a control character, which a job cannot hold"),
    "hex.yaml": ("train: {seed: 0x1F}\n", ", line 1: train.seed is 0x1F, a hexadecimal number; write 31"),
    "binary.yaml": ("name: !!binary aGVsbG8=\n", ", line 1: name is binary data, which a job cannot hold"),
    "set.yaml": ("network: {only_if_contains: !!set {a, b}}\n", ", line 1: network.only_if_contains is a set; write it as a list"),
    "tag.yaml": ("name: !!python/object:os.system x\n", ", line 1: name is tagged !!python/object:os.system, which means nothing here"),
    "key.yaml": ("train: {1: 2}\n", ", line 1: the key 1 is no text; put it in quotes"),
    "alias.yaml": ("name: *x\n", NEITHER + "line 1: found undefined alias 'x'"),
    "loop.yaml": ("a: &x {b: *x}\n", ", line 1: a.b is an alias of what it stands in"),
    "grows.yaml": (
        "a: &a [" + "1, " * 10 + "]\n" + "".join(f"{b}: &{b} [{f'*{a}, ' * 10}]\n" for a, b in ("ab", "bc", "cd", "de", "ef")),
        ", line 1: it has more than 100000 values with its aliases written out",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_file_that_is_no_job_is_refused_in_one_line_as_what_it_is(tmp_path, name) -> None:
    content, reason = BAD_FILES[name]
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(jobfile.BadFile) as refused:
        jobfile.read(path)
    assert str(refused.value).startswith(f"{path}{reason}")
    assert "\n" not in str(refused.value)


def test_what_json_writes_as_two_halves_of_a_character_is_one(tmp_path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"name": "an apple \U0001f34e"}))
    assert jobfile.read(tmp_path / "a.json") == {"name": "an apple \U0001f34e"}


def test_anchors_and_merges_in_yaml_are_read_as_yaml_means_them(tmp_path) -> None:
    (tmp_path / "a.yaml").write_text("one: &x {lr: 1e-4, no: yes}\ntwo: {<<: *x, lr: 2}\n")
    assert jobfile.read(tmp_path / "a.yaml") == {"one": {"lr": 1e-4, "no": "yes"}, "two": {"lr": 2, "no": "yes"}}


@pytest.mark.parametrize("text", ["a: !!bool x", "a: !!int x"], ids=["bool", "int"])
def test_a_value_that_python_cannot_make_is_refused_in_words(tmp_path, text) -> None:
    (tmp_path / "job.yaml").write_text(text)
    with pytest.raises(jobfile.BadFile, match="does not fit its tag"):
        jobfile.read(tmp_path / "job.yaml")
