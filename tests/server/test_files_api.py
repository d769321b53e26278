"""Previews and files as bytes: the newest one, pieces of one, and nothing that is not the job's."""

import http.client
import threading
from typing import Any

import pytest

from server.store import broker, jobs
from server.store.files import job_folder
from server.store.tables import Status


def latest(client: Any, job_id: str, query: str = "", etag: str | None = None) -> Any:
    return client.get(f"/v1/jobs/{job_id}/samples/latest{query}", headers={"If-None-Match": etag} if etag else {})


def test_previews_are_listed_by_index_with_what_made_them(client, claimed, preview) -> None:
    job = claimed()
    assert client.get(f"/v1/jobs/{job.id}/samples").json() == {"samples": [], "next_after": 0}
    data = [preview(job, step, prompt) for step in (0, 3) for prompt in (0, 1)]
    page = client.get(f"/v1/jobs/{job.id}/samples").json()
    assert [(s["index"], s["step"], s["prompt_index"]) for s in page["samples"]] == [(1, 0, 0), (2, 0, 1), (3, 3, 0), (4, 3, 1)]
    assert page["next_after"] == 4
    first = page["samples"][0]
    assert (first["prompt"], first["seed"], first["width"], first["height"], first["sample_steps"]) == ("a", 1, 32, 32, 2)
    assert [s["index"] for s in client.get(f"/v1/jobs/{job.id}/samples?after=3").json()["samples"]] == [4]
    assert client.get(f"/v1/jobs/{job.id}/samples?after=4").json() == {"samples": [], "next_after": 4}
    for sample, content in zip(page["samples"], data, strict=True):
        answer = client.get(sample["url"])
        assert (answer.content, answer.headers["content-type"]) == (content, "image/png")
        small = client.get(sample["thumbnail_url"])
        assert (small.content, small.headers["content-type"]) == (b"RIFF small " + content, "image/webp")
    assert client.get(f"/v1/jobs/{job.id}").json()["num_samples"] == 4


def test_a_preview_made_again_is_a_new_one(client, claimed, preview) -> None:
    job = claimed()
    preview(job, 3)
    jobs.give_back(job.id, 1, "gone")
    again = jobs.claim_next("w", ["pocket"])
    preview(again, 3)
    assert [(s["index"], s["step"]) for s in client.get(f"/v1/jobs/{job.id}/samples").json()["samples"]] == [(1, 3), (2, 3)]


@pytest.mark.parametrize("index", ["0", "2", "-1", "99999999999999999999"])
def test_a_preview_that_is_not_there_is_not_found(client, claimed, preview, index) -> None:
    job = claimed()
    preview(job, 1)
    for query in ("", "?thumbnail=1"):
        assert client.get(f"/v1/jobs/{job.id}/samples/{index}{query}").status_code == 404


def test_the_newest_preview_has_a_tag_and_is_sent_once(client, claimed, preview) -> None:
    job = claimed()
    none = latest(client, job.id)
    assert (none.status_code, none.content, none.headers["safelight-job-status"]) == (204, b"", "preparing")
    first = preview(job, 1)
    answer = latest(client, job.id)
    assert (answer.status_code, answer.content, answer.headers["content-type"]) == (200, first, "image/png")
    assert (answer.headers["safelight-sample-index"], answer.headers["safelight-sample-step"]) == ("1", "1")
    etag = answer.headers["etag"]
    same = latest(client, job.id, etag=etag)
    assert (same.status_code, same.content, same.headers["etag"], same.headers["safelight-job-status"]) == (
        304,
        b"",
        etag,
        "preparing",
    )
    for known in (f"W/{etag}", f'"9", {etag}', f'"9",W/{etag}'):
        assert latest(client, job.id, etag=known).status_code == 304
    second = preview(job, 2)
    newer = latest(client, job.id, etag=etag)
    assert (newer.status_code, newer.content) == (200, second)
    assert newer.headers["etag"] != etag


def test_the_newest_preview_of_one_prompt(client, claimed, preview) -> None:
    job = claimed()
    of_first = preview(job, 1, 0)
    preview(job, 1, 1)
    assert latest(client, job.id, "?prompt_index=0").content == of_first
    assert latest(client, job.id, "?prompt_index=7").status_code == 204
    assert latest(client, job.id, "?prompt_index=-1").status_code == 422


