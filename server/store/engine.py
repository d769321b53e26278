"""The database: one engine per process, migrations at start, and the two ways to use it, `reading()` and `writing()`.

SQLite with WAL and synchronous=FULL: a committed event survives a power cut. Writers take the write lock at BEGIN
(`BEGIN IMMEDIATE`), so that no transaction fails half way with "database is locked"; they wait up to 30 s for it.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, event
from sqlmodel import Session, create_engine

from server.store.settings import settings

LOCK_WAIT_SECONDS = 30


@cache
def engine() -> Engine:
    """This process's engine. A forked child must call `forget()` first."""
    url = settings().sqlalchemy_url
    settings().home.mkdir(parents=True, exist_ok=True)
    made = create_engine(url, connect_args={"timeout": LOCK_WAIT_SECONDS, "check_same_thread": False})

    @event.listens_for(made, "connect")
    def _configure(connection, _record) -> None:  # type: ignore[no-untyped-def]
        connection.isolation_level = None  # we say BEGIN ourselves
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", f"busy_timeout={LOCK_WAIT_SECONDS * 1000}"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(made, "begin")
    def _begin(connection) -> None:  # type: ignore[no-untyped-def]
        connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get("writing") else "BEGIN")

    return made


def forget() -> None:
    """Drop the engine that was inherited over a fork, without closing the parent's connections."""
    if engine.cache_info().currsize:
        engine().dispose(close=False)
        engine.cache_clear()


@contextmanager
def reading() -> Iterator[Session]:
    """A session that sees one consistent state."""
    with Session(engine(), expire_on_commit=False) as session:
        yield session


@contextmanager
def writing() -> Iterator[Session]:
    """A session that holds the write lock from its first statement; commits at the end, rolls back on an exception."""
    with Session(engine().execution_options(writing=True), expire_on_commit=False) as session:
        yield session
        session.commit()


def migrate() -> None:
    """Bring the database to this version's schema. Several processes may call it at once."""
    logging.getLogger("alembic").setLevel("WARNING")  # it names its own parts at every start
    with engine().execution_options(writing=True).connect() as connection:
        config = Config()
        config.set_main_option("script_location", str(Path(__file__).parent.parent / "migrations"))
        config.attributes["connection"] = connection
        with connection.begin():
            command.upgrade(config, "head")
