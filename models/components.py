"""Parts of released models: where they lie, and how they are loaded, without what we never call.

A part is a folder with a config and weights. It may lie in a pipeline's folder (`text_encoder/`), be a folder of its own, or be in a
repository on a hub (`org/name`), which is then fetched part by part into the hub's cache.
"""

import contextlib
import functools
import inspect
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, TypeVar

import torch
from diffusers.models.modeling_utils import LegacyModelMixin
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from jinja2 import TemplateError
from torch import nn
from transformers import MODEL_MAPPING, AutoConfig, AutoModel, AutoTokenizer

from models.base_weights import load_module, matches, open_weights
from models.errors import UserError
from models.released import with_recipe
from models.weightfiles import check_part, read_json

AnyModule = TypeVar("AnyModule", bound=nn.Module)
PIPELINE, CONFIG = "model_index.json", "config.json"
PLAIN_WORDS = ("hello", "moon")  # any tokenizer of prompts knows them
TOKENIZER_AGAIN = "download the tokenizer's files again"
DECODER_LAYER = re.compile(r"(?:model\.|language_model\.)*layers\.(\d+)\.")
OTHER_FORMATS = ["*.bin", "*.pt", "*.pth", "*.ckpt", "*.gguf", "*.onnx", "*.msgpack", "*.h5"]


def part_folder(path_or_id: str, subfolder: str, marker: str = CONFIG) -> Path:
    """The folder of one part, known by its file `marker`: `subfolder` inside `path_or_id`, or `path_or_id` itself if it is that part
    alone. Raises UserError naming what was looked for."""
    if Path(path_or_id).is_file():
        raise UserError(
            f"{path_or_id} is a file; name the folder of the {subfolder}, which holds {marker} too", code="bad_weights"
        )
    if Path(path_or_id).exists():
        found = _part_in(Path(path_or_id), subfolder, marker)
    else:  # small files first, so that nothing large is fetched from a repository of another layout
        folder = _fetched(path_or_id, allow=[f"{subfolder}/{marker}", marker, PIPELINE])
        found = _part_in(folder, subfolder, marker)
        if found == folder:
            _fetched(path_or_id, ignore=["*/*", *OTHER_FORMATS])
        elif found:
            _fetched(path_or_id, allow=[f"{subfolder}/*"], ignore=OTHER_FORMATS)
    if found is None:
        raise UserError(
            f"{path_or_id} holds no {subfolder}: looked for {subfolder}/{marker} and for {marker} beside no {PIPELINE}",
            code="missing_part",
        )
    return check_part(found)


def pipeline_index(path_or_id: str) -> Path:
    """The `model_index.json` of a pipeline's folder or repository. Raises UserError if it is not one."""
    folder = Path(path_or_id) if Path(path_or_id).exists() else _fetched(path_or_id, allow=[PIPELINE])
    if not (folder / PIPELINE).is_file():
        raise UserError(f"{path_or_id} is no pipeline's folder: it has no {PIPELINE}", code="bad_weights")
    return folder / PIPELINE


def load_part(cls: Any, folder: Path, dtype: torch.dtype, leaves_out: Sequence[str] = ()) -> Any:
    """A diffusers model of class `cls` from its folder, cast to `dtype`, frozen, in eval mode. `leaves_out` are regular expressions for
    keys of its files that it has no use for. Raises UserError where the weights are missing or do not fit the config."""
    with _config_read(folder, cls):
        config = cls.load_config(folder, local_files_only=True)
    _refuse_quantized(config, folder)
    if not issubclass(cls, LegacyModelMixin):  # such a class has had another name
        of = config.get("_class_name", cls.__name__)
        _refuse_another(folder, "_class_name", [of], {each.__name__ for each in cls.__mro__}, cls)
    with open_weights(folder) as weights, _config_read(folder, cls):
        model = load_module(lambda: cls.from_config(config), weights, dtype, leaves_out)
    return with_recipe(model.eval().requires_grad_(False), load_part, cls, folder, dtype, leaves_out)


