"""/v1/workers, and whether the server is alive and ready."""

import importlib.metadata

from fastapi import APIRouter, Response
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from server.api.deps import ReaperDep
from server.api.http import Route
from server.api.shapes import Health, Ready, WorkerList, worker_view
from server.store import broker, workers
from server.store.engine import reading

router = APIRouter(tags=["workers"], route_class=Route)


@router.get("/v1/workers", response_model=WorkerList)
def listing(reaper: ReaperDep) -> WorkerList:
    return WorkerList(workers=[worker_view(row, job_id, reaper.is_alive_worker(row)) for row, job_id in workers.listing()])


@router.get("/healthz", response_model=Health)
def healthz() -> Health:
    """The process answers."""
    return Health(status="ok", version=importlib.metadata.version("safelight"))


@router.get("/readyz", response_model=Ready, responses={503: {"model": Ready}})
def readyz(reaper: ReaperDep, response: Response) -> Ready:
    """Database and broker answer; also how many workers live and can work."""
    try:
        with reading() as session:
            session.connection().execute(text("SELECT 1"))
            able = sum(reaper.is_alive_worker(row) and not row.problem for row, _ in workers.listing())
        database = True
    except SQLAlchemyError:
        database, able = False, 0
    ready = database and broker.answers()
    response.status_code = 200 if ready else 503
    return Ready(status="ready" if ready else "not ready", database=database, broker=broker.answers(), workers=able)
