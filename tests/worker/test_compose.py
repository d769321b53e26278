"""docker-compose.yml with its override for a CPU: valid by the Compose specification, and every service replayed as processes.

No container engine is needed. A service's command and health check run here with the service's environment; `/data` is a
temporary folder, the service names are addresses of this machine, and `redis-server` is the server that comes with Safelight.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from ruamel.yaml import YAML
from ruamel.yaml.constructor import SafeConstructor

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "ui/node_modules/dclint/schemas/compose.schema.json"
FILES = ("docker-compose.yml", "docker-compose.cpu.yml")
TOKEN = "a token of this test"
STOP_SECONDS = 60


class _Compose(SafeConstructor):
    """YAML as Compose reads it: `!reset` removes what the file below says."""


_Compose.add_constructor("!reset", lambda *_: None)


def read(name: str) -> dict[str, Any]:
    yaml = YAML(typ="safe", pure=True)
    yaml.Constructor = _Compose
    loaded: dict[str, Any] = yaml.load((ROOT / name).read_text())
    return loaded


def laid_over(below: Any, above: Any) -> Any:
    """What Compose makes of two files: mappings are merged, and here every command and scalar of the upper one wins."""
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    merged = below | {key: laid_over(below.get(key), value) for key, value in above.items()}
    return {key: value for key, value in merged.items() if value is not None}


def filled_in(text: str, env: dict[str, str]) -> str:
    """`${NAME:-default}` and `${NAME:?message}` as Compose fills them in. Raises ValueError with the message."""

    def value(found: re.Match[str]) -> str:
        name, kind, rest = found.groups()
        if not env.get(name) and kind == "?":
            raise ValueError(rest)
        return env.get(name) or rest

    return re.sub(r"\$\{(\w+):([-?])([^}]*)\}", value, text)


@pytest.mark.parametrize("name", FILES)
def test_the_file_is_valid_by_the_compose_specification(name: str) -> None:
    jsonschema.Draft7Validator(json.loads(SCHEMA.read_text())).validate(read(name))


def test_without_a_token_nothing_starts() -> None:
    needed = read(FILES[0])["services"]["server"]["environment"]["SAFELIGHT_TOKEN"]
    with pytest.raises(ValueError, match="choose a secret text"):
        filled_in(needed, {})


def test_what_a_service_is_built_from_is_there_and_it_does_not_run_as_root() -> None:
    services = laid_over(*map(read, FILES))["services"]
    built = {service["build"]["dockerfile"] for service in services.values() if "build" in service}
    assert built == {"docker/server.Dockerfile", "docker/worker.Dockerfile"}
    sent = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for name in built:
        text = (ROOT / name).read_text()
        assert re.findall(r"^USER (\w+)$", text, re.MULTILINE) == ["safelight"]
        for sources in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE):
            for source in sources.split():
                assert source.partition("/")[0] in sent, f"{name} copies {source}, which .dockerignore leaves out"
                assert (ROOT / source).exists()


def test_only_the_worker_image_holds_torch() -> None:
    server, worker = ((ROOT / f"docker/{name}.Dockerfile").read_text() for name in ("server", "worker"))
    assert "TORCH" not in server
    assert "--editable '.[worker]'" in worker
    services = read(FILES[0])["services"]
    (device,) = services["worker-0"]["deploy"]["resources"]["reservations"]["devices"]
    assert (device["device_ids"], services["worker-0"]["command"][-1]) == (["0"], "cuda:0")
    assert "deploy" not in laid_over(*map(read, FILES))["services"]["worker-0"]


class Composed:
    """The services as processes. `up()` starts them in order, each when what it depends on is healthy."""

    def __init__(self, folder: Path, redis_port: int, port: int, until: Callable[..., None]) -> None:
        self.services = laid_over(*map(read, FILES))["services"]
        self.redis_port, self.port, self.until = redis_port, port, until
        self.data, self.tools, self.folder = folder / "data", folder / "tools", folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.http = httpx.Client(
            base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {TOKEN}"}, trust_env=False
        )
        self._redis_tools()

    def up(self) -> None:
        waiting = dict(self.services)
        while waiting:
            name = next(name for name, each in waiting.items() if not set(each.get("depends_on", ())) & set(waiting))
            service = waiting.pop(name)
            with (self.folder / f"{name}.log").open("ab") as log:
                self.running[name] = subprocess.Popen(
                    self._command(name, service["command"]),
                    env=self.environment(name),
                    cwd=self.folder,
                    stdout=log,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                )
            self.until(lambda name=name: self.is_healthy(name), f"{name} is not healthy", self.logs)

    def stop(self, name: str) -> int:
        """SIGTERM to the service's process, as `docker compose stop` does it; returns the exit code."""
        process = self.running.pop(name)
        process.send_signal(signal.SIGTERM)
        return process.wait(STOP_SECONDS)

    def down(self) -> list[int]:
        return [self.stop(name) for name in reversed(list(self.running))]

    def is_healthy(self, name: str) -> bool:
        assert self.running[name].poll() is None, self.logs()
        kind, *command = self.services[name]["healthcheck"]["test"]
        assert kind == "CMD"
        return subprocess.run(self._command(name, command), env=self.environment(name), check=False).returncode == 0

    def environment(self, name: str) -> dict[str, str]:
        given = self.services[name].get("environment", {})
        own = {key: filled_in(str(value), {"SAFELIGHT_TOKEN": TOKEN}) for key, value in given.items()}
        own = {key: value.replace("/data", str(self.data)) for key, value in own.items()}
        if "SAFELIGHT_REDIS_URL" in own:
            own["SAFELIGHT_REDIS_URL"] = own["SAFELIGHT_REDIS_URL"].replace("redis:6379", f"127.0.0.1:{self.redis_port}")
            own["SAFELIGHT_PORT"] = str(self.port)  # in a container it is 8765
        python = str(Path(sys.executable).parent)
        basics = {key: os.environ[key] for key in ("HOME", "LANG", "OMP_NUM_THREADS") if key in os.environ}
        return {**basics, "PATH": f"{self.tools}:{python}:{os.environ['PATH']}", **own}

    def logs(self) -> str:
        return "\n".join(f"{path.name}: {path.read_text()[-1500:]}" for path in self.folder.glob("*.log"))

    def _command(self, name: str, command: list[str]) -> list[str]:
        found = [str(self.tools / command[0]) if (self.tools / command[0]).exists() else command[0], *command[1:]]
        if found[0] == "safelight":  # as the console script does it
            found[:1] = [sys.executable, "-m", "server.cli"]
        if name == "redis" and command[0] == "redis-server":
            found += ["--bind", "127.0.0.1", "--port", str(self.redis_port), "--dir", str(self.folder)]
        return [sys.executable if part == "python" else part for part in found]

    def _redis_tools(self) -> None:
        """redis-server and redis-cli of the image: the server that comes with Safelight, and a PING."""
        from server.store.broker import server_binary

        self.tools.mkdir()
        (self.tools / "redis-server").symlink_to(server_binary())
        ping = f"import redis; assert redis.Redis(port={self.redis_port}).ping()"
        client = self.tools / "redis-cli"
        client.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{ping}' 2>/dev/null\n")
        client.chmod(0o755)


