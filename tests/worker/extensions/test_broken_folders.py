"""Folders that are no good, as a worker lists them: each says why under its name, hides no other, and cannot hold the worker up."""

import os
import re
import select
import signal
from pathlib import Path
from typing import Any

import pytest

from models.errors import UserError
from server.store.settings import settings
from tests.worker.foreign_sources import CARD, MODEL, THEIRS, ours, theirs
from worker import extensions as extensions_of_worker
from worker.extensions import discover
from worker.extensions.packages import Package, packages

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


@pytest.mark.parametrize("name", ["json", "this"])
def test_a_folder_named_like_an_installed_module_is_refused(tmp_path: Path, look: Any, name: str) -> None:
    (row,) = look(ours(tmp_path / name)).values()
    assert re.fullmatch(f"the folder's name '{name}' is that of an(other| installed Python) module; give it another", row.broken)
