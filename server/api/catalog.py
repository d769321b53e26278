"""/v1/archs and the JSON Schema of jobs: what a form, a script or a generated client needs to know."""

from typing import Any

from fastapi import APIRouter, Depends

from models import catalog
from models.arch import Arch
from models.extensions import Extension
from models.spec import KINDS
from server.api.extensions import refresh
from server.api.http import Route
from server.api.shapes import ArchDetail, ArchList, ArchView
from server.store import workers

router = APIRouter(prefix="/v1", tags=["catalogue"], dependencies=[Depends(refresh)], route_class=Route)


@router.get("/archs", response_model=ArchList)
def archs() -> ArchList:
    """All architectures, and the workers that run each. Those from folders elsewhere that cannot be used come with the reason in
    `broken`."""
    known = [ArchView(**_card(card)) for card in catalog.archs().values()]
    broken = [ArchView(**_broken(each)) for each in catalog.extensions().values() if each.broken]
    return ArchList(archs=sorted(known + broken, key=lambda view: view.arch))


@router.get("/archs/{arch}", response_model=ArchDetail)
def arch(arch: str) -> ArchDetail:
    """One architecture with the JSON Schema of each job kind and its presets, each a job that posts as it is once its dataset's
    folder is right. A broken one has neither."""
    found = catalog.extensions().get(arch)
    if found is not None and found.broken:
        return ArchDetail.model_validate({**_broken(found), "schema": {}, "presets": []})
    card = catalog.arch(arch)
    schema = {kind: catalog.job_schema(arch, kind) for kind in KINDS}
    return ArchDetail.model_validate({**_card(card), "schema": schema, "presets": catalog.presets(arch)})


@router.get("/schema/job")
def job_schema() -> dict[str, Any]:
    """The JSON Schema of every job kind, for any architecture."""
    return catalog.general_schema()


def _card(card: Arch) -> dict[str, Any]:
    able = [worker.id for worker, _ in workers.listing() if card.name in worker.archs and not worker.stopped]
    shared = card.model_dump(include={"label", "description", "kind", "modality", "template_support"})
    lists = {"capabilities": list(card.capabilities), "adapters": list(card.adapters), "defaults": dict(card.defaults)}
    return {"arch": card.name, **shared, **lists, "workers": able}


def _broken(found: Extension) -> dict[str, Any]:
    shared = {
        "label": found.name,
        "description": f"From {found.source}.",
        "kind": "t2i",
        "modality": "image",
        "broken": found.broken,
    }
    lists: dict[str, Any] = {"capabilities": [], "adapters": [], "defaults": {}, "workers": []}
    return {"arch": found.name, **shared, **lists, "template_support": False}
