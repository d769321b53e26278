"""Health check of the server's container: `python -m server.health` exits with 0 if the server is ready, else with 1."""

import sys

from server import client

WAIT_SECONDS = 5

if __name__ == "__main__":
    sys.exit(0 if client.wait_until_ready(WAIT_SECONDS) else 1)
