"""Architectures that a worker found elsewhere, as the API shows and checks them: from the table alone, without their code."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from models import catalog
from models.arch import Arch
from models.extensions import FreeOptions, card_as_json, card_from_json
from models.spec import KINDS, Spec, entry
from server.store import extensions
from server.store.tables import ExtensionArch


class Options(Spec):
    """What the foreign arch takes."""

    width: int = entry(8, title="Width", section="Advanced", order=80, ge=4, le=64, help="Width of the network.")
    style: str = entry(title="Style", section="Advanced", order=81, help="Which style.")


def row(name: str = "foreign", options: type[Spec] = FreeOptions, **changes: Any) -> ExtensionArch:
    card = Arch(
        name=name, label="Foreign", description="From elsewhere.", code="foreign.model:Model", options=options, bucket_divisibility=16,
        capabilities=("edit",), trains_all_weights=False,
    )  # fmt: skip
    schemas = {kind: catalog.schema_of(card, catalog.job_type_of(card, kind)) for kind in KINDS}
    given = {"name": name, "source": "/ext/foreign", "digest": "d1", "card": card_as_json(card), "schemas": schemas, **changes}
    return ExtensionArch(**given)


@pytest.fixture
def job(client: Any, tiny_job: Callable[..., Any], pictures: Callable[..., Path]) -> Callable[..., dict[str, Any]]:
    pictures(size=48)
    weights = pictures("weights")

    def make(**model: Any) -> dict[str, Any]:
        changed = {"arch": "foreign", "name_or_path": str(weights), **model}
        return {**tiny_job(model=changed, network={"linear": 2}, datasets=[{"folder_path": "colours", "resolution": [48]}])}

    return make


@pytest.fixture(autouse=True)
def forgotten() -> Any:
    yield
    catalog.register([])


def test_a_found_arch_is_listed_with_its_schema_and_gone_with_its_row(client: Any) -> None:
    extensions.replace([row()])
    listed = {each["arch"]: each for each in client.get("/v1/archs").json()["archs"]}
    assert listed["foreign"]["label"] == "Foreign" and listed["foreign"]["broken"] is None and "pocket" in listed
    detail = client.get("/v1/archs/foreign").json()
    assert set(detail["schema"]) == {"train", "sample"}
    assert detail["schema"] == row().schemas
    extensions.replace([])
    assert "foreign" not in {each["arch"] for each in client.get("/v1/archs").json()["archs"]}
    assert client.get("/v1/archs/foreign").status_code == 404


def test_a_broken_one_is_listed_with_its_reason_and_hides_nothing(client: Any, job: Any) -> None:
    extensions.replace(
        [row(), row("shattered", card={}, schemas={}, broken="it needs the Python package 'nope', which is not installed")]
    )
    listed = {each["arch"]: each["broken"] for each in client.get("/v1/archs").json()["archs"]}
    assert listed["shattered"] == "it needs the Python package 'nope', which is not installed"
    assert listed["foreign"] is None and listed["pocket"] is None
    assert client.get("/v1/archs/shattered").json()["schema"] == {}
    answer = client.post("/v1/jobs", json=job(arch="shattered"))
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/model/arch"
    assert answer.json()["errors"][0]["message"].startswith("arch 'shattered' is broken: it needs")


def test_free_options_are_taken_as_they_are(client: Any, job: Any) -> None:
    extensions.replace([row()])
    options = {"depth": 3, "nested": {"a": [1, 2.5, None, "x"]}}
    answer = client.post("/v1/jobs", json=job(model_kwargs=options))
    assert answer.status_code == 202, answer.text
    assert answer.json()["spec"]["model"]["model_kwargs"] == options


@pytest.mark.parametrize(
    ("options", "pointer", "word"),
    [
        ({"style": "a", "width": 3}, "/model/model_kwargs/width", "3 is less than the minimum of 4"),
        ({"style": 7}, "/model/model_kwargs/style", "7 is not of type 'string'"),
        ({}, "/model/model_kwargs/style", "must be given"),
        ({"style": "a", "widht": 8}, "/model/model_kwargs/widht", "unknown key 'widht'"),
    ],
)
def test_declared_options_are_checked_by_their_schema(client: Any, job: Any, options: Any, pointer: str, word: str) -> None:
    extensions.replace([row(options=Options)])
    answer = client.post("/v1/jobs", json=job(model_kwargs=options))
    assert answer.status_code == 422
    (fault,) = answer.json()["errors"]
    assert fault["pointer"] == pointer and word in fault["message"]


def test_declared_options_get_their_defaults(client: Any, job: Any) -> None:
    extensions.replace([row(options=Options)])
    answer = client.post("/v1/jobs", json=job(model_kwargs={"style": "oil"}))
    assert answer.json()["spec"]["model"]["model_kwargs"] == {"width": 8, "style": "oil"}


def test_the_cards_own_limits_hold(client: Any, job: Any) -> None:
    extensions.replace([row()])
    whole = client.post("/v1/jobs", json={**job(dtype="fp32"), "network": None})
    assert whole.json()["errors"][0]["message"] == "arch 'foreign' trains adapters, not all of its weights; give a network"
    odd = job()
    odd["sample"]["width"] = 40
    assert client.post("/v1/jobs", json=odd).json()["errors"][0]["message"] == "40 must be a multiple of 16; nearest: 32, 48"


def test_a_new_row_replaces_what_was_known_at_once(client: Any, job: Any) -> None:
    extensions.replace([row(options=Options)])
    assert client.post("/v1/jobs", json=job(model_kwargs={"style": "a", "width": 1})).status_code == 422
    extensions.replace([row(digest="d2")])
    assert client.post("/v1/jobs", json=job(model_kwargs={"style": "a", "width": 1})).status_code == 202


def test_a_card_survives_its_journey_as_json() -> None:
    card = card_from_json(row(options=Options).card)
    assert card.model_dump(exclude={"options"}) == card_from_json(card_as_json(card)).model_dump(exclude={"options"})
    assert set(card.options.model_fields) == {"width", "style"}
    assert card_from_json(row().card).options is FreeOptions
