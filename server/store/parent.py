"""What `safelight up` starts ends with it, however it went."""

import os
import signal
import threading
import time
from collections.abc import Mapping

NAME = "SAFELIGHT_PARENT"
LOOK_SECONDS = 1.0


def environment() -> Mapping[str, str]:
    """The environment for a child that is to end with this process."""
    return {**os.environ, NAME: str(os.getpid())}


def end_with_parent() -> None:
    """In such a child: from now on, the end of its parent is a SIGTERM. Does nothing in a process that was started by itself."""
    parent = os.environ.get(NAME)
    if parent is None:
        return

    def watch() -> None:
        while os.getppid() == int(parent):
            time.sleep(LOOK_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
