"""Health check of a worker's container: `python -m worker.health` exits with 0 while this host's worker lives, else with 1.

A worker lives while the heartbeat that it writes to the database is younger than the lease of its jobs.
"""

import socket
import sys
from datetime import UTC, datetime, timedelta

from server.store import workers
from server.store.settings import settings


def is_alive(host: str) -> bool:
    """Whether a worker on `host` runs and has written its heartbeat within `SAFELIGHT_LEASE_SECONDS`."""
    oldest = datetime.now(UTC) - timedelta(seconds=settings().lease_seconds)
    rows = [row for row, _ in workers.listing() if row.host == host and not row.stopped]
    return any(datetime.fromisoformat(row.seen_at) >= oldest for row in rows)


if __name__ == "__main__":
    sys.exit(0 if is_alive(socket.gethostname()) else 1)
