"""Folders from elsewhere, as a worker lists them: what it finds, what it says of broken ones, what it does when they change. The
packages are written here."""

import os
import re
import select
import signal
from pathlib import Path
from typing import Any

import pytest

from models import catalog, toolkit
from models.errors import UserError
from server.api.extensions import as_extension
from server.store.settings import settings
from tests.worker.foreign_sources import CARD, MODEL, THEIRS, ours, theirs
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


DEFAULTS = [
    ('{"train": {"switch_boundary_every": 5}}', "/train/switch_boundary_every: arch 'tiny_ours' has no use for"),
    ('{"datasets": {"num_frames": 9}}', "/datasets/0/num_frames: arch 'tiny_ours' has no use for num_frames: it lacks 'video'"),
    ('{"train": {"timestep_type": "shift"}}', "/train/timestep_type: timestep_type 'shift' follows the schedule of arch"),
    ('{"train": {"stepps": 5}}', "/train/stepps: unknown key 'stepps'"),
    ('{"sampel": {"width": 64}}', "/sampel: unknown key 'sampel'"),
    ('{"train": {"lr": "0.1"}}', "/train/lr: must be a number, not '0.1'"),
    ('{"datasets": {"resolution": [20]}}', "/datasets/0/resolution/0: 20 must be a multiple of 8"),
]


@pytest.mark.parametrize(("defaults", "reason"), DEFAULTS)
def test_defaults_that_mean_nothing_are_told_when_a_card_is_looked_at(
    tmp_path: Path, look: Any, defaults: str, reason: str
) -> None:
    folder = ours(tmp_path / "mine")
    card = (folder / "card.py").read_text()
    (folder / "card.py").write_text(card.replace("bucket_divisibility=8", f"bucket_divisibility=8, defaults={defaults}"))
    (row,) = look(folder).values()
    assert row.broken.startswith(f"its defaults are not right: {reason}")


def test_a_preset_that_is_no_job_is_told_by_its_name(tmp_path: Path, look: Any) -> None:
    folder = ours(tmp_path / "mine")
    card = (folder / "card.py").read_text().replace("import Arch", "import Arch, Preset")
    preset = (
        'presets=(Preset(name="slow", label="Slow", description="", spec={"kind": "sample", "model": {"arch": "tiny_ours"}}),)'
    )
    (folder / "card.py").write_text(card.replace("bucket_divisibility=8", f"bucket_divisibility=8, {preset}"))
    (row,) = look(folder).values()
    assert row.broken.startswith("its preset 'slow' is not right: /name: must be given; /model/name_or_path: must be given")


def test_defaults_wait_for_what_a_job_sets_beside_them(tmp_path: Path, look: Any) -> None:
    folder = ours(tmp_path / "mine")
    card = (folder / "card.py").read_text()
    defaults = '{"model": {"qtype": "qint8"}, "train": {"huber_c": 0.5}, "network": {"lokr_factor": 4}, "datasets": {"resolution": [32]}}'
    (folder / "card.py").write_text(card.replace("bucket_divisibility=8", f"bucket_divisibility=8, defaults={defaults}"))
    assert look(folder)["tiny_ours"].broken is None


BROKEN = [
    ("import nowhere_to_be_found\n", "it needs the Python package 'nowhere_to_be_found', which is not installed"),
    ("from toolkit.basic import no_such_name\n", "cannot import name 'no_such_name' from 'toolkit.basic'"),
    ("import toolkit.stable_diffusion_model\n", "Safelight does not offer ai-toolkit's module 'toolkit.stable_diffusion_model'"),
    ("raise ValueError('half done')\n", "ValueError: half done (model.py, line 1)"),
    ("def f(:\n", "SyntaxError: invalid syntax (model.py, line 1)"),
    ("import os; os._exit(3)\n", "importing it ended the process (exit code 3)"),
    ("import os; os.kill(os.getpid(), 9)\n", "importing it ended the process (signal 9)"),
]


OURS_BROKEN = [
    *((start + MODEL, reason) for start, reason in BROKEN if "toolkit" not in start),
    ("import sys; sys.exit(4)\n" + MODEL, "SystemExit: 4 (model.py, line 1)"),
    (MODEL.replace("class Model", "class Modell"), ".model:Model', but ours_9.model has no such class"),
    (MODEL.replace("(BaseModel)", ""), "but ours_10.model has under that name no subclass of models.base.BaseModel"),
    (MODEL + "    def __init__(self, *_, **__): raise ValueError('no device')\n", "ValueError: no device (model.py, line"),
]


