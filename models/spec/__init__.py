"""What a job can ask for. Every key a user may write stands here once, with its unit, range, default and help.

The same declarations validate a POST, draw the browser's form (through the `ui` hints in the JSON Schema) and are read by the
worker. Key names follow ai-toolkit's config sections where the meaning is the same. Types are strict: the text "16" is not the
number 16, so a quoting slip in a YAML file is an error at submission and never a surprise at step 900.
"""

from models.spec.data import CONTROL_FOLDERS as CONTROL_FOLDERS
from models.spec.data import DatasetSpec as DatasetSpec
from models.spec.fields import Encoded as Encoded
from models.spec.fields import NoOptions as NoOptions
from models.spec.fields import Spec as Spec
from models.spec.fields import entry as entry
from models.spec.fields import hints as hints
from models.spec.fields import options_that_encode as options_that_encode
from models.spec.job import KINDS as KINDS
from models.spec.job import JobSpec as JobSpec
from models.spec.job import Name as Name
from models.spec.job import SampleSpec as SampleSpec
from models.spec.job import TrainSpec as TrainSpec
from models.spec.job import control_paths as control_paths
from models.spec.job import previews as previews
from models.spec.job import prompt_texts as prompt_texts
from models.spec.model import ModelSpec as ModelSpec
from models.spec.network import NetworkSpec as NetworkSpec
from models.spec.optim import OPTIMIZERS as OPTIMIZERS
from models.spec.optim import OptimizerParams as OptimizerParams
from models.spec.optim import optimizer_options as optimizer_options
from models.spec.sample import CONTROLS as CONTROLS
from models.spec.sample import AdapterRef as AdapterRef
from models.spec.sample import Matrix as Matrix
from models.spec.sample import PreviewPrompt as PreviewPrompt
from models.spec.sample import PreviewSpec as PreviewSpec
from models.spec.sample import SamplingDefaults as SamplingDefaults
from models.spec.train import EmaSpec as EmaSpec
from models.spec.train import SaveSpec as SaveSpec
from models.spec.train import TrainSettings as TrainSettings
from models.spec.train import ValidationSpec as ValidationSpec
