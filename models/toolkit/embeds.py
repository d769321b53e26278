"""`toolkit.prompt_utils` and `toolkit.advanced_prompt_embeds` on our containers."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import torch

from models import prompt_embeds as ours
from models.prompt_embeds import AdvancedPromptEmbeds, concat_prompt_embeds
from models.weights import load_tensors, read_metadata, save_tensors

__all__ = ["AdvancedPromptEmbeds", "PromptEmbeds", "concat_prompt_embeds", "split_prompt_embeds"]

Tensors = torch.Tensor | list[torch.Tensor]


class PromptEmbeds(ours.PromptEmbeds):
    """Ours, whose `text_embeds` and `attention_mask` may also be lists: of (L, D) for every prompt, or of (B, L, D) for every text
    encoder. Constructed from a tensor, from such a list, or from a pair (text_embeds, pooled_embeds)."""

    def __init__(self, args: Any, attention_mask: Any = None, **_: Any) -> None:
        pair = isinstance(args, list | tuple)
        self.text_embeds: Any = args[0] if pair else args
        self.pooled_embeds = args[1] if pair and len(args) > 1 else None
        self.attention_mask: Any = attention_mask

    def __len__(self) -> int:
        if isinstance(self.text_embeds, torch.Tensor) or self.text_embeds[0].ndim != 2:
            first = self.text_embeds if isinstance(self.text_embeds, torch.Tensor) else self.text_embeds[0]
            return int(first.shape[0])
        return len(self.text_embeds)

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """A moved and cast copy; masks of whole numbers or truth values keep their dtype."""
        device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
        return self._map(lambda tensor: tensor.to(device, dtype if tensor.is_floating_point() else None))

    def expand_to_batch(self, batch_size: int) -> Self:
        if len(self) not in (1, batch_size):
            raise ValueError(f"{len(self)} prompts cannot serve a batch of {batch_size}; give 1 or {batch_size}")
        if len(self) == batch_size:
            return self._map(lambda tensor: tensor.clone())
        joined: Self = type(self).concat_prompt_embeds([self] * batch_size)
        return joined

    @classmethod
    def concat_prompt_embeds(cls, parts: Sequence[Any], padding_side: str = "right") -> Any:
        """The prompts of all parts. Tensors are padded with zeros to the longest on `padding_side`; per-prompt lists are joined."""

        def join(values: list[Any]) -> Any:
            if any(value is None for value in values):
                return None
            if isinstance(values[0], torch.Tensor):
                return _padded(values, padding_side)
            if values[0][0].ndim == 2 or values[0][0].ndim == 1:
                return [item for value in values for item in value]
            return [_padded(list(each), padding_side) for each in zip(*values, strict=True)]

        made = parts[0].clone()
        for name, start in vars(made).items():
            if start is None or isinstance(start, torch.Tensor | list):
                setattr(made, name, join([getattr(part, name) for part in parts]))
        return made

    def split(self, num_parts: int) -> list[Self]:
        size = len(self) // num_parts

        def cut(value: Any, at: int) -> Any:
            if isinstance(value, list) and value and value[0].ndim > 2:
                return [each[at : at + size] for each in value]
            return value[at : at + size]

        parts = [self._map(lambda tensor: tensor) for _ in range(num_parts)]
        for index, part in enumerate(parts):
            for name, value in vars(part).items():
                if isinstance(value, torch.Tensor | list):
                    setattr(part, name, cut(value, index * size))
        return parts

    def save(self, path: str | Path) -> None:
        tensors: dict[str, torch.Tensor] = {}
        for key, value in {
            "text_embed": self.text_embeds, "pooled_embed": self.pooled_embeds, "attention_mask": self.attention_mask
        }.items():  # fmt: skip
            several = {f"{key}_{index}": each for index, each in enumerate(value)} if isinstance(value, list) else {key: value}
            tensors |= {name: each for name, each in several.items() if each is not None}
        save_tensors(tensors, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> Any:
        if read_metadata(Path(path)).get("class_name") == ours.CLASS_NAME:
            return AdvancedPromptEmbeds.load(path)
        tensors = load_tensors(Path(path))

        def read(key: str) -> Any:
            several = sorted((n for n in tensors if n.startswith(f"{key}_")), key=lambda n: int(n.rpartition("_")[2]))
            return [tensors[name] for name in several] if several else tensors.get(key)

        return cls([read("text_embed"), read("pooled_embed")], attention_mask=read("attention_mask"))

    def _map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Self:
        """A copy of any subclass, every tensor changed."""
        made = object.__new__(type(self))
        for name, value in vars(self).items():
            several = isinstance(value, list) and all(isinstance(each, torch.Tensor) for each in value)
            changed = [change(each) for each in value] if several else change(value) if isinstance(value, torch.Tensor) else value
            setattr(made, name, changed)
        return made


def split_prompt_embeds(joined: Any, num_parts: int | None = None) -> list[Any]:
    """`num_parts` equal parts in order (default: one per prompt)."""
    if isinstance(joined, AdvancedPromptEmbeds):
        return list(AdvancedPromptEmbeds.split_prompt_embeds(joined, num_parts))
    parts: list[Any] = joined.split(num_parts or len(joined))
    return parts


def _padded(tensors: list[torch.Tensor], side: str) -> torch.Tensor:
    """(B, L, ...) tensors joined along axis 0, padded with zeros along axis 1; (B, P) float ones need no padding."""
    if tensors[0].ndim < 2 or len({tensor.shape[1] for tensor in tensors}) == 1:
        return torch.cat(tensors)
    length = max(tensor.shape[1] for tensor in tensors)
    return torch.cat([ours._pad(tensor, length, side) for tensor in tensors])
