"""What workers found in folders elsewhere, as rows. A worker replaces them all when something changed."""

from collections.abc import Sequence

from sqlalchemy import delete, func
from sqlmodel import col, select

from server.store.engine import reading, writing
from server.store.tables import ExtensionArch


def replace(rows: Sequence[ExtensionArch]) -> None:
    """These rows instead of all earlier ones."""
    with writing() as session:
        session.connection().execute(delete(ExtensionArch))
        session.add_all(rows)


def listing() -> list[ExtensionArch]:
    with reading() as session:
        return list(session.exec(select(ExtensionArch).order_by(col(ExtensionArch.name))))


def usable() -> dict[str, bool]:
    """Their names, each with whether it is not broken."""
    with reading() as session:
        return {name: broken is None for name, broken in session.exec(select(ExtensionArch.name, ExtensionArch.broken))}


def stamp() -> tuple[int, str]:
    """Changes whenever `replace` was called with anything: how many rows there are, and when the newest was seen."""
    with reading() as session:
        number, newest = session.exec(select(func.count(), func.max(ExtensionArch.seen_at)).select_from(ExtensionArch)).one()
        return number, newest or ""
