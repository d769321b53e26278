"""What is read as a caption, and what a step makes of it."""

import json
import os
import tracemalloc
from collections import Counter

import pytest

from models.data.captions import (
    CaptionRule,
    caption_at,
    every_caption,
    preservation_caption,
    read_caption,
    with_trigger,
)
from models.data.metadata import METADATA, read_metadata
from models.data.texts import TEXT_BYTES, BadText


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ('{"caption": "a red, shiny car"}', "a red, shiny car"),
        ('{"text": "two\\nlines"}', "two lines"),
        ('{"prompt": "p", "seed": 3}', "p"),
        ('{"text": "t", "caption": "c"}', "c"),
        ('\ufeff{"caption": "caf\u00e9, \u732b"}', "café, 猫"),
        ('{"caption": null}', ""),
        ("  \n", ""),
        ('{"caption": "\\u200b"}', ""),
    ],
)
def test_json_captions(tmp_path, written, read) -> None:
    (tmp_path / "a.json").write_text(written, encoding="utf-8")
    assert read_caption(tmp_path / "a.json") == read


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ('{\n"caption": "a",\n}', "not valid JSON: .* in line [23]"),
        ('{"label": 3}', "none of the keys caption, text, prompt is there"),
        ('["a"]', "a JSON list is no object"),
        ('{"caption": 3}', "caption is not a text: 3"),
        ('{"caption": "\\ud800"}', "caption holds half of a surrogate pair, which is no character"),
        ('{"caption": "a\\u0000b"}', r"caption holds U\+0000, a control character"),
        ('{"caption": "a", "caption": "b"}', "key 'caption' stands twice in one object"),
        ('{"caption": NaN}', "not valid JSON: NaN is not a JSON number"),
        ('{"caption": %s}' % ("7" * 5000), "JSON with a number of too many digits"),
        ("[" * 100_000, "JSON that is nested too deeply"),
    ],
)
def test_json_that_is_no_caption_says_why(tmp_path, written, reason) -> None:
    (tmp_path / "a.json").write_text(written)
    with pytest.raises(BadText, match=reason):
        read_caption(tmp_path / "a.json")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_one_caption_in_several_encodings_is_one_text(tmp_path, encoding) -> None:
    (tmp_path / "a.txt").write_bytes("café, 猫\r\n".encode(encoding))
    assert read_caption(tmp_path / "a.txt") == "café, 猫"


def test_a_folder_of_hugging_face_s_form(tmp_path) -> None:
    lines = [{"file_name": "a.png", "text": "an a"}, {"file_name": "sub/b.png", "caption": "a b", "label": 1}]
    (tmp_path / "metadata.jsonl").write_text("\n\n".join(map(json.dumps, lines)))
    found = read_metadata(tmp_path, [METADATA, "a.png", "sub/b.png"])
    assert (found.captions, found.faults) == ({"a.png": "an a", "sub/b.png": "a b"}, [])


def peak_bytes(read) -> int:
    tracemalloc.start()
    try:
        read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["a.txt", "a.json"])
def test_a_caption_file_is_read_up_to_a_limit(tmp_path, name) -> None:
    (tmp_path / name).write_bytes(b"x")
    os.truncate(tmp_path / name, 700 << 20)

    def read() -> None:
        with pytest.raises(BadText, match="700 MB of text inside, at most 1 MB"):
            read_caption(tmp_path / name)

    assert peak_bytes(read) < 8 * TEXT_BYTES


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_metadata_file_is_read_by_lines_of_bounded_length(tmp_path, encoding) -> None:
    ends = ("a\u2028b.png", "c\x85d.png")
    lines = [json.dumps({"file_name": name, "text": "x"}, ensure_ascii=False) for name in ends]
    long = json.dumps({"file_name": "long.png", "text": "x" * 3 * TEXT_BYTES})
    text = "\r\n".join([lines[0], "{", "[" * 100_000, lines[1], long, "{"])
    (tmp_path / "metadata.jsonl").write_bytes(text.encode(encoding))
    found = read_metadata(tmp_path, [METADATA, *ends])
    assert sorted(found.captions) == sorted(ends)
    reasons = [(2, "not valid JSON: "), (3, "JSON that is nested too deeply"), (5, "longer than 1 MB; from here on")]
    for (number, reason), (at, begins) in zip(found.faults, reasons, strict=True):
        assert number == at
        assert reason.startswith(begins)


