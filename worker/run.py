"""One job, run: load the model, look at the data, train or sample. Knows neither queue nor database.

`python -m worker.run job.json [FOLDER]` runs a job file with no server; its files go to FOLDER (default: ./run).
"""

import json
import logging
import sys
from pathlib import Path
from typing import Any

import torch

from models import attention, budget, catalog, memory, toolkit
from models.base import BaseModel
from models.data.datasets import Survey
from models.data.lengths import Text, cut_notes, job_texts
from models.data.texts import BadText, parse_json
from models.errors import UserError
from models.released import NotAlone
from models.spec import JobSpec, SampleSpec, TrainSpec
from models.weights import replacing
from worker import gpus
from worker.data.survey import survey
from worker.load import Places, Slot
from worker.planning import before_run
from worker.report import Reporter, Stop
from worker.sampling.sample import num_pictures, sample
from worker.training import checkpoint
from worker.training.loop import train


def run(spec: JobSpec, places: Places, reporter: Reporter, device: str, slot: Slot | None = None) -> None:
    """Do the job to its end. Raises worker.report.Stop when asked to stop, UserError for what the user can mend."""
    slot = slot or Slot()
    checkpoint.remove(reporter.leftovers())  # first of all: they may be what fills the disk
    reporter.workdir.mkdir(parents=True, exist_ok=True)
    config = reporter.workdir / "job.json"
    with replacing(config) as part:
        part.write_text(json.dumps(spec.model_dump(mode="json"), indent=2))
    reporter.config(config)
    surveys = survey(spec, places.datasets, places.cache, reporter) if isinstance(spec, TrainSpec) else []
    reporter.check()
    reporter.phase("loading")
    with attention.kept_to_this_job():
        fitting = before_run.check(spec, places, device, surveys)
        if fitting is not spec:
            reporter.log(f"memory suffices for sample.batch_size {fitting.sample.batch_size} only", "WARNING")  # type: ignore[attr-defined]
        with memory.explaining(budget.general_advice(spec)):
            _work(fitting, places, surveys, reporter, device, slot)


def _work(spec: JobSpec, places: Places, surveys: list[Survey], reporter: Reporter, device: str, slot: Slot) -> None:
    """Do the job on the model that is still loaded, or on one that is loaded now. A job that was stopped leaves it for the next; one that
    fails leaves none, for nobody knows in which state."""
    while True:
        model = slot.take(spec, places, device, reporter.log)
        try:
            reporter.check()
            for name, frozen in {"training": model.assistant_lora, "recovery": model.recovery_adapter}.items():
                if frozen is not None and getattr(frozen, "applied", None):  # an extension's class may have an adapter of its own
                    reporter.log(f"{name} adapter: {frozen.applied}")
            _name_cut_texts(model, job_texts(spec, surveys), reporter)
            if isinstance(spec, TrainSpec):
                train(model, spec, surveys, places.controls, reporter, places.network_start)
            elif isinstance(spec, SampleSpec):
                sample(model, spec, places.adapters, places.checkpoints, places.controls, reporter)
            return
        except Stop:
            raise
        except NotAlone as why:  # raised while texts and pictures are encoded: nothing is lost but that
            reporter.log(f"the whole model is loaded again: {why}")
            slot.clear()
        except BaseException:
            slot.clear()
            raise
        finally:
            if model.network is not None:
                model.network.detach()
            model.network = None
        del model
        memory.give_back()


def _name_cut_texts(model: BaseModel, texts: list[Text], reporter: Reporter) -> None:
    """Log which texts the model's encoder does not read whole."""
    from models.tokens import cut_texts  # by now the model has imported transformers, if it has a use for it

    for note in cut_notes(texts, cut_texts(model, (each.text for each in texts)) or {}):
        reporter.log(note.message, "WARNING")


def _read_job(path: Path) -> Any:
    """Read the job file. Raises UserError naming it for anything that is not JSON, and OSError."""
    try:
        return parse_json(path.read_bytes())
    except BadText as error:
        raise UserError(f"{path}: {error}") from None


def main(job_file: str, folder: str = "run") -> int:
    from server.store.settings import settings
    from worker.places import find_places

    logging.basicConfig(level="INFO", format="%(message)s")
    torch.set_num_threads(settings().cpu_threads)
    gpus.set_allocator()
    try:
        raw = _read_job(Path(job_file))
        toolkit.install()
        model = raw.get("model") if isinstance(raw, dict) else None
        arch = str(model.get("arch", "")) if isinstance(model, dict) else ""
        if arch not in catalog.bundled() or settings().extensions:
            from worker import extensions

            extensions.load_from_folders(arch)
        spec = catalog.parse_job(raw)
        total = spec.train.steps if isinstance(spec, TrainSpec) else num_pictures(spec)  # type: ignore[arg-type]
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