def load_tokenizer(path_or_id: str, subfolder: str = "tokenizer") -> Any:
    """The transformers tokenizer of a part. Raises UserError where the part is missing, its files are no tokenizer's, or a plain word
    has no token that is its own."""
    folder = part_folder(path_or_id, subfolder, "tokenizer_config.json")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        tokens = set(tokenizer(PLAIN_WORDS[0], add_special_tokens=False).input_ids)
    except Exception as error:  # the tokenizers library raises nothing more exact
        raise UserError(
            f"{folder} holds no tokenizer that can be read: {_first_line(error)}", code="bad_weights", hint=TOKENIZER_AGAIN
        ) from error
    if tokens <= set(tokenizer.all_special_ids):
        raise UserError(
            f"{folder}: this tokenizer knows no words; '{PLAIN_WORDS[0]}' gives it no token but special ones",
            code="bad_weights",
            hint=TOKENIZER_AGAIN,
        )
    return tokenizer


def check_prompts(tokenizer: Any, text_encoder: Any, tokenize: Callable[[str], Any]) -> None:
    """Try the tokens that an arch makes of a prompt, once, when it is loaded. `tokenize` gives a text's tokens as the arch's prompts are
    made (`input_ids`, any shape). Raises UserError (`bad_weights`) naming the file, where it fails, where two words give the same
    tokens, and where the text encoder has embeddings for fewer tokens than there are."""
    folder = Path(tokenizer.name_or_path)
    try:
        one, other = (tokenize(word)["input_ids"] for word in PLAIN_WORDS)
    except Exception as error:  # a template may raise anything
        of_template = isinstance(error, TemplateError) or "chat template" in str(error)
        file = folder / ("chat_template.jinja" if of_template else "tokenizer_config.json")
        state = "" if file.is_file() else "is missing, and "
        raise UserError(
            f"{file} {state}cannot be used to make tokens of a prompt: {_first_line(error)}",
            code="bad_weights",
            hint=TOKENIZER_AGAIN,
        ) from error
    if torch.equal(torch.as_tensor(one), torch.as_tensor(other)):
        raise UserError(
            f"{folder}: all prompts give the same tokens; its chat template leaves the prompt out",
            code="bad_weights",
            hint=TOKENIZER_AGAIN,
        )
    rows = text_encoder.get_input_embeddings().num_embeddings
    if len(tokenizer) > rows:
        raise UserError(
            f"{folder} has {len(tokenizer)} tokens and the text encoder embeddings for only {rows} (vocab_size in its {CONFIG}): they "
            "are not of one model",
            code="bad_weights",
            hint="give the tokenizer and the text encoder of one model",
        )


def load_scheduler(cls: Any, config: Mapping[str, Any], where: Path) -> Any:
    """diffusers' scheduler of class `cls` from the config that the file `where` holds. Raises UserError (`bad_weights`) where the
    config is empty, of another class, or has a value of another kind: each would change the noise levels."""
    of = config.get("_class_name", cls.__name__)
    known = inspect.signature(cls.__init__).parameters
    if of != cls.__name__ or not config.keys() & known.keys():
        said = f"of another scheduler: {of}" if of != cls.__name__ else "a config without settings"
        raise UserError(
            f"{where} is {said}; {cls.__name__} is needed", code="bad_weights", hint="download the scheduler's config"
        )
    for name in config.keys() & known.keys():
        kinds = set(re.findall(r"\w+", inspect.formatannotation(known[name].annotation)))
        number, value = kinds & {"bool", "float", "int"}, config[name]
        empty = value is None and known[name].default is not None
        if number and "str" not in kinds and (empty or isinstance(value, str | list | dict)):
            raise UserError(f"{where}: {name} is {value!r}, where a number or true or false belongs", code="bad_weights")
    with _config_read(where, cls):
        return cls.from_config(config)


