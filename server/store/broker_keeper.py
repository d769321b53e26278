"""Keeps one embedded Redis server: starts it, again whenever it dies, and stops it once nobody holds a share in it any more.

Run as `python -m server.store.broker_keeper BINARY FOLDER DATA`. A process of its own, with nothing but the standard library, so
that the server outlives whichever process asked for it first and never outlives the last one, even if that was killed.
"""

import fcntl
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

LOOK_SECONDS = 0.25
STOP_SECONDS = 10


def main(binary: str, folder: Path, data: str) -> None:
    options = {
        "port": "0", "unixsocket": str(folder / "redis.sock"), "unixsocketperm": "700", "dir": data,
        "appendonly": "yes", "save": "", "logfile": str(folder / "redis.log"), "maxmemory": "256mb", "databases": "1",
    }  # fmt: skip
    command = [binary, *(part for name, value in options.items() for part in (f"--{name}", value))]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    with (folder / "users.lock").open("a") as share:
        while not _last_user_is_gone(share):
            if server.poll() is not None:
                server = subprocess.Popen(command, stdin=subprocess.DEVNULL)
            time.sleep(LOOK_SECONDS)
        server.terminate()
        try:
            server.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        (folder / "redis.sock").unlink(missing_ok=True)


def _last_user_is_gone(share: IO[str]) -> bool:
    try:
        fcntl.flock(share, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
