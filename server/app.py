"""The API and the web UI as one ASGI app. Imports no torch."""

import asyncio
import contextlib
import fcntl
import importlib.metadata
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from models import catalog
from server import auth
from server.api import catalog as catalog_routes
from server.api import events, files, jobs, workers
from server.api.deps import Wakes, add_problem_handlers
from server.api.http import BodyLimit
from server.reaper import Reaper
from server.store import broker
from server.store.engine import migrate
from server.store.settings import LOOPBACK, Settings, settings

STATIC = Path(__file__).parent / "static"


class StartRefused(RuntimeError):
    """The server cannot start, for a reason that the user can mend."""


def create_app() -> FastAPI:
    """The app, with its routes in place; the broker and the database are opened when it starts."""
    app = FastAPI(
        title="Safelight", version=importlib.metadata.version("safelight"), lifespan=_lifespan, docs_url=None, redoc_url=None
    )
    for room in (jobs, events, files, catalog_routes, workers, auth):
        app.include_router(room.router)
    add_problem_handlers(app)
    app.add_middleware(BodyLimit)
    app.add_middleware(auth.Gate)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    if STATIC.is_dir():
        app.mount("/", _Shell(directory=STATIC, html=True))
    return app


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    with server_lock(), contextlib.ExitStack() as stack:
        if share := broker.hold():
            stack.callback(share.close)
        migrate()
        app.state.wakes, app.state.reaper = Wakes(), Reaper()
        listener = asyncio.create_task(app.state.wakes.run())
        app.state.reaper.start()
        try:
            yield
        finally:
            app.state.reaper.stop()
            listener.cancel()


def check_start(given: Settings) -> None:
    """Raises StartRefused for a bind that would leave the server open to the network."""
    if given.host not in LOOPBACK and not given.token.get_secret_value():
        raise StartRefused(f"SAFELIGHT_HOST is {given.host}, which others can reach: set SAFELIGHT_TOKEN first")


@contextlib.contextmanager
def server_lock() -> Any:
    """One server per data folder. Raises StartRefused if another holds it."""
    home = settings().home
    home.mkdir(parents=True, exist_ok=True)
    lock: IO[str]
    with (home / "server.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartRefused(f"another server already uses {home}; stop it, or set SAFELIGHT_HOME to another folder") from None
        yield


class _Shell(StaticFiles):
    """The UI's files; any other path is a page of the UI, which routes by itself."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        try:
            return await super().get_response(path, scope)
        except HTTPException as error:
            if error.status_code != 404 or path.startswith(("v1/", "assets/")):
                raise
            return await super().get_response("index.html", scope)


def _openapi(app: FastAPI) -> dict[str, Any]:
    """FastAPI's description, plus the job body that POST takes (it is validated by hand, per architecture) and errors as they
    leave: problem+json, whatever the route."""
    if not app.openapi_schema:
        made = get_openapi(title=app.title, version=app.version, routes=app.routes)
        schemas = made["components"]["schemas"]
        schemas |= catalog.openapi_components()
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        error = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemBody"}}}
        for operation in (operation for path in made["paths"].values() for operation in path.values()):
            for status, answer in operation["responses"].items():
                if status.startswith("4"):
                    answer["content"] = error
            operation["responses"]["default"] = {"description": "Any other error.", "content": error}
        app.openapi_schema = made
    return app.openapi_schema