def load_text_encoder(
    path_or_id: str,
    subfolder: str,
    cls: Any,
    dtype: torch.dtype,
    drop: Sequence[str] = (),
    num_layers: int | None = None,
    may_lack: Sequence[str] = (),
) -> Any:
    """A transformers model of class `cls` (None: the one that its config is of), frozen, in eval mode, cast to `dtype`.

    The modules at the dotted paths `drop` (a vision tower: `model.visual`), become None, and only the first `num_layers` decoder
    layers are kept, before any weight is read: what is left out costs neither memory nor reading. `may_lack` are regular expressions for
    weights that no one calls and that files may lack. Raises UserError where the part is missing or its weights do not fit,
    AttributeError for a path in `drop` that `cls` does not have.
    """
    folder = part_folder(path_or_id, subfolder)
    with _config_read(folder, cls or AutoModel):
        config = (cls.config_class if cls else AutoConfig).from_pretrained(folder, local_files_only=True)
        cls = cls or MODEL_MAPPING[type(config)]
    _refuse_quantized(config.to_dict(), folder)
    about = read_json(folder / CONFIG)
    if cls.__name__ not in (about.get("architectures") or ()):
        inner = [each["model_type"] for each in about.values() if isinstance(each, dict) and "model_type" in each]
        _refuse_another(folder, "model_type", [about.get("model_type", ""), *inner], {cls.config_class.model_type, ""}, cls)
    if num_layers is not None:
        _keep_layers(config.get_text_config(), num_layers, str(folder))
    with open_weights(folder) as weights, _config_read(folder, cls), _unreported():
        used = {name: each for name, each in weights.tensors.items() if num_layers is None or _layer(name) < num_layers}
        model, report = _reader(cls, tuple(drop)).from_pretrained(
            None, config=config, state_dict=used, dtype=dtype, ignore_mismatched_sizes=True, output_loading_info=True
        )
        weights.check(
            cls.__name__,
            missing=(name for name in report["missing_keys"] if not matches(name, may_lack)),
            surplus=report["unexpected_keys"],
            reshaped={name: shapes for name, *shapes in report["mismatched_keys"]},
        )
        weights.say_formats(used.values())
    model.__class__ = cls
    frozen = model.eval().requires_grad_(False)
    return with_recipe(frozen, load_text_encoder, str(folder), subfolder, cls, dtype, drop, num_layers, may_lack)


def keep_conv3d_precise(module: AnyModule, dtype: torch.dtype, precise: torch.dtype = torch.float32) -> AnyModule:
    """Cast `module` to `dtype`, but every Conv3d in it to `precise` (fp32 or fp16).

    bf16 kernels of 3-D convolutions are slow and need large workspaces on several GPUs. Such a convolution casts what it gets to
    `precise` and its output to `dtype`, so its neighbours notice nothing. Calling it again changes the dtypes.
    """
    for part in module.modules():
        _cast_own(part, precise if isinstance(part, nn.Conv3d) else dtype)
        if isinstance(part, nn.Conv3d):
            if not hasattr(part, "_precise_hooks"):
                part._precise_hooks = (  # type: ignore[assignment]
                    part.register_forward_pre_hook(_cast_inputs),
                    part.register_forward_hook(_cast_output),
                )
            part._output_dtype = dtype  # type: ignore[assignment]
    return module


def _cast_own(part: nn.Module, dtype: torch.dtype) -> None:
    """Its own weights, each cast once: by way of another dtype they would lose what that one cannot hold."""
    part._apply(lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor, recurse=False)


