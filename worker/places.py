"""A job's paths, found through the store's gate."""

from pathlib import Path

from models.errors import UserError
from models.spec import JobSpec, SampleSpec, TrainSpec, control_paths
from server.store import files
from worker.run import Places


def find_places(spec: JobSpec) -> Places:
    """Raises UserError for a path that is missing or that jobs may not read."""
    try:
        return Places(
            model=files.weights_path(spec.model.name_or_path),
            text_encoder=files.weights_path(spec.model.te_name_or_path) if spec.model.te_name_or_path else None,
            vae=files.weights_path(spec.model.vae_path) if spec.model.vae_path else None,
            training_adapter=files.weights_path(spec.model.assistant_lora_path) if spec.model.assistant_lora_path else None,
            controls={given: files.data_file(given) for given in control_paths(spec)},
            datasets=[files.dataset_folder(d.folder_path) for d in spec.datasets] if isinstance(spec, TrainSpec) else [],
            adapters=[Path(files.weights_path(a.path)) for a in spec.adapters] if isinstance(spec, SampleSpec) else [],
        )
    except files.PathRefused as error:
        raise UserError(str(error), code="path_refused") from None