@pytest.fixture
def composed(tmp_path: Path, free_ports: Callable[[int], list[int]], until: Callable[..., None]) -> Iterator[Composed]:
    made = Composed(tmp_path, *free_ports(2), until)
    yield made
    made.down()
    made.http.close()


def test_a_posted_job_is_saved_by_a_stop_and_goes_on_after_the_next_up(
    composed: Composed, pictures: Callable[..., Path], tiny_job: Callable[..., dict[str, Any]], until: Callable[..., None]
) -> None:
    composed.up()
    folder = composed.data / "datasets" / "colours"
    folder.parent.mkdir(exist_ok=True)
    pictures().rename(folder)
    spec = tiny_job(**{"train.steps": 400, "train.disable_sampling": True, "save.save_every": 400})

    def job(job_id: str) -> dict[str, Any]:
        found: dict[str, Any] = composed.http.get(f"/v1/jobs/{job_id}").json()
        return found

    assert httpx.post(f"http://127.0.0.1:{composed.port}/v1/jobs", json=spec, trust_env=False).status_code == 401
    job_id = composed.http.post("/v1/jobs", json=spec).json()["id"]
    until(lambda: job(job_id)["step"] >= 20, "the job does not train", composed.logs)
    assert composed.stop("worker-0") == 0
    saved = job(job_id)
    assert (saved["status"], saved["worker"]) == ("queued", None)
    assert 20 <= saved["step"] < 400
    assert set(composed.down()) <= {0, -signal.SIGTERM}  # uvicorn ends by the signal that stopped it
    composed.up()
    until(lambda: job(job_id)["step"] > saved["step"], "the job is not resumed", composed.logs)
    until(lambda: job(job_id)["status"] in ("succeeded", "failed"), "the job does not end", composed.logs)
    ended = job(job_id)
    assert (ended["status"], ended["step"], ended["attempt"]) == ("succeeded", 400, 2)
    steps = [point[0] for point in composed.http.get(f"/v1/jobs/{job_id}/metrics").json()["points"]]
    assert steps == list(range(1, 401))
