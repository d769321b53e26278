"""The main job, end to end: a real server, a real broker, a real worker."""

import re

STAMP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} worker INFO "


def test_post_to_preview_with_nothing_in_the_terminal_that_is_not_for_people(stack, pictures, tiny_job) -> None:
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
    assert up.stop() == 0
    lines = [
        f"data folder: {up.home}",
        f"server:      http://127.0.0.1:{up.port}",
        rf"{STAMP}\S+-cpu is ready; data folder: {up.home}",
        f"{STAMP}job {job_id}: attempt 1 begins",
        "stopping; running jobs are saved and go on next time",
    ]
    said = up.log.read_text()
    assert re.fullmatch("\n".join(lines) + "\n", said), said
