"""`python -m server.migrate "what changed"` writes a migration from the difference between the tables and the database at hand."""

import sys
from pathlib import Path

from alembic import command
from alembic.config import Config

from server.store.engine import migrate

if __name__ == "__main__":
    migrate()
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    command.revision(config, sys.argv[1], autogenerate=True)
