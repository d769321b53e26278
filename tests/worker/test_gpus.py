"""Graphics cards, on a machine without one: what a driver's tool answers, here a script in its place."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from worker import app, gpus, probe, tasks

LISTED = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-aaaa1111-0000)
  MIG 3g.20gb     Device  0: (UUID: MIG-cccc0000-1)
  MIG 1g.5gb      Device  1: (UUID: MIG-cccc0000-2)
GPU 1: NVIDIA GeForce RTX 4090 (UUID: GPU-bbbb2222-0000)
Unable to determine the device handle for gpu 0000:02:00.0: GPU is lost.  Reboot the system to recover this GPU
GPU 3: NVIDIA H200 (UUID: GPU-bbbb3333-0000)
"""
SLICES = ["MIG-cccc0000-1", "MIG-cccc0000-2"]
ONE, OTHER = "GPU-bbbb2222-0000", "GPU-bbbb3333-0000"


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`smi(answer, memory="1, 2")`: from now on nvidia-smi lists this, and gives that as the memory."""
    monkeypatch.setattr(gpus, "_unfinished", None)
    for name in (gpus.VISIBLE, gpus.ORDER):
        monkeypatch.setenv(name, "")  # so that what a test sets is undone
        monkeypatch.delenv(name)

    def write(listed: str = LISTED, memory: str = "1024, 2048", code: int = 0, first: str = "") -> None:
        (tmp_path / "bin").mkdir(exist_ok=True)
        tool = tmp_path / "bin" / "nvidia-smi"
        script = f"#!/bin/sh\n{first}\nif [ $1 = -L ]; then cat <<'E'\n{listed}E\nelse echo '{memory}'; fi\nexit {code}\n"
        tool.write_text(script)
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")

    return write


def test_cards_are_known_by_uuid_and_slices_stand_for_their_card(smi: Any) -> None:
    smi()
    found = {card.uuid: (card.label, card.name) for card in gpus.cards()}
    assert found == {
        "MIG-cccc0000-1": ("cuda:0.0", "MIG 3g.20gb"),
        "MIG-cccc0000-2": ("cuda:0.1", "MIG 1g.5gb"),
        ONE: ("cuda:1", "NVIDIA GeForce RTX 4090"),
        OTHER: ("cuda:3", "NVIDIA H200"),
    }


@pytest.mark.parametrize(
    ("given", "left"),
    [
        (None, [*SLICES, ONE, OTHER]),
        ("1", [ONE]),
        ("3,1", [OTHER, ONE]),
        ("0", SLICES[:1]),
        (OTHER, [OTHER]),
        ("GPU-bbbb3,MIG-cccc0000-2", [OTHER, SLICES[1]]),
        ("1,7,3", [ONE]),  # as with CUDA, the first that is none ends the list
        ("1,1", [ONE]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
    ],
)
def test_a_users_visible_devices_are_respected(
    smi: Any, monkeypatch: pytest.MonkeyPatch, given: str | None, left: list[str]
) -> None:
    smi()
    if given is not None:
        monkeypatch.setenv(gpus.VISIBLE, given)
    assert [card.uuid for card in gpus.visible()] == left
    assert gpus.devices() == (left or ["cpu"])


@pytest.mark.parametrize(
    ("visible", "wanted", "label", "uuid"),
    [
        (None, None, "cuda:0.0", SLICES[0]),
        (None, "cuda:1", "cuda:1", ONE),
        (None, "cuda:3", "cuda:3", OTHER),
        ("3,1", "cuda:0", "cuda:3", OTHER),
        ("3,1", "cuda:1", "cuda:1", ONE),
        ("3", "cuda", "cuda:3", OTHER),
        (None, OTHER, "cuda:3", OTHER),
    ],
)
def test_a_worker_sees_its_own_card_alone(
    smi: Any, monkeypatch: pytest.MonkeyPatch, visible: str | None, wanted: str | None, label: str, uuid: str
) -> None:
    smi()
    if visible is not None:
        monkeypatch.setenv(gpus.VISIBLE, visible)
    found = gpus.choose(wanted)
    assert (found.label, found.torch) == (label, "cuda:0")
    assert (os.environ[gpus.ORDER], os.environ[gpus.VISIBLE]) == ("PCI_BUS_ID", uuid)


@pytest.mark.parametrize(
    ("visible", "wanted", "message"),
    [
        (None, "cuda:2", r"there is no device 'cuda:2'; there are: .*cuda:1 \(NVIDIA GeForce RTX 4090, GPU-bbbb2222-0000\)"),
        ("1", "cuda:1", r"there is no device 'cuda:1' with CUDA_VISIBLE_DEVICES=1; there are: cuda:1 "),
        ("-1", "cuda:0", "there is no device 'cuda:0' with CUDA_VISIBLE_DEVICES=-1; there are: none"),
        ("1", OTHER, "there is no device 'GPU-bbbb3333-0000'"),
        (None, "gpu1", "device 'gpu1' is unknown; give cpu, mps, cuda:N or a card's UUID"),
    ],
)
def test_a_device_that_is_none_is_refused_with_those_there_are(
    smi: Any, monkeypatch: pytest.MonkeyPatch, visible: str | None, wanted: str, message: str
) -> None:
    smi()
    if visible is not None:
        monkeypatch.setenv(gpus.VISIBLE, visible)
    with pytest.raises(ValueError, match=message):
        gpus.choose(wanted)


def test_without_the_drivers_tool_a_named_device_is_left_to_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(gpus.VISIBLE, raising=False)
    assert [gpus.choose(wanted).torch for wanted in (None, "cpu", "mps", "cuda:1")] == ["cpu", "cpu", "mps", "cuda:1"]
    assert gpus.VISIBLE not in os.environ


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        ("1024, 2048", (2**30, 2**31)),
        ("[N/A], 2048", (None, 2**31)),
        ("[N/A], [N/A]", (None, None)),
        ("ERR!, ERR!", (None, None)),
        ("[Unknown Error], [GPU is lost]", (None, None)),
        ("No devices were found", (None, None)),
        ("", (None, None)),
    ],
)
def test_what_the_driver_does_not_report_is_none(smi: Any, answer: str, wanted: Any) -> None:
    smi(memory=answer)
    assert gpus.memory("cuda:2") == wanted


def test_a_tool_that_fails_or_hangs_is_left(smi: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = "NVIDIA-SMI has failed because it could not communicate with the driver, try again.\n"
    smi(listed=failed, memory=failed, code=9)
    assert (gpus.cards(), gpus.memory("cuda:0")) == ([], (None, None))
    smi(code=15)  # of one card that is lost
    assert gpus.cards()[-1].uuid == OTHER and gpus.memory("cuda:0") == (2**30, 2**31)
    monkeypatch.setattr(gpus, "ANSWER_SECONDS", 0.05)
    smi(first="exec sleep 60")
    assert gpus.cards() == []
    hanging = gpus._unfinished
    assert hanging is not None
    hanging.wait()  # it was killed
    monkeypatch.setattr(gpus, "_unfinished", SimpleNamespace(poll=lambda: None))  # one that cannot be
    smi()
    assert gpus.cards() == []  # no second one is started beside it


def test_a_drivers_tool_that_hangs_costs_no_heartbeat(migrated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from server.store import workers
    from server.store.tables import Worker

    asked, answers = threading.Event(), threading.Event()

    def hang(_: str) -> Any:
        asked.set()
        answers.wait(60)
        raise ValueError("invalid literal for int() with base 10: '[N/A]'")

    monkeypatch.setattr(gpus, "memory", hang)
    workers.register(Worker(id="w", host="h", device="cuda:0", pid=1))
    supervisor = app.Supervisor(Worker(id="w", host="h", device="cuda:0", pid=1, memory_total=7))
    supervisor.watch = supervisor.planner = SimpleNamespace(tick=lambda: None)  # type: ignore[assignment]
    supervisor.gauge.start()
    assert asked.wait(60)
    supervisor._tick()
    answers.set()
    supervisor.gauge.end()
    supervisor.gauge.join(60)
    [(row, _)] = workers.listing()
    assert (row.beat, row.memory_used, row.memory_total) == (1, None, 7)


def test_a_worker_whose_card_cannot_be_used_is_listed_with_the_reason_and_takes_no_job(
    smi: Any, client: Any, tiny_job: Any, pictures: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pictures()
    smi()
    monkeypatch.setattr(tasks, "child", tasks.Child())
    monkeypatch.setattr(app, "probe", lambda _: probe.Found("the driver is too old"))
    monkeypatch.setattr(app, "end_with_parent", lambda: None)
    monkeypatch.setattr(app.signal, "signal", lambda *_: None)
    seen: dict[str, Any] = {}

    class Pool:
        """Celery's place, while the worker runs."""

        def start(self) -> None:
            from celery import signals

            signals.worker_ready.send(sender=None)
            seen["listed"] = client.get("/v1/workers").json()["workers"]
            seen["ready"] = client.get("/readyz").json()["workers"]
            seen["job"] = client.post("/v1/jobs", json=tiny_job()).json()
            seen["plan"] = client.post("/v1/jobs/validate", json=tiny_job()).json()
            tasks.run_next()
            seen["after"] = client.get(f"/v1/jobs/{seen['job']['id']}").json()

    monkeypatch.setattr(app, "_celery_worker", lambda _: Pool())
    monkeypatch.setattr(tasks, "make_ready", lambda: pytest.fail("it gets ready to work"))
    with caplog.at_level("WARNING", logger="worker"):
        assert app.main(["--device", "cuda:1"]) == 0
    [listed] = seen["listed"]
    assert (listed["device"], listed["problem"], listed["archs"]) == ("cuda:1", "the driver is too old", [])
    assert listed["id"].endswith("-cuda1") and seen["ready"] == 0
    assert seen["after"]["status"] == "queued"
    assert any(f"cuda:1: {listed['problem']}" in warning["message"] for warning in seen["plan"]["warnings"])
    assert f"{listed['id']} takes no jobs: cuda:1 cannot be used: the driver is too old" in caplog.text


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ({}, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
        ({"PYTORCH_CUDA_ALLOC_CONF": "backend:native"}, {"PYTORCH_CUDA_ALLOC_CONF": "backend:native"}),
        ({"PYTORCH_ALLOC_CONF": "x:1"}, {"PYTORCH_ALLOC_CONF": "x:1"}),
    ],
)
def test_the_allocator_is_set_up_unless_the_user_did(given: dict[str, str], left: dict[str, str]) -> None:
    gpus.set_allocator(given)
    assert given == left
