"""Alembic's entry. `server.store.engine.migrate` hands in its connection; the `alembic` command (for a new revision) has none."""

from alembic import context
from sqlmodel import SQLModel

import server.store.tables  # noqa: F401 - fills the metadata
from server.store.engine import engine

if (connection := context.config.attributes.get("connection")) is not None:
    context.configure(connection=connection, target_metadata=SQLModel.metadata, render_as_batch=True)
    context.run_migrations()
else:
    with engine().execution_options(writing=True).connect() as connection:
        context.configure(connection=connection, target_metadata=SQLModel.metadata, render_as_batch=True)
        with context.begin_transaction():
            context.run_migrations()