def test_waiting_for_a_newer_preview_wakes_when_it_comes(client, claimed, preview) -> None:
    job = claimed()
    preview(job, 1)
    etag = latest(client, job.id).headers["etag"]
    threading.Timer(0.2, lambda: preview(job, 2)).start()
    answer = latest(client, job.id, "?wait=60", etag)
    assert (answer.status_code, answer.headers["safelight-sample-index"]) == (200, "2")


def test_waiting_ends_when_the_job_ends(client, claimed, preview) -> None:
    job = claimed()
    preview(job, 1)
    etag = latest(client, job.id).headers["etag"]
    threading.Timer(0.2, lambda: broker.publish(jobs.finish(job.id, 1, Status.SUCCEEDED))).start()
    answer = latest(client, job.id, "?wait=60", etag)
    assert (answer.status_code, answer.headers["safelight-job-status"]) == (304, "succeeded")


def test_nothing_waits_for_an_ended_job(client, job_in) -> None:
    answer = latest(client, job_in("failed"), "?wait=60")
    assert (answer.status_code, answer.headers["safelight-job-status"]) == (204, "failed")


def test_files_are_listed_newest_of_a_name_and_nothing_internal(client, claimed, preview, save) -> None:
    job = claimed()
    preview(job, 1)
    save(job, "weights", "tiny_1.safetensors", b"old")
    save(job, "bundle", "step_1", b"secret")
    jobs.give_back(job.id, 1, "gone")
    again = jobs.claim_next("w", ["pocket"])
    save(again, "weights", "tiny_1.safetensors", b"newer")
    listed = client.get(f"/v1/jobs/{job.id}/files").json()["files"]
    assert {(f["path"], f["kind"], f["size"]) for f in listed} == {
        ("samples/000000001_0.png", "sample", (job_folder(job.id) / "attempts/1/samples/000000001_0.png").stat().st_size),
        ("tiny_1.safetensors", "weights", 5),
    }
    assert client.get(f"/v1/jobs/{job.id}/files/tiny_1.safetensors").content == b"newer"
    assert client.get(f"/v1/jobs/{job.id}/files/step_1").status_code == 404
    for file in listed:
        assert len(client.get(file["url"]).content) == file["size"]


def test_weights_are_a_download_and_pictures_are_shown(client, claimed, preview, save) -> None:
    job = claimed()
    preview(job, 1)
    save(job, "weights", "page.html", b"<script>alert(1)</script>")
    answer = client.get(f"/v1/jobs/{job.id}/files/page.html")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.headers["x-content-type-options"] == "nosniff"
    shown = client.get(f"/v1/jobs/{job.id}/samples/1")
    assert shown.headers["content-disposition"].startswith("inline")
    assert shown.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("asked", "content", "place"),
    [
        ("bytes=0-3", b"0123", "bytes 0-3/10"),
        ("bytes=7-", b"789", "bytes 7-9/10"),
        ("bytes=-2", b"89", "bytes 8-9/10"),
        ("bytes=5-99", b"56789", "bytes 5-9/10"),
    ],
)
def test_ranges_are_honoured(client, claimed, save, asked, content, place) -> None:
    job = claimed()
    save(job, "weights", "a.bin")
    answer = client.get(f"/v1/jobs/{job.id}/files/a.bin", headers={"Range": asked})
    assert (answer.status_code, answer.content, answer.headers["content-range"]) == (206, content, place)
    assert client.get(f"/v1/jobs/{job.id}/files/a.bin", headers={"Range": "bytes=10-"}).status_code == 416


def test_a_preview_can_be_read_in_pieces(client, claimed, preview) -> None:
    job = claimed()
    data = preview(job, 1)
    for path in ("samples/1", "samples/latest"):
        answer = client.get(f"/v1/jobs/{job.id}/{path}", headers={"Range": "bytes=1-3"})
        assert (answer.status_code, answer.content) == (206, data[1:4])


VIDEO = {"media": "video", "num_frames": 10, "fps": 8, "duration_seconds": 1.25}
AUDIO = {"media": "audio", "sample_rate": 8000, "channels": 2, "duration_seconds": 0.5}
OF_MEDIA = ("media", "num_frames", "fps", "duration_seconds", "sample_rate", "channels", "animation_url")


