"""`toolkit.ideogram_caption`: structured captions in one compact spelling."""

import json


def digest_caption_string(caption: str) -> str:
    """A caption that is a JSON object, without needless white space; any other text as it is."""
    try:
        value = json.loads(caption)
    except ValueError:
        return caption
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) if isinstance(value, dict) else caption
