"""Folders from elsewhere, as a worker lists them: what it finds, which names they get, what it does when they change. The packages
are written here."""

from pathlib import Path
from typing import Any

import pytest

from models import catalog, toolkit
from server.api.extensions import as_extension
from tests.worker.foreign_sources import CARD, THEIRS, ours, theirs
from worker import extensions as extensions_of_worker
from worker.extensions import discover, foreign
from worker.extensions.packages import Package, digest, entries, packages, stamps

# -- finding ----------------------------------------------------------------------------------------------------------------


def test_both_forms_are_found_in_a_folder_and_by_themselves(tmp_path: Path) -> None:
    theirs(tmp_path / "ext" / "a_theirs")
    ours(tmp_path / "ext" / "b_ours")
    (tmp_path / "ext" / "unrelated").mkdir()
    (tmp_path / "ext" / "unrelated" / "__init__.py").write_text("AI_TOOLKIT_EXTENSIONS = []")
    found = packages([tmp_path / "ext"])
    assert [(package.path.name, package.form, package.problem) for package in found] == [
        ("a_theirs", "toolkit", None),
        ("b_ours", "ours", None),
    ]
    assert packages([tmp_path / "ext" / "a_theirs"]) == found[:1]


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda path: path.parent, "is missing"),
        (lambda path: path.write_text(""), "is not a folder"),
        (
            lambda path: path.mkdir(),
            "holds no architecture: it needs card.py and model.py, or an __init__.py with AI_TOOLKIT_MODELS",
        ),
        (lambda path: ours(path / "my-arch"), "the folder's name 'my-arch' is no Python name; call it 'my_arch'"),
    ],
)
def test_a_folder_without_any_says_why(tmp_path: Path, make: Any, problem: str) -> None:
    make(tmp_path / "ext")
    (found,) = packages([tmp_path / "ext"])
    assert found.problem is not None and problem in found.problem


def test_a_list_of_imports_is_read_without_running_it_and_anything_else_is_not(tmp_path: Path) -> None:
    package = Package(theirs(tmp_path / "extensions_built_in" / "models_of_mine"))
    (entry,) = entries(package) or []
    assert (entry.module, entry.class_name) == ("extensions_built_in.models_of_mine.network", "TinyModel")
    (package.path / "__init__.py").write_text("import os\nAI_TOOLKIT_MODELS = [x for x in ()]\n")
    assert entries(package) is None


def test_the_digest_is_of_source_only_and_sees_every_change(tmp_path: Path) -> None:
    folder = theirs(tmp_path / "pack")
    before, stamped = digest(folder), stamps(packages([folder]))
    (folder / "weights.safetensors").write_bytes(b"x" * 100)
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "a.py").write_text("")
    assert digest(folder) == before and stamps(packages([folder])) == stamped
    (folder / "network" / "model.py").write_text(THEIRS + "# changed")
    changed = digest(folder)
    assert changed != before and stamps(packages([folder])) != stamped
    (folder / "network" / "model.py").rename(folder / "network" / "other.py")
    assert digest(folder) not in (before, changed)


# -- listing ----------------------------------------------------------------------------------------------------------------


def test_a_class_of_theirs_gets_a_card_from_what_it_says_and_reads(tmp_path: Path, look: Any) -> None:
    source = THEIRS + "\n    def condition_noisy_latents(self, latents, batch):\n        return batch.control_tensor\n"
    row = look(theirs(tmp_path / "pack", source))["tiny_theirs"]
    assert row.broken is None and row.source == str(tmp_path / "pack") and row.digest == digest(tmp_path / "pack")
    assert (
        row.card["bucket_divisibility"] == 8 and row.card["capabilities"] == ["edit", "schedule"] and row.card["options"] is None
    )
    assert row.card["code"] == "pack.network.model:TinyModel"
    older = THEIRS.replace("use_old_lokr_format = False", "").replace("def get_train_scheduler", "def another")
    assert look(theirs(tmp_path / "older", older))["tiny_theirs"].card["capabilities"] == ["old_lokr_names"]
    assert set(row.schemas) == {"train", "sample"}


READS: list[tuple[str, set[str]]] = [
    ("return batch.dataset_config.do_i2v and gen_config.num_frames", {"video", "i2v"}),
    ("return batch.dataset_config.do_audio", {"audio"}),
    ("return open(gen_config.ctrl_img)", {"edit"}),
    ("path = gen_config.ctrl_img\n        return path, gen_config.num_frames", {"video", "i2v"}),
    ("return open(gen_config.ctrl_img), batch.control_tensor, gen_config.num_frames", {"video", "edit"}),
    ("if gen_config.ctrl_img is not None:\n            raise NotImplementedError", set()),
    ("if self.model_config.assistant_lora_path is not None:\n            raise ValueError", set()),
    ("return self.put_on(self.model_config.assistant_lora_path)", {"training_adapter"}),
]


CONTENTS: list[
    tuple[str, str, tuple[str, str]]
] = [  # (what the constructor sets, what the code reads, the card's kind and modality)
    ("", "return gen_config.prompt", ("t2i", "image")),
    ("", "return open(gen_config.ctrl_img)", ("t2i", "image")),
    ("", "return gen_config.num_frames", ("t2v", "video")),
    ("", "return gen_config.num_frames, batch.dataset_config.do_i2v, batch.dataset_config.do_audio", ("t2v", "video")),
    ("; self.is_audio_model = True", "return batch.dataset_config.do_audio", ("audio", "audio")),
]