@pytest.mark.parametrize(
    ("name", "record", "media_type", "told"),
    [
        # Previews that were told before there were clips do not say what they are.
        ("1.png", {}, "image/png", ("image", None, None, None, None, None, None)),
        ("1.png", {"media": "image"}, "image/png", ("image", None, None, None, None, None, None)),
        ("1.mp4", VIDEO, "video/mp4", ("video", 10, 8.0, 1.25, None, None, "?animation=1")),
        ("1.wav", AUDIO, "audio/wav", ("audio", None, None, 0.5, 8000, 2, None)),
    ],
)
def test_a_preview_says_what_it_is_and_seeks(client, claimed, preview, name, record, media_type, told) -> None:
    job = claimed()
    data = preview(job, 1, name=name, **record)
    base = f"/v1/jobs/{job.id}/samples"
    (sample,) = client.get(base).json()["samples"]
    address = told[-1] and f"{base}/1{told[-1]}"
    assert tuple(sample[key] for key in OF_MEDIA) == (*told[:-1], address)
    for path in (f"{base}/1", f"{base}/latest", f"/v1/jobs/{job.id}/files/samples/{name}"):
        answer = client.get(path)
        assert (answer.content, answer.headers["content-type"], answer.headers["accept-ranges"]) == (data, media_type, "bytes")
        assert answer.headers["content-disposition"] == "inline"  # a name would win over the one that a page gives its download
        part = client.get(path, headers={"Range": "bytes=2-5"})
        assert (part.status_code, part.content, part.headers["content-type"]) == (206, data[2:6], media_type)
        assert part.headers["content-range"] == f"bytes 2-5/{len(data)}"
    small = client.get(sample["thumbnail_url"])
    assert (small.content, small.headers["content-type"]) == (b"RIFF small " + data, "image/webp")
    (event,) = [event for event in client.get(f"/v1/jobs/{job.id}/events").json()["events"] if event["type"] == "sample"]
    assert (event["data"].get("media", "image"), event["data"].get("animation_url")) == (told[0], address)


def test_a_picture_has_no_animation(client, claimed, preview) -> None:
    job = claimed()
    preview(job, 1)
    answer = client.get(f"/v1/jobs/{job.id}/samples/1?animation=1")
    assert (answer.status_code, answer.json()["detail"]) == (404, f"job '{job.id}' has no preview 1 with an animation")


def test_the_schema_names_every_kind_of_preview(client) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    for path in ("/v1/jobs/{job_id}/samples/{index}", "/v1/jobs/{job_id}/samples/latest"):
        answers = paths[path]["get"]["responses"]
        for status in ("200", "206"):
            assert set(answers[status]["content"]) == {"image/png", "image/webp", "video/mp4", "audio/wav"}
        assert "416" in answers


def test_a_file_that_is_gone_from_the_disk_is_not_found(client, claimed, save) -> None:
    job = claimed()
    save(job, "weights", "a.bin").unlink()
    answer = client.get(f"/v1/jobs/{job.id}/files/a.bin")
    assert (answer.status_code, answer.json()["detail"]) == (404, "'a.bin' is not on disk any more")


WAYS_OUT = [
    "../secret", "..%2fsecret", "..%2Fsecret", "%2e%2e/secret", "%2e%2e%2fsecret", "%252e%252e%252fsecret", "..%5csecret",
    "..%255csecret", "a/../../secret", "a/..%2f..%2fsecret", "/secret", "%2fsecret", "//secret", "/etc/passwd", "%2fetc%2fpasswd",
    "C:%5csecret", "C:/secret", "a.bin%00", "a.bin%00.png", "%00", "", ".", "..", "./a.bin", "attempts/1/saved/a.bin",
    "saved/a.bin", "a.bin/", "A.BIN", "~/secret", "file:///etc/passwd", "%ff%fe",
]  # fmt: skip


def test_no_name_leads_out_of_the_jobs_files(claimed, save, stack, home) -> None:
    job = claimed()
    save(job, "weights", "a.bin", b"theirs")
    save(job, "weights", "a..b.png", b"two dots")
    save(job, "weights", "größe 100%.bin", b"odd")
    for folder in (home, home / "jobs", job_folder(job.id), job_folder(job.id) / "attempts"):
        (folder / "secret").write_text("SECRET")
    server = stack("serve", SAFELIGHT_LEASE_SECONDS="600")

    def get(name: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request("GET", f"/v1/jobs/{job.id}/files/{name}")  # sent as it is
        answer = connection.getresponse()
        return answer.status, answer.read()

    for name in WAYS_OUT:
        status, body = get(name)
        assert (status, b"SECRET" in body, b"root:" in body, b"theirs" in body) == (404, False, False, False), name
    assert get("a.bin") == (200, b"theirs")
    assert get("a..b.png") == (200, b"two dots")
    assert get("gr%C3%B6%C3%9Fe%20100%25.bin") == (200, b"odd")
