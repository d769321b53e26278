"""Fixtures of the worker's room: one `safelight up` that a module's tests hurt one after the other, and runs in this process."""

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from PIL import Image
from safetensors.torch import load, load_file

from tests.worker.long_run import MIDDLE, STEPS, gone, told_steps, writable


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@dataclasses.dataclass
class Tree:
    """The processes of a stack, by what they do. `up` is the supervisor that a user started."""

    up: psutil.Process

    @property
    def server(self) -> psutil.Process:
        return self._one("server.cli")

    @property
    def worker(self) -> psutil.Process:
        return self._one("worker.app")

    @property
    def trainer(self) -> psutil.Process:
        """The worker's pool child, in which jobs run."""
        return self.worker.children()[0]

    def _one(self, module: str) -> psutil.Process:
        (found,) = [child for child in self.up.children() if module in child.cmdline()]
        return found


@pytest.fixture(scope="session")
def tree() -> Callable[[Any], Tree]:
    """`tree(stack)` names the processes of a started stack."""
    return lambda stack: Tree(psutil.Process(stack.process.pid))


@pytest.fixture(scope="module")
def shared_stack(tmp_path_factory: pytest.TempPathFactory, stack_type: Any) -> Iterator[Any]:
    home = tmp_path_factory.mktemp("shared") / "home"
    made = stack_type(home, "up", SAFELIGHT_HOME=str(home), SAFELIGHT_DATA_ROOTS=str(home.parent), SAFELIGHT_WARM_SECONDS="600")
    yield made
    if made.process:
        made.stop()
    made.http.close()


