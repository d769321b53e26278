"""Keeps this process's catalogue at what workers found in folders elsewhere."""

import threading

from models import catalog
from models.extensions import Extension, card_from_json
from server.store import extensions
from server.store.tables import ExtensionArch

_lock = threading.Lock()
_known: tuple[int, str] = (0, "")


def refresh() -> None:
    """Read the table again if it changed. Cheap; every request that needs the catalogue asks for it."""
    global _known
    with _lock:
        newest = extensions.stamp()
        if newest != _known:
            catalog.register(map(as_extension, extensions.listing()))
            _known = newest


def as_extension(row: ExtensionArch) -> Extension:
    card = card_from_json(row.card) if row.broken is None else None
    return Extension(row.name, row.source, row.digest, card, row.schemas, row.broken)
