"""What our own code warns of while a job runs, in the job's own log: a user sees that, and rarely the worker's terminal."""

import logging
import threading
from collections import Counter
from collections.abc import Callable

from worker.report import Stop

ROOMS = ("models", "worker.data", "worker.sampling.video", "safelight")  # the loggers; what else warns tells the job by itself
MOST_ALIKE = 10  # lines of one warning


class JobLog(logging.Handler):
    """Use as a context manager. `tell(message, level)` gets each warning and error of ROOMS, from whichever thread; what it logs itself
    comes back to no one, and what it raises ends nothing: a lost lease is heard of elsewhere."""

    def __init__(self, tell: Callable[[str, str], None]) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell
        self._thread = threading.local()
        self._seen: Counter[str] = Counter()

    def createLock(self) -> None:  # noqa: N802
        """No lock: `tell` waits for the database, and no other thread is to wait for both."""
        self.lock = None

    def __enter__(self) -> "JobLog":
        for room in ROOMS:
            logging.getLogger(room).addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        for room in ROOMS:
            logging.getLogger(room).removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        alike = f"{record.name} {record.msg}"
        if getattr(self._thread, "telling", False) or self._seen[alike] >= MOST_ALIKE:
            return
        self._seen[alike] += 1
        self._thread.telling = True
        try:
            message = record.getMessage()
            if record.exc_info and (error := record.exc_info[1]):
                message += f": {type(error).__name__}: {error}"
            if self._seen[alike] == MOST_ALIKE:
                message += " (more of these stand in the worker's own log only)"
            self._tell(message, "WARNING" if record.levelno < logging.ERROR else "ERROR")
        except Stop:
            pass
        except Exception:
            self.handleError(record)
        finally:
            self._thread.telling = False
