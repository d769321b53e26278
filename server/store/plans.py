"""Predictions that the server asks workers for, through the broker: a job's memory, which needs torch to know.

Nothing is lost if a message is: the server asks again the next time someone looks at the plan.
"""

import hashlib
import json
import logging
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar, cast

import redis

from server.store import broker, files

ANSWERS = "safelight:plan:"
ASKED = "safelight:plan-asked:"
WANTED = "safelight:plans-wanted:"
REMEMBERED_SECONDS = 7 * 24 * 3600
ERROR_SECONDS = 120
ASKED_SECONDS = 60  # after the last word of who works on it, it is asked for again
WEIGHTS = ("name_or_path", "te_name_or_path", "vae_path", "assistant_lora_path", "accuracy_recovery_adapter")
MOST_WAITING = 10

Answer = dict[str, Any]
T = TypeVar("T")

log = logging.getLogger(__name__)


def digest_of(spec: Answer, data: Any) -> str:
    """What a prediction hangs on: the job without its name, what its datasets hold, its weights' and adapters' files as they are, and
    our version."""
    told = {key: value for key, value in spec.items() if key not in ("name", "labels")}
    named = [spec["model"].get(key) for key in WEIGHTS]
    named += [adapter["path"] for adapter in spec.get("adapters") or []]
    named += (spec.get("matrix") or {}).get("checkpoints", [])
    weights = [_stamp(given) for given in named if given]
    return hashlib.sha256(json.dumps([told, data, weights, _version()], sort_keys=True).encode()).hexdigest()


def answer(digest: str) -> Answer | None:
    """What is known of the job with this digest: {"plan": ...}, of its texts {"cut": problems or null}, or {"error": text}, with `refuses`
    and `hint` where the job's own run would meet that error too."""
    known = _tried(lambda client: client.get(ANSWERS + digest))
    return cast(Answer, json.loads(cast(bytes, known))) if known else None


def ask(worker: str, digest: str, spec: Answer, texts: str = "") -> bool:
    """Ask this worker for the prediction with this `digest` and the count of tokens with the digest `texts`, "" being none: for what nobody
    was asked a short while ago. False if no broker answers."""

    def send(client: redis.Redis) -> bool:
        unasked = [each for each in (digest, texts) if each and client.set(ASKED + each, worker, nx=True, ex=ASKED_SECONDS)]
        if unasked:
            question = {name: each if each in unasked else "" for name, each in (("digest", digest), ("texts", texts))}
            client.rpush(WANTED + worker, json.dumps({**question, "spec": spec}))
            client.ltrim(WANTED + worker, -MOST_WAITING, -1)
        return True

    return bool(_tried(send))


def take(worker: str) -> Answer | None:
    """The newest question to this worker, {"digest": ..., "texts": ..., "spec": ...}, a digest that nothing depends on being "": who edits
    a job asks often and waits for the last answer."""
    asked = _tried(lambda client: client.rpop(WANTED + worker))
    return cast(Answer, json.loads(cast(bytes, asked))) if asked else None


def remember(digest: str, answered: Answer) -> None:
    """Answer a question, for a week; an error, which may be gone soon, for two minutes."""

    def write(client: redis.Redis) -> None:
        client.set(ANSWERS + digest, json.dumps(answered), ex=ERROR_SECONDS if "error" in answered else REMEMBERED_SECONDS)
        client.delete(ASKED + digest)

    _tried(write)


def still_asked(digest: str) -> None:
    """The question is being worked on: nobody need ask again yet."""
    _tried(lambda client: client.expire(ASKED + digest, ASKED_SECONDS))


def _stamp(given: str) -> list[list[object]]:
    try:
        return files.stamp(files.weights_path(given))
    except files.PathRefused:
        return [[given]]


def _version() -> str:
    try:
        return version("safelight")
    except PackageNotFoundError:
        return "unknown"


def _tried(work: Callable[[redis.Redis], T]) -> T | None:
    try:
        return work(broker.client())
    except redis.RedisError as error:
        log.warning("no prediction: %s", error)
        return None