@pytest.mark.parametrize(("flag", "body", "contents"), CONTENTS)
def test_a_derived_card_says_whether_a_class_makes_pictures_clips_or_sounds(
    flag: str, body: str, contents: tuple[str, str]
) -> None:
    source = THEIRS.replace("self.is_flow_matching = True", f"self.is_flow_matching = True{flag}")
    with toolkit.installed():
        exec(f"{source}\n    def reading(self, batch, gen_config):\n        {body}\n", made := {"__name__": "theirs"})
    card = foreign.card_of(made["TinyModel"])
    assert (card.kind, card.modality) == contents


@pytest.mark.parametrize(("body", "capabilities"), READS)
def test_what_a_class_reads_opens_the_keys_of_a_job_and_what_it_refuses_does_not(body: str, capabilities: set[str]) -> None:
    source = THEIRS + f"\n    def reading(self, batch, gen_config):\n        {body}\n"
    with toolkit.installed():
        exec(source, made := {"__name__": "theirs"})
    assert set(foreign.card_of(made["TinyModel"]).capabilities) - {"schedule"} == capabilities


def test_a_card_of_ours_comes_with_its_options(tmp_path: Path, look: Any) -> None:
    row = look(ours(tmp_path / "mine"))["tiny_ours"]
    assert row.broken is None and row.card["code"] == "mine.model:Model"
    assert row.card["options"]["properties"]["width"]["minimum"] == 4
    assert row.schemas["train"]["$defs"]["Options"]["properties"]["width"]["title"] == "Width"


def test_a_name_that_is_taken_is_broken_and_keeps_its_owner(tmp_path: Path, look: Any) -> None:
    rows = look(theirs(tmp_path / "first", name="pocket"), theirs(tmp_path / "second"), theirs(tmp_path / "third"))
    assert set(rows) == {"pocket@first", "tiny_theirs", "tiny_theirs@third"}
    assert rows["pocket@first"].broken == (
        "its name 'pocket' is already that of an arch from Safelight itself; set another `arch`, or let this one win: write "
        f'replaces = ["pocket"] into {tmp_path / "first"}/safelight.toml'
    )
    assert str(tmp_path / "second") in rows["tiny_theirs@third"].broken and rows["tiny_theirs"].broken is None
    freed = look(tmp_path / "third")
    assert set(freed) == {"tiny_theirs"} and freed["tiny_theirs"].broken is None


def test_a_folder_may_choose_that_its_arch_wins_a_name(tmp_path: Path, look: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over Safelight's own, which says so, and over an earlier folder's; a job then runs its code, and ours again once it has gone."""
    first, second = theirs(tmp_path / "first"), ours(tmp_path / "second")
    chosen = theirs(tmp_path / "chosen", name="pocket")
    for folder, name in ((chosen, "pocket"), (second, "tiny_theirs")):
        (folder / "safelight.toml").write_text(f'replaces = ["{name}"]\n')
    (second / "card.py").write_text(CARD.replace("tiny_ours", "tiny_theirs"))
    rows = look(first, second, chosen)
    assert set(rows) == {"tiny_theirs@first", "tiny_theirs", "pocket"} and rows["tiny_theirs"].source == str(second)
    assert f"an arch from {second}" in rows["tiny_theirs@first"].broken
    assert rows["pocket"].broken is None and rows["pocket"].card["description"].endswith("In place of Safelight's own.")
    catalog.register(map(as_extension, rows.values()))
    assert catalog.arch("pocket").code == "chosen.network.model:TinyModel"
    assert extensions_of_worker.archs().count("pocket") == 1
    for load in (extensions_of_worker.load_from_folders, extensions_of_worker.load):
        assert load("pocket").source == str(chosen)  # type: ignore[union-attr]
    look(first)
    assert extensions_of_worker.load("pocket") is None and catalog.arch("pocket") is catalog.bundled()["pocket"]
    assert extensions_of_worker.load_from_folders("pocket") is None


@pytest.mark.parametrize(("text", "why"), [("replaces = 'pocket'", "must say replaces"), ("replaces =", "is no TOML")])
def test_a_file_of_choices_that_says_something_else_is_the_folders_problem(tmp_path: Path, text: str, why: str) -> None:
    (ours(tmp_path / "mine") / "safelight.toml").write_text(text)
    (found,) = packages([tmp_path / "mine"])
    assert found.problem is not None and why in found.problem


def test_only_what_changed_is_imported_again(tmp_path: Path, look: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = theirs(tmp_path / "first"), ours(tmp_path / "second")
    look(*folders)
    asked: list[str] = []
    real = discover.look_at
    monkeypatch.setattr(discover, "look_at", lambda package, slow: asked.append(package.path.name) or real(package, slow))
    look(*folders)
    assert asked == []
    (tmp_path / "first" / "network" / "model.py").write_text(THEIRS.replace("return 8", "return 24"))
    rows = look(*folders)
    assert asked == ["first"] and rows["tiny_theirs"].card["bucket_divisibility"] == 24 and rows["tiny_ours"].broken is None
    assert set(look(folders[1])) == {"tiny_ours"}


def test_the_import_leaves_no_toolkit_behind(tmp_path: Path) -> None:
    import sys

    list(foreign.cards(packages([theirs(tmp_path / "left_behind")])[0]))
    assert not [name for name in sys.modules if name.split(".")[0] == "toolkit"]
