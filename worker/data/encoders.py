"""The parts that encode, had for work that needs them: an earlier job on the same model may have released one."""

from models import memory
from models.base import BaseModel
from models.released import NAMES, NotAlone
from worker.data.fingerprint import is_as_before
from worker.report import Reporter


def need(model: BaseModel, name: str, reporter: Reporter) -> None:
    """Have the model's `text_encoder` or `vae` loaded, alone if it was released. Raises NotAlone where that takes the whole model, and
    what loading raises."""
    if name not in model.absent:
        return
    reporter.log(f"the {NAMES[name]} is loaded again: an earlier job on this model released it, and there is something to encode")
    memory.restore(model, name)
    if not is_as_before(model, "latents" if name == "vae" else "text"):
        raise NotAlone(f"the {NAMES[name]} that was loaded alone has other weights than the one that was released")
