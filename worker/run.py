"""One job, run: load the model, look at the data, train or sample. Knows neither queue nor database.

`python -m worker.run job.json [FOLDER]` runs a job file with no server; its files go to FOLDER (default: ./run).
"""

import importlib
import json
import logging
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from models import catalog, datasets, toolkit
from models.base import BaseModel
from models.errors import SpecError, UserError
from models.spec import JobSpec, SampleSpec, TrainSpec
from models.weights import replacing
from worker.report import Reporter
from worker.sample import sample
from worker.seeds import seed_for
from worker.train import train


@dataclass(frozen=True)
class Places:
    """The paths that a job names, found and allowed. What is not a file (`random`, a hub's name) stays as it was."""

    model: Path | str
    text_encoder: Path | str | None = None
    vae: Path | str | None = None
    training_adapter: Path | str | None = None
    datasets: list[Path] = field(default_factory=list)
    adapters: list[Path] = field(default_factory=list)
    controls: dict[str, Path] = field(default_factory=dict)


class Slot:
    """Keeps the last model loaded, for the next job that wants the same. A model whose own weights were trained is not kept."""

    def __init__(self) -> None:
        self._key: str | None = None
        self._model: BaseModel | None = None

    def take(self, spec: JobSpec, places: Places, device: str) -> BaseModel:
        """The model for this job, loaded now or kept from before."""
        seed = seed_for(spec.train.seed, "weights") if isinstance(spec, TrainSpec) else 0
        files = [_stamp(place) for place in (places.model, places.text_encoder, places.vae, places.training_adapter)]
        code = catalog.extensions()[spec.model.arch].digest if spec.model.arch in catalog.extensions() else None
        key = json.dumps([spec.model.model_dump(mode="json"), code, files, device, seed if places.model == "random" else None])
        model = self._model if self._key == key else None
        self._key = self._model = None
        if model is None:
            torch.manual_seed(seed)
            model = load_model(spec, places, device)
        if isinstance(spec, SampleSpec) or spec.network is not None:  # type: ignore[attr-defined]
            self._key, self._model = key, model
        return model

    def clear(self) -> None:
        self._key = self._model = None


def run(spec: JobSpec, places: Places, reporter: Reporter, device: str, slot: Slot | None = None) -> None:
    """Do the job to its end. Raises worker.report.Stop when asked to stop, UserError for what the user can mend."""
    slot = slot or Slot()
    reporter.workdir.mkdir(parents=True, exist_ok=True)
    config = reporter.workdir / "job.json"
    with replacing(config) as part:
        part.write_text(json.dumps(spec.model_dump(mode="json"), indent=2))
    reporter.config(config)
    surveys = survey(spec, places, reporter) if isinstance(spec, TrainSpec) else []
    reporter.check()
    reporter.phase("loading")
    model = slot.take(spec, places, device)
    networks: list[Any] = []
    try:
        reporter.check()
        if isinstance(spec, TrainSpec):
            train(model, spec, surveys, places.controls, reporter)
        elif isinstance(spec, SampleSpec):
            networks = sample(model, spec, places.adapters, places.controls, reporter)
    except BaseException:
        slot.clear()
        raise
    finally:
        for network in [*networks, model.network]:
            if network is not None:
                network.detach()
        model.network = None


def survey(spec: TrainSpec, places: Places, reporter: Reporter) -> list[datasets.Survey]:
    """Decode every picture once, before anything expensive happens. Raises SpecError naming those that cannot be read."""
    surveys = []
    for index, (dataset, folder) in enumerate(zip(spec.datasets, places.datasets, strict=True)):
        reporter.check()
        found = datasets.survey(dataset, folder)
        errors, warnings = datasets.problems(found, dataset, f"/datasets/{index}")
        if errors:
            raise SpecError(errors)
        for warning in warnings:
            reporter.log(warning.message, "WARNING")
        surveys.append(found)
    return surveys


def load_model(spec: JobSpec, places: Places, device: str) -> BaseModel:
    """The arch's model, built from the class that its card names."""
    module, _, name = catalog.arch(spec.model.arch).code.partition(":")
    cls: type[BaseModel] = getattr(importlib.import_module(module), name)
    found = {
        "name_or_path": places.model,
        "te_name_or_path": places.text_encoder,
        "vae_path": places.vae,
        "assistant_lora_path": places.training_adapter,
    }
    config = spec.model.model_copy(update={key: place and str(place) for key, place in found.items()})
    model = cls(device, cls.configure(config), dtype=spec.model.dtype, noise_scheduler=cls.get_train_scheduler())
    model.load_model()
    backend = getattr(spec.model.model_kwargs, "attention_backend", None) or spec.model.attention_backend
    if backend != "native":
        model.set_attention_backend(backend)
    return model


def _stamp(place: Path | str | None) -> list[Any]:
    """What tells one state of a file from another."""
    if not isinstance(place, Path) or not place.exists():
        return [str(place)]
    about = place.stat()
    return [str(place), about.st_ino, about.st_size, about.st_mtime_ns]


def main(job_file: str, folder: str = "run") -> int:
    from server.store.settings import settings
    from worker import extensions
    from worker.places import find_places

    logging.basicConfig(level="INFO", format="%(message)s")
    torch.set_num_threads(settings().cpu_threads)
    try:
        raw = json.loads(Path(job_file).read_text())
        toolkit.install()
        extensions.load_from_folders(str(raw.get("model", {}).get("arch", "")))
        spec = catalog.parse_job(raw)
        total = spec.train.steps if isinstance(spec, TrainSpec) else len(spec.samples)  # type: ignore[attr-defined]
        device = "cuda" if torch.cuda.is_available() else "cpu"
        where = Path(folder).resolve()
        earlier = where / "job.json"
        if earlier.exists() and json.loads(earlier.read_text())["model"] != spec.model_dump(mode="json")["model"]:
            raise UserError(f"{where} holds another model's run; name another folder, or remove it")
        run(spec, find_places(spec), Reporter(where, total), device)
        logging.info("done; files are in %s", where)
    except (UserError, ValueError, OSError) as error:
        logging.error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