@pytest.fixture
def up(shared_stack: Any, home: Path, pictures: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module's `safelight up`, running, with the pictures in its datasets folder; this process's settings are its own."""
    folder = shared_stack.home / "datasets" / "colours"
    if not folder.exists():
        shutil.copytree(pictures(), folder)
    monkeypatch.setenv("SAFELIGHT_HOME", str(shared_stack.home))
    forget_settings()
    if shared_stack.process is None or shared_stack.process.poll() is not None:
        shared_stack.start()
    return shared_stack


def forget_settings() -> None:
    from server.store import broker, engine, settings

    engine.forget()
    for cached in (settings.settings, broker.client, broker.celery):
        cached.cache_clear()


@pytest.fixture
def run_here(tmp_path: Path) -> Callable[..., Path]:
    """`run_here(job, reporter=None)` runs a job (JSON) in this process with no queue; the answer is its folder."""

    def run_job(job: dict[str, Any], reporter: Any = None, folder: str = "run", **changes: Any) -> Path:
        from models import catalog
        from worker.places import find_places
        from worker.report import Reporter
        from worker.run import run

        spec = catalog.parse_job(job)
        reporter = reporter or Reporter(tmp_path / folder, job.get("train", {}).get("steps", 1))
        run(spec, find_places(spec), reporter, "cpu")
        return reporter.workdir

    return run_job


@pytest.fixture(scope="session")
def weights_of() -> Callable[..., dict[str, torch.Tensor]]:
    """`weights_of(folder)`: the newest weights for users under the folder; `weights_of(folder, 6)`: those of step 6."""

    def load(folder: Path, step: int | None = None) -> dict[str, torch.Tensor]:
        pattern = "*" if step is None else f"*{step:09d}"
        return load_file(sorted(folder.rglob(f"step_{pattern}/*_{pattern}.safetensors"))[-1])

    return load


@pytest.fixture(scope="session")
def same() -> Callable[[dict[str, torch.Tensor], dict[str, torch.Tensor]], bool]:
    """Whether two sets of tensors are equal bit for bit."""

    def compare(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
        return set(one) == set(other) and all(torch.equal(tensor, other[name]) for name, tensor in one.items())

    return compare


@pytest.fixture
def scripted(tmp_path: Path) -> Callable[..., Any]:
    """`scripted("run", stop_at=("step", 5))`: a Reporter that keeps what it is told and asks the run to stop when it hears that.

    What it hears: ("phase", name), ("step", number), ("loss", value), ("preview", step, prompt index), ("saved", bundle name), and
    ("answered", what). With `press={("step", 5): "sample"}` someone presses that button when it hears that.
    A second one with the same folder goes on from what is saved there; `done` is how many pictures a sampling job has already.
    """
    from worker.report import PreviewTold, Reporter, StepTold

    class Scripted(Reporter):
        def __init__(
            self,
            folder: str = "run",
            stop_at: tuple[Any, ...] | None = None,
            wish: str = "requeue",
            done: int = 0,
            press: dict[tuple[Any, ...], str] | None = None,
        ) -> None:
            super().__init__(tmp_path / folder, 1)
            self.told: list[tuple[Any, ...]] = []
            self.stop_at, self.wish, self.pictures_done, self.press = stop_at, wish, done, press or {}

        def hear(self, *what: Any) -> None:
            self.told.append(what)
            if what == self.stop_at:
                self._wish = self.wish
            if what in self.press:
                self._presses[self.press[what]] += 1

        def heard(self, kind: str) -> list[Any]:
            return [rest[0] if len(rest) == 1 else tuple(rest) for what, *rest in self.told if what == kind]

        def phase(self, phase: Any, *_: Any) -> None:
            self.hear("phase", phase)

        def step(self, told: StepTold) -> None:
            self.hear("loss", float(told.loss))
            self.hear("step", told.step)
            super().step(told)

        def preview(self, told: PreviewTold, *_: Any) -> None:
            self.hear("preview", told.record["step"], told.record["prompt_index"])

        def saved(self, bundle: Path, step: int, weights: Sequence[Path]) -> None:
            super().saved(bundle, step, weights)
            self.hear("saved", bundle.name)

        def previews_at(self, step: int) -> set[int]:
            return {int(path.stem.split("_")[1]) for path in self.workdir.glob(f"samples/{step:09d}_*.png")}

        def made(self) -> list[dict[str, Any]]:
            paths = sorted(self.workdir.glob("samples/*.png"))[: self.pictures_done]
            return [json.loads(Image.open(path).text["safelight"]) for path in paths]  # type: ignore[attr-defined]

        def _tell_answered(self, what: Any, presses: int) -> None:
            self.hear("answered", what)

    return Scripted


@pytest.fixture
def small_job(tiny_job: Callable[..., dict[str, Any]], pictures: Callable[..., Path]) -> Callable[..., dict[str, Any]]:
    """As `tiny_job`, on pictures of 16 pixels and without previews: the quickest that trains."""
    pictures(size=16)

    def make(**changes: Any) -> dict[str, Any]:
        data = {
            "folder_path": "colours",
            "resolution": [16],
            "caption_dropout_rate": 0.3,
            "cache_latents": changes.pop("cached", True),
        }
        quick = {
            "datasets": [data],
            "train.steps": 12,
            "train.disable_sampling": True,
            "save.save_every": 100,
            "save.recover_every_seconds": 3600.0,
        }
        return tiny_job(**{**quick, **changes})

    return make


@pytest.fixture
def state_of() -> Callable[[Path, int], dict[str, torch.Tensor]]:
    """All that a kept bundle goes on from: parameters, optimizer, averages."""
    return lambda folder, step: load_file(folder / "bundles" / f"step_{step:09d}" / "state.safetensors")


@pytest.fixture
def stopped(scripted: Any, run_here: Any) -> Callable[..., Any]:
    """Run a job that is asked to stop when it hears `at`; the answer is the reporter it stopped with."""

    def run(job: dict[str, Any], at: tuple[Any, ...], folder: str = "cut", wish: str = "requeue") -> Any:
        from worker.report import Stop

        reporter = scripted(folder, stop_at=at, wish=wish)
        with pytest.raises(Stop) as stop:
            run_here(job, reporter)
        assert stop.value.wish == wish
        return reporter

    return run


@pytest.fixture
def long_job(tiny_job: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    return tiny_job(**{"train.steps": STEPS, "save.save_every": MIDDLE, "sample.sample_every": 45})


@pytest.fixture
def undisturbed(
    up: Any, run_here: Callable[..., Path], long_job: dict[str, Any], weights_of: Any, module_cache: dict[str, Any]
) -> Any:
    """The final weights of the same job, run in this process with no interruption."""
    if "weights" not in module_cache:
        module_cache["weights"] = weights_of(run_here(long_job), STEPS)
    return module_cache["weights"]


@pytest.fixture(scope="module")
def module_cache() -> dict[str, Any]:
    return {}


@pytest.fixture
def reach(until: Callable[..., None], up: Any) -> Callable[..., None]:
    """Wait until a running job has done so many steps."""

    def wait(job_id: str, step: int = MIDDLE) -> None:
        until(lambda: up.job(job_id)["step"] >= step, f"job {job_id} did not reach step {step}", lambda: str(up.job(job_id)))
        assert up.job(job_id)["status"] == "running"

    return wait


@pytest.fixture
def frozen(up: Any) -> Callable[[psutil.Process], Any]:
    """`with frozen(process):` stands still for a moment, and not while it holds the database's write lock: what is asked of a
    job inside comes in the middle of its run, however fast the machine is."""

    @contextlib.contextmanager
    def freeze(process: psutil.Process) -> Iterator[None]:
        process.suspend()
        while not writable(up.home / "safelight.db"):
            process.resume()
            process.suspend()
        yield
        if not gone(process):
            process.resume()

    return freeze


@pytest.fixture
def ends_as_undisturbed(up: Any, undisturbed: Any, same: Any) -> Callable[[str], None]:
    def check(job_id: str) -> None:
        job = up.wait_for(job_id, "succeeded", "failed", "canceled")
        assert job["status"] == "succeeded", job["error"]
        assert told_steps(up, job_id) == list(range(1, STEPS + 1))
        weights = up.http.get(f"/v1/jobs/{job_id}/files/tiny_{STEPS:09d}.safetensors").content
        assert same(load(weights), undisturbed)

    return check
