"""A job's paths, found through the store's gate."""

from functools import partial
from pathlib import Path

from models.data.datasets import Folders, every_dataset
from models.errors import UserError
from models.spec import CONTROL_FOLDERS, DatasetSpec, JobSpec, SampleSpec, TrainSpec, control_paths
from server.store import files
from server.store.settings import settings
from worker.load import Places


def find_places(spec: JobSpec) -> Places:
    """Raises UserError for a path that is missing or that jobs may not read, but for what a run may not need (see `Places`)."""
    try:
        return Places(
            model=files.weights_path(spec.model.name_or_path),
            text_encoder=files.weights_path(spec.model.te_name_or_path) if spec.model.te_name_or_path else None,
            vae=files.weights_path(spec.model.vae_path) if spec.model.vae_path else None,
            training_adapter=files.weights_path(spec.model.assistant_lora_path) if spec.model.assistant_lora_path else None,
            recovery_adapter=(
                files.weights_path(spec.model.accuracy_recovery_adapter) if spec.model.accuracy_recovery_adapter else None
            ),
            network_start=partial(_weights, spec.network.pretrained_lora_path)
            if isinstance(spec, TrainSpec) and spec.network and spec.network.pretrained_lora_path
            else None,
            cache=settings().home / "cache",
            controls=_controls(spec),
            datasets=[dataset_folders(dataset) for _, dataset in every_dataset(spec)] if isinstance(spec, TrainSpec) else [],
            adapters=[Path(files.weights_path(a.path)) for a in spec.adapters] if isinstance(spec, SampleSpec) else [],
            checkpoints=[partial(_weights, given) for given in spec.matrix.checkpoints]
            if isinstance(spec, SampleSpec) and spec.matrix
            else [],
        )
    except files.PathRefused as error:
        raise UserError(str(error), code="path_refused") from None


def _controls(spec: JobSpec) -> dict[str, Path]:
    """The control files that are there. A training job goes on without the previews of the others. Raises PathRefused."""
    found = {}
    for given in control_paths(spec):
        try:
            found[given] = files.data_file(given)
        except files.PathRefused:
            if not isinstance(spec, TrainSpec):
                raise
    return found


def _weights(given: str) -> Path:
    try:
        return Path(files.weights_path(given))
    except files.PathRefused as error:
        raise UserError(str(error), code="path_refused") from None


def dataset_folders(dataset: DatasetSpec) -> Folders:
    """Raises server.store.files.PathRefused."""
    given = [getattr(dataset, key) for key in CONTROL_FOLDERS]
    return Folders(
        items=files.dataset_folder(dataset.folder_path),
        masks=files.dataset_folder(dataset.mask_path) if dataset.mask_path else None,
        controls=tuple(files.dataset_folder(folder) for folder in given if folder),
        roots=tuple(settings().roots),
    )
