"""Text conditioning: for every key a list of tensors, one per item of the batch.

Items keep their natural length; padding to the batch's longest happens at the model call. The key `text_embeds` decides the batch
size, so each of its tensors must be 2-D (L, D); other keys keep their rank.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import torch

from models.weights import load_tensors, read_metadata, save_tensors

CLASS_NAME = "AdvancedPromptEmbeds"
BATCH_KEY = "text_embeds"


class AdvancedPromptEmbeds:
    """`AdvancedPromptEmbeds(text_embeds=[t0, t1], pooled_embeds=[p0, p1])`. Keys read as attributes and as items.

    `frozen_dtype_keys` names keys (token ids, masks) that `.to()` moves but does not cast. Raises ValueError for a text_embeds
    tensor that is not 2-D and for keys whose lists differ in length.
    """

    def __init__(self, **keys: torch.Tensor | Sequence[torch.Tensor]) -> None:
        self._store: dict[str, list[torch.Tensor]] = {}
        self._frozen: list[str] = []
        self.update(keys)

    @property
    def frozen_dtype_keys(self) -> list[str]:
        return self._frozen

    @frozen_dtype_keys.setter
    def frozen_dtype_keys(self, keys: Iterable[str]) -> None:
        self._frozen = list(keys)

    def __getattr__(self, name: str) -> list[torch.Tensor]:
        store: dict[str, list[torch.Tensor]] = self.__dict__.get("_store", {})
        if name.startswith("_") or name not in store:
            raise AttributeError(f"no key '{name}' in these prompt embeds; there are: {', '.join(store)}")
        return store[name]

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or name == "frozen_dtype_keys":
            super().__setattr__(name, value)
        else:
            self.set(name, value)

    def __getitem__(self, key: str) -> list[torch.Tensor]:
        return self._store[key]

    def __setitem__(self, key: str, value: torch.Tensor | Sequence[torch.Tensor]) -> None:
        self.set(key, value)

    def __contains__(self, key: object) -> bool:
        return key in self._store

    def __len__(self) -> int:
        """The batch size."""
        return len(next(iter(self._store.values()), []))

    def keys(self) -> list[str]:
        return list(self._store)

    def set(self, key: str, value: torch.Tensor | Sequence[torch.Tensor]) -> None:
        """A single tensor becomes a list of one."""
        items = [value] if isinstance(value, torch.Tensor) else list(value)
        for place, item in enumerate(items if key == BATCH_KEY else ()):
            if item.ndim != 2:
                shape = tuple(item.shape)
                raise ValueError(
                    f"{BATCH_KEY}[{place}] has shape {shape}; each item must be 2-D (L, D): give one tensor per prompt without a "
                    "batch axis, and flatten any further axis into D (reshape(L, N * D)), to be restored right before the model call"
                )
        self._store[key] = items

    def update(self, keys: dict[str, Any]) -> None:
        for key, value in keys.items():
            self.set(key, value)
        if len({len(items) for items in self._store.values()}) > 1:
            lengths = {key: len(items) for key, items in self._store.items()}
            raise ValueError(f"every key needs one tensor per prompt; the lengths differ: {lengths}")

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """As torch's `.to(device)`, `.to(dtype)`, `.to(device, dtype)`; frozen keys keep their dtype."""
        device, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)

        def move(key: str, item: torch.Tensor) -> torch.Tensor:
            cast = dtype if dtype is not None and key not in self._frozen else item.dtype
            return item.to(device if device is not None else item.device, cast, non_blocking)

        return self._map(move)

    def detach(self) -> Self:
        return self._map(lambda _, item: item.detach())

    def clone(self) -> Self:
        return self._map(lambda _, item: item.clone())

    def expand_to_batch(self, batch_size: int) -> Self:
        """One prompt for `batch_size` items, by reference; a batch of that size unchanged. Raises ValueError for any other."""
        if len(self) not in (1, batch_size):
            raise ValueError(f"{len(self)} prompts cannot serve a batch of {batch_size}; give 1 or {batch_size}")
        return self.clone_with({key: items * (batch_size if len(items) == 1 else 1) for key, items in self._store.items()})

    @classmethod
    def concat_prompt_embeds(cls, parts: Sequence["AdvancedPromptEmbeds"], padding_side: str = "right") -> "AdvancedPromptEmbeds":  # noqa: ARG003
        """The prompts of all parts in order. Nothing is padded here, so `padding_side` changes nothing; it is the contract's.
        Raises ValueError if the parts have different keys."""
        keys = parts[0].keys()
        for part in parts:
            if set(part.keys()) != set(keys):
                raise ValueError(f"prompt embeds with keys {sorted(part.keys())} cannot join others with {sorted(keys)}")
        frozen = list(dict.fromkeys(key for part in parts for key in part.frozen_dtype_keys))
        return parts[0].clone_with({key: [item for part in parts for item in part[key]] for key in keys}, frozen)

    @classmethod
    def split_prompt_embeds(cls, joined: "AdvancedPromptEmbeds", num_parts: int | None = None) -> list["AdvancedPromptEmbeds"]:
        """`num_parts` equal parts in order (default: one per prompt). Raises ValueError if they would not be equal."""
        parts = num_parts or len(joined)
        if len(joined) % parts:
            raise ValueError(f"{len(joined)} prompts do not split into {parts} equal parts")
        size = len(joined) // parts
        return [
            joined.clone_with({key: joined[key][i * size : (i + 1) * size] for key in joined.keys()})  # noqa: SIM118
            for i in range(parts)
        ]

    def save(self, path: str | Path) -> None:
        """One prompt as a safetensors file: tensor names are the keys, the header names the class and the frozen keys."""
        if len(self) != 1:
            raise ValueError(f"only a single prompt is saved in a file, not a batch of {len(self)}")
        frozen = {"frozen_dtype_keys": ",".join(self._frozen)} if self._frozen else {}
        save_tensors({key: items[0] for key, items in self._store.items()}, Path(path), {"class_name": CLASS_NAME, **frozen})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """What `save` wrote. Keys whose tensor is not floating point are frozen even if the header does not say so."""
        tensors = load_tensors(Path(path))
        named = read_metadata(Path(path)).get("frozen_dtype_keys", "")
        embeds = cls(**tensors)
        whole = [key for key, tensor in tensors.items() if not tensor.is_floating_point()]
        embeds.frozen_dtype_keys = dict.fromkeys([*filter(None, named.split(",")), *whole])
        return embeds

    def clone_with(self, store: dict[str, list[torch.Tensor]], frozen: Iterable[str] | None = None) -> Self:
        made = type(self)(**store)
        made.frozen_dtype_keys = self._frozen if frozen is None else frozen
        return made

    def _map(self, change: Any) -> Self:
        return self.clone_with({key: [change(key, item) for item in items] for key, items in self._store.items()})