def test_a_sparse_metadata_file_takes_no_memory(tmp_path) -> None:
    (tmp_path / "metadata.jsonl").touch()
    os.truncate(tmp_path / "metadata.jsonl", 700 << 20)
    assert peak_bytes(lambda: read_metadata(tmp_path, [METADATA])) < 16 * TEXT_BYTES


def test_a_line_that_is_no_text_is_named_and_the_others_are_read(tmp_path) -> None:
    (tmp_path / "metadata.jsonl").write_bytes(b'{"file_name": "a\xff.png", "text": "x"}\n{"file_name": "b.png", "text": "x"}')
    found = read_metadata(tmp_path, [METADATA, "b.png"])
    assert (list(found.captions), found.faults) == (["b.png"], [(1, "not UTF-8 or UTF-16 text")])


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("listed", [True, False])
def test_metadata_in_one_json_text_is_refused_in_one_sentence(tmp_path, listed, indent) -> None:
    line = {"file_name": "a.png", "text": "x"}
    (tmp_path / "metadata.jsonl").write_text("\n" + json.dumps([line, line] if listed else line, indent=indent))
    sentence = "it is one JSON text; write one object a line, without a list around them"
    found = read_metadata(tmp_path, [METADATA, "a.png"])
    assert (found.faults, len(found.captions)) == (([(0, sentence)], 0) if listed or indent else ([], 1))


def test_broken_lines_are_known_by_their_numbers(tmp_path) -> None:
    lines = [
        '{"file_name": "a.png", "text": "x"}',
        "{",
        '{"text": "x"}',
        '{"file_name": "b.png"}',
        '{"file_name": "a.png", "text": "y"}',
        '{"file_name": "c.png", "text": "y", "text": "z"}',
        '{"file_name": "c.png", "text": "\\u0000"}',
    ]
    (tmp_path / "metadata.jsonl").write_text("\n".join(lines))
    assert [number for number, _ in read_metadata(tmp_path, [METADATA, "a.png"]).faults] == [2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("caption", "rule", "made"),
    [
        ("a photo of [trigger], outside", CaptionRule("ohwx"), "a photo of ohwx, outside"),
        ("[name] by [trigger]", CaptionRule("ohwx"), "ohwx by ohwx"),
        ("a dog", CaptionRule("ohwx"), "ohwx a dog"),
        ("my ohwx dog", CaptionRule("ohwx"), "my ohwx dog"),
        ("", CaptionRule("ohwx"), "ohwx"),
        ("a dog", CaptionRule("ohwx", is_reg=True), "a dog"),
        ("[TRIGGER] at sea", CaptionRule("ohm"), "ohm at sea"),
        ("[Trigger] here, [ NAME ] there", CaptionRule("ohm"), "ohm here, ohm there"),
        ("Ohm statue", CaptionRule("ohm"), "Ohm statue"),
        ("an ohmmeter on a desk", CaptionRule("ohm"), "ohm an ohmmeter on a desk"),
        ("ohm_style, kohm", CaptionRule("ohm"), "ohm ohm_style, kohm"),
        ("the ohm's dial", CaptionRule("ohm"), "the ohm's dial"),
        ("一只ohm猫", CaptionRule("ohm"), "一只ohm猫"),
        ("CAFE\u0301 noir", CaptionRule("caf\u00e9"), "CAFE\u0301 noir"),
        ("a cafe", CaptionRule("caf\u00e9"), "caf\u00e9 a cafe"),
        ("cafe\u0301", CaptionRule("cafe"), "cafe cafe\u0301"),
        ("OHM  wx dog", CaptionRule("ohm wx"), "OHM  wx dog"),
        ("x<ohm>x", CaptionRule("<ohm>"), "x<ohm>x"),
        ("[trigger]s", CaptionRule(), "[trigger]s"),
        ("a [trigger] dog", CaptionRule("ohwx", is_reg=True), "a [trigger] dog"),
        ("a dog", CaptionRule(), "a dog"),
        ("a,b ,  c", CaptionRule(), "a,b ,  c"),
    ],
)
def test_the_trigger_word_goes_where_it_belongs(caption, rule, made) -> None:
    assert with_trigger(caption, rule) == made
    assert caption_at(caption, rule, 1, 2, 3) == made