def _cast_inputs(part: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    dtype = next(part.parameters()).dtype
    return tuple(arg.to(dtype) if isinstance(arg, torch.Tensor) and arg.is_floating_point() else arg for arg in args)


def _cast_output(part: nn.Module, _args: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
    return output.to(part._output_dtype)  # type: ignore[arg-type]


@contextlib.contextmanager
def _unreported() -> Iterator[None]:
    """Inside, transformers prints no table of keys: the refusal says them."""
    library = logging.getLogger("transformers.modeling_utils")

    def is_error(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR

    library.addFilter(is_error)  # another level would make transformers look at more
    try:
        yield
    finally:
        library.removeFilter(is_error)


@contextlib.contextmanager
def _config_read(folder: Path, cls: Any) -> Iterator[None]:
    """Inside, what the libraries say of a config that they cannot use is a UserError."""
    try:
        yield
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{folder}: cannot be loaded as {cls.__name__}: {error}", code="bad_weights") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _refuse_another(folder: Path, key: str, given: Sequence[str], needed: Set[str], cls: Any) -> None:
    """Raises UserError where a config is of another model: its weights may fit by chance, and mean something else."""
    if not needed & set(given):
        raise UserError(
            f"{folder / CONFIG} is of another model: its {key} is {given[0]}, and {cls.__name__} is needed here",
            code="bad_weights",
            hint="give the part that belongs to this model",
        )


def _refuse_quantized(config: Mapping[str, Any], folder: Path) -> None:
    if found := config.get("quantization_config"):
        raise UserError(
            f"{folder} is stored quantized ({found.get('quant_method', 'unknown method')}), which is not read",
            code="bad_weights",
            hint="give the weights in bf16, and save memory with model.quantize",
        )


def _layer(name: str) -> int:
    """The number of the decoder layer that a weight belongs to; -1 for any other."""
    found = DECODER_LAYER.match(name)
    return int(found[1]) if found else -1


def _keep_layers(config: Any, num_layers: int, where: str) -> None:
    if config.num_hidden_layers < num_layers:
        raise UserError(
            f"{where} has {config.num_hidden_layers} layers; the model needs the first {num_layers} of its text encoder",
            code="bad_weights",
        )
    config.num_hidden_layers = num_layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:num_layers]


@functools.cache
def _reader(cls: Any, drop: tuple[str, ...]) -> Any:
    """`cls` that is born without those modules and does not mind their weights in the file."""

    def init(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        cls.__init__(self, config, *args, **kwargs)
        for path in drop:
            self.get_submodule(path)
            parent, _, leaf = path.rpartition(".")
            setattr(self.get_submodule(parent), leaf, None)

    # a file may name its weights without the outer `model.`, or with it where cls is the inner model
    dropped = [rf"(^|\.){path.removeprefix('model.').replace('.', chr(92) + '.')}\." for path in drop]
    known = list(getattr(cls, "_keys_to_ignore_on_load_unexpected", None) or [])
    body = {
        "__init__": init,
        "__module__": cls.__module__,
        "_keys_to_ignore_on_load_unexpected": [*known, *dropped, r"(^|\.)lm_head\."],
    }
    return type(cls.__name__, (cls,), body)


def _part_in(folder: Path, subfolder: str, marker: str) -> Path | None:
    if (folder / subfolder / marker).is_file():
        return folder / subfolder
    return folder if (folder / marker).is_file() and not (folder / PIPELINE).exists() else None


def _fetched(repo_id: str, allow: list[str] | None = None, ignore: list[str] | None = None) -> Path:
    """A snapshot in the hub's cache that holds at least those files; offline, what was fetched before."""
    if repo_id.startswith("ms:"):
        raise UserError(
            f"{repo_id}: ModelScope is not supported; give a folder or org/name on the Hugging Face hub", code="no_hub"
        )
    try:
        return Path(snapshot_download(repo_id.removeprefix("hf:"), allow_patterns=allow, ignore_patterns=ignore))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise UserError(
            f"{repo_id} is no folder here and cannot be fetched from the hub: {error}",
            code="no_hub",
            hint="a gated repository needs HF_TOKEN; without a network, give a folder under the models folder",
        ) from error
