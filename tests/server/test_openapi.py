"""The description of the API, from which clients are generated: complete, valid, and true of real replies."""

import re
from typing import Any

import jsonschema
import pytest

from server.app import create_app

BODIES = {
    ("post", "/v1/jobs"): "Job-Spec",
    ("post", "/v1/jobs/validate"): "Job-Spec",
    ("patch", "/v1/jobs/{job_id}"): "JobChange",
    ("post", "/v1/jobs/cancel"): "CancelMany",
    ("post", "/v1/session"): "SignIn",
}


@pytest.fixture
def described(home) -> dict[str, Any]:
    document: dict[str, Any] = create_app().openapi()
    return document


def operations(described: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [(verb, path, operation) for path, verbs in described["paths"].items() for verb, operation in verbs.items()]


def name_of(schema: dict[str, Any]) -> str:
    return str(schema["$ref"]).removeprefix("#/components/schemas/")


def test_every_answer_has_a_schema(described) -> None:
    for verb, path, operation in operations(described):
        good = {status: answer for status, answer in operation["responses"].items() if status.startswith("2")}
        assert good, path
        for status, answer in good.items():
            assert status == "204" or answer["content"], (verb, path)
            for media, content in answer.get("content", {}).items():
                assert content["schema"], (verb, path, media)


def test_every_error_is_a_problem(described) -> None:
    for verb, path, operation in operations(described):
        bad = {status: answer for status, answer in operation["responses"].items() if status[0] not in "23"}
        assert "default" in bad, path
        for status, answer in bad.items():
            if (path, status) == ("/readyz", "503"):
                continue
            assert {media: name_of(content["schema"]) for media, content in answer["content"].items()} == {
                "application/problem+json": "ProblemBody"
            }, (verb, path, status)


def test_bodies_are_described(described) -> None:
    for (verb, path), name in BODIES.items():
        body = described["paths"][path][verb]["requestBody"]
        assert body["required"] is True
        assert name_of(body["content"]["application/json"]["schema"]) == name
    assert (
        described["paths"]["/v1/jobs/{job_id}/resume"]["post"]["requestBody"]["content"]["application/json"]["schema"]["type"]
        == "object"
    )


def test_every_operation_has_a_name_of_its_own_and_says_what_it_does(described) -> None:
    names = [operation["operationId"] for _, _, operation in operations(described)]
    assert len(names) == len(set(names))
    for verb, path, operation in operations(described):
        declared = {parameter["name"] for parameter in operation.get("parameters", []) if parameter["in"] == "path"}
        assert declared == set(re.findall(r"{(\w+)}", path)), (verb, path)


def test_every_reference_leads_somewhere_and_every_schema_is_valid(described) -> None:
    schemas = described["components"]["schemas"]
    for name in re.findall(r"#/components/schemas/([\w-]+)", str(described)):
        assert name in schemas
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)


def check(described: dict[str, Any], answer: Any, path: str, verb: str = "get") -> Any:
    """The reply, which must be as it is described: nothing missing, nothing undescribed."""
    content = described["paths"][path][verb]["responses"][str(answer.status_code)]["content"]
    media = answer.headers["content-type"].partition(";")[0]
    schema = {"components": described["components"], **content[media]["schema"]}
    jsonschema.validate(answer.json(), schema, jsonschema.Draft202012Validator)
    return answer.json()


def test_real_replies_are_as_described(client, described, pictures, tiny_job, job_in, claimed, preview, save) -> None:
    pictures()
    failed = job_in("failed")
    job = claimed()
    preview(job, 1)
    save(job, "weights", "a.bin")
    one = "/v1/jobs/{job_id}"
    check(described, client.post("/v1/jobs", json=tiny_job()), "/v1/jobs", "post")
    check(described, client.post("/v1/jobs", json={}), "/v1/jobs", "post")
    check(described, client.post("/v1/jobs/validate", json=tiny_job()), "/v1/jobs/validate", "post")
    check(described, client.post("/v1/jobs/validate", json=tiny_job(kind="x")), "/v1/jobs/validate", "post")
    check(described, client.get("/v1/jobs"), "/v1/jobs")
    for job_id in (failed, job.id):
        check(described, client.get(f"/v1/jobs/{job_id}"), one)
        for part in ("events", "metrics", "samples", "files"):
            check(described, client.get(f"/v1/jobs/{job_id}/{part}"), f"{one}/{part}")
    check(described, client.get("/v1/jobs/none"), one)
    check(described, client.post(f"/v1/jobs/{failed}/cancel"), f"{one}/cancel", "post")
    check(described, client.post(f"/v1/jobs/{job.id}/cancel"), f"{one}/cancel", "post")
    check(described, client.patch(f"/v1/jobs/{failed}", json={"labels": {"a": "b"}}), one, "patch")
    for path in ("/v1/workers", "/v1/archs", "/v1/schema/job", "/healthz", "/readyz"):
        check(described, client.get(path), path)
    detail = check(described, client.get("/v1/archs/pocket"), "/v1/archs/{arch}")
    assert set(detail["schema"]) == {"train", "sample"}


def test_a_job_is_described_with_its_states(described) -> None:
    status = described["components"]["schemas"]["JobView"]["properties"]["status"]
    assert status["enum"] == [
        "queued",
        "preparing",
        "running",
        "pausing",
        "paused",
        "canceling",
        "succeeded",
        "failed",
        "canceled",
    ]


def test_the_described_body_takes_real_jobs_with_options_of_their_arch(described, tiny_job) -> None:
    schema = {"components": described["components"], "$ref": "#/components/schemas/Job-Spec"}
    jsonschema.validate(tiny_job(), schema, jsonschema.Draft202012Validator)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(tiny_job(**{"train.steps": "6"}), schema, jsonschema.Draft202012Validator)
