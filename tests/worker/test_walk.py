"""The main job, end to end: a real server, a real broker, a real worker."""


def test_post_to_preview(stack, pictures, tiny_job) -> None:
    pictures()
    up = stack()
    job_id = up.submit(tiny_job())
    job = up.wait_for(job_id, "succeeded", "failed")
    assert job["status"] == "succeeded", job["error"]
    assert job["step"] == job["total_steps"] == 6
    points = up.http.get(f"/v1/jobs/{job_id}/metrics").json()["points"]
    assert [step for step, _ in points] == [1, 2, 3, 4, 5, 6]
    samples = up.http.get(f"/v1/jobs/{job_id}/samples").json()["samples"]
    assert [(s["index"], s["step"]) for s in samples] == [(1, 0), (2, 3), (3, 6)]
    assert up.http.get(samples[-1]["url"]).content.startswith(b"\x89PNG")
    files = [f["path"] for f in up.http.get(f"/v1/jobs/{job_id}/files").json()["files"]]
    assert "tiny_000000003.safetensors" in files
    assert "tiny_000000006.safetensors" in files
