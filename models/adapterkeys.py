"""The keys of adapter files, as trainers write them: what they say of an adapter before its numbers are read. Torch-free."""

import re
from collections.abc import Iterable
from pathlib import Path

from models.data.names import printable
from models.errors import UserError

PEFT_STEM = "base_model.model."
STEMS = ("transformer.", "diffusion_model.")  # what trainers put in front of a layer's path
FLAT_STEMS = ("lycoris_", "lora_transformer_", "lora_unet_")  # paths behind these have underscores for dots
SPELLINGS = {"lora_down.weight": "lora_A.weight", "lora_up.weight": "lora_B.weight"}
TEXT_ENCODER = r"(base_model\.model\.)?(lora_te\d*_|lora_prior_te|lycoris_te|text_encoders?(_\d+)?\.|te\d*\.|cond_stage_model\.)"
ADAPTER_KEYS = {
    "DoRA": r"\.(dora_scale|lora_magnitude_vector)\b",
    "LoHa": r"\.hada_[wt]",
    "OFT": r"\.b?oft_\w+",
    "IA3": r"\.(ia3_l|on_input)\b",
    "LoRA in three factors (Tucker)": r"\.(lora_mid\.weight|lokr_t2)$",
    "LoRA under the names of old diffusers": r"_lora\.(down|up)\.weight$",
    "lora": r"\.lora_(A|B|down|up)\b",
    "lokr": r"\.lokr_w[12]",
}
READ_HERE = ("lora", "lokr")


def check_keys(path: Path, keys: Iterable[str]) -> None:
    """Raises UserError (`bad_adapter`), naming the file and keys as they stand in it, for whole weights, for kinds of adapters that are
    not read here, for parts of a text encoder, and for a layer that is named twice."""
    keys = list(keys)
    kinds = {key: kind for key in keys if (kind := adapter_kind(key))}
    if not kinds:
        there = f"'{keys[0]}'{f' and {len(keys) - 1} more tensors' if len(keys) > 1 else ''}" if keys else "no tensors"
        raise _bad(path, f"holds {there}, which is no adapter; name an adapter here, and whole weights as the model")
    if of_text := [key for key in kinds if re.match(TEXT_ENCODER, key)]:
        raise _bad(
            path,
            f"holds parts for a text encoder ('{of_text[0]}', of {len(of_text)} such tensors), which are not applied here; "
            "give an adapter of the image or video model alone",
        )
    for key, kind in kinds.items():
        if kind not in READ_HERE:
            raise _bad(
                path, f"is an adapter of a kind that is not read here, {kind} ('{key}'); give a {' or a '.join(READ_HERE)}"
            )
    if twice := _named_twice(keys):
        raise _bad(path, f"names one layer twice, as '{twice[0]}' and as '{twice[1]}', and only one could count")


def adapter_kind(key: str) -> str | None:
    """The kind of adapter that a tensor of this name belongs to; None for whole weights, and for what fits several (an alpha)."""
    return next((kind for kind, pattern in ADAPTER_KEYS.items() if re.search(pattern, key)), None)


def stripped(key: str) -> tuple[str, bool]:
    """A key of an adapter without what trainers put in front of layers' paths, and whether the path has underscores for dots."""
    for stem in FLAT_STEMS:
        if key.startswith(stem):
            return key.removeprefix(stem), True
    key = key.removeprefix(PEFT_STEM)
    stem = next((stem for stem in STEMS if key.startswith(stem)), "")
    return key.removeprefix(stem), False


def _named_twice(keys: Iterable[str]) -> tuple[str, str] | None:
    """Two keys of an adapter that are the same tensor of one layer, spelled in two ways."""
    dotted: dict[tuple[str, str], str] = {}
    flat: dict[tuple[str, str], str] = {}
    for key in keys:
        match = re.fullmatch(r"(.+?)\.((?:lora_|lokr_|alpha).*)", key)
        if match is None:
            continue
        path, is_flat = stripped(match[1])
        name = match[2].replace(".default", "")
        part = SPELLINGS.get(name, name)
        if not is_flat:
            if (path, part) in dotted:
                return dotted[path, part], key
            dotted[path, part] = key
        same = flat.setdefault((path.replace(".", "_"), part), key)
        if same != key and (is_flat or stripped(same)[1]):
            return same, key
    return None


def _bad(path: Path, why: str) -> UserError:
    return UserError(printable(f"{path} {why}"), code="bad_adapter")
