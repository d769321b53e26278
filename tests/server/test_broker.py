"""The embedded Redis server: shared by whoever uses the data folder, gone when the last of them is, and never needed for truth."""

import os
import signal
import stat
from pathlib import Path
from typing import Any

import pytest
import redis

from server.store import broker, jobs, verbs
from server.store.settings import settings

HOLD = """
    import sys
    from server.store import broker
    share = broker.hold()
    print(broker.client().info("server")["process_id"], flush=True)
    sys.stdin.readline()
"""


def running(pid: int) -> bool:
    """Whether that process still runs (a dead one that nobody has waited for does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_two_users_share_one_server_that_goes_with_the_last(home, elsewhere, until) -> None:
    one, other = elsewhere(HOLD), elsewhere(HOLD)
    pid = int(one.stdout.readline())
    assert int(other.stdout.readline()) == pid
    one.communicate("bye\n")
    assert broker.answers()
    other.communicate("bye\n")
    until(lambda: not broker.answers() and not running(pid), "the server outlives its last user")


@pytest.mark.parametrize("killed", [signal.SIGKILL, signal.SIGTERM])
def test_the_server_goes_also_when_its_last_user_was_killed(home, elsewhere, until, killed) -> None:
    user = elsewhere(HOLD)
    pid = int(user.stdout.readline())
    assert running(pid)
    user.send_signal(killed)
    user.wait(60)
    until(lambda: not running(pid), "the server outlives its killed user")


def test_a_user_that_comes_while_the_last_one_goes_gets_a_server(home, elsewhere) -> None:
    for _ in range(5):
        user = elsewhere(HOLD)
        assert int(user.stdout.readline()) > 0
        user.kill()
        user.wait(60)
        with broker.hold():  # type: ignore[union-attr]
            assert broker.answers()
        broker.client.cache_clear()


def test_only_its_owner_reaches_the_socket(home) -> None:
    with broker.hold():  # type: ignore[union-attr]
        path = broker.socket_path()
        assert path == home / "broker" / "redis.sock"
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_data_folder_with_a_long_path_gets_a_short_socket(tmp_path, monkeypatch) -> None:
    long = tmp_path / ("deep" * 30)
    monkeypatch.setenv("SAFELIGHT_HOME", str(long))
    settings.cache_clear()
    path = broker.socket_path()
    assert len(os.fsencode(path)) <= 100
    assert not path.is_relative_to(long)
    with broker.hold():  # type: ignore[union-attr]
        assert broker.answers()
        assert path.is_socket()
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    monkeypatch.setenv("SAFELIGHT_HOME", str(tmp_path / ("depp" * 30)))
    settings.cache_clear()
    assert broker.socket_path() != path


def test_a_redis_server_of_ones_own_is_used_instead(home, monkeypatch, elsewhere) -> None:
    user = elsewhere(HOLD)
    user.stdout.readline()
    url = f"unix://{broker.socket_path()}"
    monkeypatch.setenv("SAFELIGHT_HOME", str(home.parent / "other"))
    monkeypatch.setenv("SAFELIGHT_REDIS_URL", url)
    settings.cache_clear()
    broker.client.cache_clear()
    assert broker.redis_url() == url
    assert broker.hold() is None
    assert broker.answers()
    assert not (home.parent / "other" / "broker").exists()


def test_nobody_fails_because_the_bell_is_broken(add, monkeypatch) -> None:
    job_id = add()
    assert not broker.answers()
    with pytest.raises(redis.RedisError):
        broker.client().ping()
    broker.publish([])
    broker.publish(verbs.change(job_id, "other", None, None)[1])
    broker.ring(["w1", "w2"])
    assert jobs.get(job_id).name == "other"


def test_a_bell_hangs_at_each_worker_and_is_rung_on_a_socket_or_elsewhere(home, monkeypatch) -> None:
    with broker.hold():  # type: ignore[union-attr]
        broker.ring(["w1"])
        monkeypatch.setenv("SAFELIGHT_REDIS_URL", f"unix://{broker.socket_path()}")
        settings.cache_clear()
        broker.celery.cache_clear()
        broker.ring(["w1", "w2"])
        assert [broker.client().llen(broker.queue_of(worker)) for worker in ("w1", "w2", "w3")] == [2, 1, 0]


def test_a_broker_that_dies_comes_back(client, until) -> None:
    pid = int(broker.client().info("server")["process_id"])
    assert client.get("/readyz").json() == {"status": "ready", "database": True, "broker": True, "workers": 0}
    os.kill(pid, signal.SIGKILL)
    until(lambda: broker.answers() and int(broker.client().info("server")["process_id"]) != pid, "no new server is started")
    until(lambda: client.get("/readyz").status_code == 200, "the server does not find the broker again")


def test_a_server_without_a_broker_works_and_says_that_it_is_not_ready(home, monkeypatch, app_again, pictures, tiny_job) -> None:
    monkeypatch.setenv("SAFELIGHT_REDIS_URL", f"unix://{home}/nobody.sock")
    pictures()
    with app_again() as client:
        answer = client.get("/readyz")
        assert (answer.status_code, answer.json()["broker"], answer.json()["database"]) == (503, False, True)
        assert client.get("/healthz").status_code == 200
        job: dict[str, Any] = client.post("/v1/jobs", json=tiny_job()).json()
        assert client.get(f"/v1/jobs/{job['id']}").json()["status"] == "queued"
        assert client.get(job["links"]["events"]).json()["next_after"] == 1