def test_packages_that_do_not_import_say_why_under_their_archs_name_and_hide_nothing(tmp_path: Path, look: Any) -> None:
    """In both forms, all beside one that is whole: a syntax error, a missing class, an exit at import."""
    reasons = {}
    for number, (start, reason) in enumerate(BROKEN):
        theirs(tmp_path / "ext" / f"theirs_{number}", start + THEIRS, f"their_{number}")
        reasons[f"their_{number}"] = reason
    for number, (source, reason) in enumerate(OURS_BROKEN, start=3):
        folder = ours(tmp_path / "ext" / f"ours_{number}")
        (folder / "card.py").write_text(CARD.replace("tiny_ours", f"our_{number}"))
        (folder / "model.py").write_text(source)
        reasons[f"our_{number}"] = reason
    (ours(tmp_path / "ext" / "no_card") / "card.py").write_text("import sys; sys.exit('no card')\n")
    failing = THEIRS.replace("self.is_flow_matching = True", "raise AttributeError('no setter')")
    theirs(tmp_path / "ext" / "their_class", failing, "unbuilt")
    reasons["unbuilt"] = "AttributeError: no setter (model.py, line"
    theirs(tmp_path / "ext" / "good")
    rows = look(tmp_path / "ext")
    assert set(rows) == {*reasons, "no_card", "tiny_theirs"}
    assert {name: row.broken for name, row in rows.items() if reasons.get(name, "") not in (row.broken or "")} == {}
    assert rows["no_card"].broken == "SystemExit: no card (card.py, line 1)" and rows["tiny_theirs"].broken is None


@pytest.mark.parametrize(("half", "other"), [("card.py", "model.py"), ("model.py", "card.py")])
def test_half_a_folder_of_our_form_is_listed_as_broken_beside_a_whole_one(
    tmp_path: Path, look: Any, half: str, other: str
) -> None:
    (ours(tmp_path / "ext" / "half") / other).unlink()
    ours(tmp_path / "ext" / "whole")
    (tmp_path / "ext" / "unrelated").mkdir()
    (tmp_path / "ext" / "unrelated" / "model.py").write_text("import torch\n")
    rows = look(tmp_path / "ext")
    assert set(rows) == {"half", "tiny_ours"} and rows["tiny_ours"].broken is None
    assert (
        rows["half"].broken == f"{tmp_path / 'ext' / 'half'} has {half} without {other}; an architecture of our form needs both"
    )


def test_an_import_that_hangs_is_broken_at_once_and_ended_with_all_that_it_started(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ignores the alarm, and what it starts holds its pipe open."""
    monkeypatch.setattr(discover, "SLOW_IMPORT_SECONDS", 0.1)
    monkeypatch.setattr(discover, "LONGEST_IMPORT_SECONDS", 1)
    alive, held = os.pipe()

    def hang() -> Any:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        os.fork()
        while True:
            signal.pause()

    shown: list[Any] = []
    (row,) = discover.in_fork(Package(ours(tmp_path / "stuck")), "stuck", hang, shown.append)
    assert [each["broken"] for each in shown] == ["importing it has taken 0.1 s so far; it is ended after 1 s"]
    assert row["broken"] == "importing it took longer than 1 s"
    os.close(held)
    assert select.select([alive], [], [], 30)[0] and os.read(alive, 1) == b""  # nobody has the other end any more
    os.close(alive)


def test_code_that_exits_when_a_job_imports_it_ends_the_job_and_a_neighbour_is_never_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ours(tmp_path / "ext" / "a_deadly") / "model.py").write_text("import os; os._exit(3)\n")
    source = MODEL.replace("tiny_ours", "late_exit") + "import sys; sys.exit(1)\n"
    (ours(tmp_path / "ext" / "b_mine") / "card.py").write_text(CARD.replace("tiny_ours", "late_exit"))
    (tmp_path / "ext" / "b_mine" / "model.py").write_text(source)
    (package,) = packages([tmp_path / "ext" / "b_mine"])
    with pytest.raises(UserError, match=r"arch 'late_exit' is broken: SystemExit: 1"):
        extensions_of_worker._import(package, "late_exit")
    (tmp_path / "ext" / "b_mine" / "model.py").write_text(MODEL.replace("tiny_ours", "late_exit"))
    monkeypatch.setenv("SAFELIGHT_EXTENSIONS", str(tmp_path / "ext"))
    settings.cache_clear()
    found = extensions_of_worker.load_from_folders("late_exit")
    assert found is not None and found.source == str(tmp_path / "ext" / "b_mine")


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


@pytest.mark.parametrize("name", ["json", "this"])
def test_a_folder_named_like_an_installed_module_is_refused(tmp_path: Path, look: Any, name: str) -> None:
    (row,) = look(ours(tmp_path / name)).values()
    assert re.fullmatch(f"the folder's name '{name}' is that of an(other| installed Python) module; give it another", row.broken)


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
