"""Keeps one embedded Redis server: starts it, waits until nobody holds a share in it any more, stops it.

Run as `python -m server.store.broker_keeper BINARY FOLDER DATA`. A process of its own, with nothing but the standard library, so
that the server outlives whichever process asked for it first and never outlives the last one, even if that was killed.
"""

import fcntl
import subprocess
import sys
from pathlib import Path

STOP_SECONDS = 10


def main(binary: str, folder: Path, data: str) -> None:
    options = {
        "port": "0", "unixsocket": str(folder / "redis.sock"), "unixsocketperm": "700", "dir": data,
        "appendonly": "yes", "save": "", "logfile": str(folder / "redis.log"), "maxmemory": "256mb", "databases": "1",
    }  # fmt: skip
    command = [binary, *(part for name, value in options.items() for part in (f"--{name}", value))]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    with (folder / "users.lock").open("a") as share:
        fcntl.flock(share, fcntl.LOCK_EX)  # granted when the last user is gone
        server.terminate()
        try:
            server.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        (folder / "redis.sock").unlink(missing_ok=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
