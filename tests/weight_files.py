"""Files of weights for tests, made without torch."""

import json
import math
from typing import Any


def safetensors(metadata: dict[str, str] | None = None, **shapes: list[int]) -> bytes:
    """A safetensors file of zero bytes of weights, made without torch: `shapes` by key, `__` standing for a dot."""
    header: dict[str, Any] = {"__metadata__": metadata or {}}
    end = 0
    for key, shape in shapes.items():
        size = math.prod(shape)
        header[key.replace("__", ".")] = {"dtype": "U8", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"\0" * end