def test_a_dropped_caption_is_empty_even_with_a_trigger_word() -> None:
    rule = CaptionRule("ohwx", dropout=0.25)
    seen = Counter(caption_at("a dog", rule, 7, step, place) for step in range(500) for place in range(4))
    assert set(seen) == {"", "ohwx a dog"}
    assert seen[""] / 2000 == pytest.approx(0.25, abs=0.03)


def test_shuffled_tags_keep_their_front_and_change_with_step_and_place_alone() -> None:
    rule = CaptionRule(shuffle=True, kept=2)
    tags = [f"t{number}" for number in range(8)]
    made = [caption_at(" ,".join(tags), rule, 1, step, 0) for step in range(50)]
    assert made == [caption_at(" ,".join(tags), rule, 1, step, 0) for step in range(50)]
    assert all(caption.split(", ")[:2] == ["t0", "t1"] and sorted(caption.split(", ")) == tags for caption in made)
    assert len(set(made)) > 40
    assert caption_at("a, b, c, d, e", rule, 1, 3, 0) != caption_at("a, b, c, d, e", rule, 1, 3, 5)


def test_tags_are_dropped_at_their_rate_and_stay_in_order() -> None:
    rule = CaptionRule(token_dropout=0.4, kept=1)
    tags = [f"t{number}" for number in range(11)]
    made = [caption_at(", ".join(tags), rule, 1, step, 0).split(", ") for step in range(400)]
    assert all(caption == sorted(caption, key=tags.index) and caption[0] == "t0" for caption in made)
    assert sum(len(caption) - 1 for caption in made) / 4000 == pytest.approx(0.6, abs=0.03)


def test_all_that_can_occur_is_listed() -> None:
    rule = CaptionRule("ohwx", dropout=0.5, preserved_class="dog")
    seen = {caption_at("on grass", rule, 1, step, 0) for step in range(50)}
    listed = every_caption("on grass", rule)
    assert listed == ["ohwx on grass", "", "dog on grass"]
    assert seen | {preservation_caption(caption, rule) for caption in seen} == set(listed)
    with pytest.raises(ValueError, match="cannot be listed"):
        every_caption("a, b", CaptionRule(shuffle=True))


@pytest.mark.parametrize(
    ("caption", "rule", "kept"),
    [
        ("ohwx on ohwx grass", CaptionRule("ohwx", preserved_class="dog"), "dog on dog grass"),
        ("", CaptionRule("ohwx", preserved_class="dog"), ""),
        ("ohwx", CaptionRule("ohwx"), "ohwx"),
        ("ohwx", CaptionRule("ohwx", is_reg=True, preserved_class="dog"), "ohwx"),
        ("a cat", CaptionRule(None, preserved_class="dog"), "a cat"),
        ("ohm an ohmmeter, OHM's", CaptionRule("ohm", preserved_class="device"), "device an ohmmeter, device's"),
        ("ohm", CaptionRule("ohm", preserved_class=r"\1"), r"\1"),
    ],
)
def test_preserved_captions_name_the_class(caption, rule, kept) -> None:
    assert preservation_caption(caption, rule) == kept