class PromptEmbeds:
    """The older container: `text_embeds` (B, L, D), `pooled_embeds` (B, P) and `attention_mask` (B, L), each a tensor or None.

    `text_embeds` may also be a tuple (text_embeds, pooled_embeds). New architectures use AdvancedPromptEmbeds, which does not pad.
    """

    def __init__(
        self, text_embeds: Any, pooled_embeds: torch.Tensor | None = None, attention_mask: torch.Tensor | None = None
    ) -> None:
        if isinstance(text_embeds, tuple):
            text_embeds, pooled_embeds = text_embeds
        self.text_embeds: torch.Tensor = text_embeds
        self.pooled_embeds = pooled_embeds
        self.attention_mask = attention_mask

    def __len__(self) -> int:
        return self.text_embeds.shape[0]

    def to(self, *args: Any, **kwargs: Any) -> "PromptEmbeds":
        """A moved and cast copy; the mask keeps its dtype."""
        device = torch._C._nn._parse_to(*args, **kwargs)[0]
        mask = self.attention_mask
        return PromptEmbeds(
            self.text_embeds.to(*args, **kwargs),
            self.pooled_embeds.to(*args, **kwargs) if self.pooled_embeds is not None else None,
            mask.to(device) if mask is not None and device is not None else mask,
        )

    def detach(self) -> "PromptEmbeds":
        return self._map(lambda tensor: tensor.detach())

    def clone(self) -> "PromptEmbeds":
        return self._map(lambda tensor: tensor.clone())

    def expand_to_batch(self, batch_size: int) -> "PromptEmbeds":
        """One prompt for `batch_size` items. Raises ValueError for a batch of another size."""
        if len(self) not in (1, batch_size):
            raise ValueError(f"{len(self)} prompts cannot serve a batch of {batch_size}; give 1 or {batch_size}")
        return self._map(lambda tensor: tensor.expand(batch_size, *tensor.shape[1:]))

    @classmethod
    def concat_prompt_embeds(cls, parts: Sequence["PromptEmbeds"], padding_side: str = "right") -> "PromptEmbeds":
        """The prompts of all parts, padded with zeros to the longest on `padding_side`."""
        length = max(part.text_embeds.shape[1] for part in parts)

        def join(name: str, pad: bool) -> torch.Tensor | None:
            tensors = [getattr(part, name) for part in parts]
            if any(tensor is None for tensor in tensors):
                return None
            return torch.cat([_pad(tensor, length, padding_side) if pad else tensor for tensor in tensors])

        return cls(join("text_embeds", True), join("pooled_embeds", False), join("attention_mask", True))

    def save(self, path: str | Path) -> None:
        named = {"text_embed": self.text_embeds, "pooled_embed": self.pooled_embeds, "attention_mask": self.attention_mask}
        save_tensors({key: tensor for key, tensor in named.items() if tensor is not None}, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> "PromptEmbeds | AdvancedPromptEmbeds":
        """Whichever of the two classes the file holds."""
        if read_metadata(Path(path)).get("class_name") == CLASS_NAME:
            return AdvancedPromptEmbeds.load(path)
        tensors = load_tensors(Path(path))
        return cls(tensors["text_embed"], tensors.get("pooled_embed"), tensors.get("attention_mask"))

    def _map(self, change: Any) -> "PromptEmbeds":
        parts = (self.text_embeds, self.pooled_embeds, self.attention_mask)
        return PromptEmbeds(*(None if tensor is None else change(tensor) for tensor in parts))


def concat_prompt_embeds(parts: Sequence[Any], padding_side: str = "right") -> Any:
    """Join embeds of either class. Raises ValueError if the classes are mixed."""
    if len({type(part) for part in parts}) > 1:
        raise ValueError(f"cannot join prompt embeds of different classes: {sorted({type(part).__name__ for part in parts})}")
    return type(parts[0]).concat_prompt_embeds(parts, padding_side=padding_side)


def pad_prompt_embeds(
    text_embeds: Sequence[torch.Tensor], device: Any, dtype: torch.dtype, padding_side: str = "right"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Per-item (L_i, D) tensors as one (B, L, D) padded with zeros, and the mask (B, L), true where there is text."""
    length = max(item.shape[0] for item in text_embeds)
    padded = torch.stack([_pad(item[None], length, padding_side)[0] for item in text_embeds]).to(device, dtype)
    mask = torch.stack([_pad(torch.ones(1, item.shape[0], dtype=torch.bool), length, padding_side)[0] for item in text_embeds])
    return padded, mask.to(device)


def _pad(tensor: torch.Tensor, length: int, side: str) -> torch.Tensor:
    """Zeros along axis 1 up to `length`."""
    missing = length - tensor.shape[1]
    zeros = tensor.new_zeros(tensor.shape[0], missing, *tensor.shape[2:])
    return torch.cat([tensor, zeros] if side == "right" else [zeros, tensor], dim=1)
