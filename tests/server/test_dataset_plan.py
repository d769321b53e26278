"""What a plan says of a job's data."""

import os
from pathlib import Path

from PIL import Image


def test_a_plan_shows_what_happens_to_some_pictures(client, pictures, tiny_job) -> None:
    pictures(count=6, size=48)
    job = tiny_job(datasets=[{"folder_path": "colours", "flip_x": True, "random_crop": True, "trigger_word": "ohwx"}])
    plan = client.post("/v1/jobs/validate", json={**job, "validation": {"fraction": 0.3}}).json()
    [dataset] = plan["datasets"]
    assert dataset["images"] == 6 and 1 <= dataset["held_out"] <= 5  # by the files' contents, each by itself
    assert sum(bucket["images"] for bucket in dataset["buckets"]) == 2 * (6 - dataset["held_out"])
    for shown in dataset["samples"]:
        assert shown["caption"].startswith("ohwx colour number ")
        assert (shown["width"], shown["height"], shown["frames"], shown["controls"]) == (32, 32, 1, [])


def test_what_is_held_out_is_an_estimate_until_files_are_decoded(client, pictures, tiny_job, monkeypatch) -> None:
    pictures(count=6)
    job = tiny_job(validation={"fraction": 0.3})
    lines = {}
    for at_most in (0, 300):  # decoded ones are remembered, so the fewer come first
        monkeypatch.setattr("server.api.plan.DECODED_AT_SUBMIT", at_most)
        for validated in (True, False):
            asked = job if validated else {**job, "validation": None}
            plan = client.post("/v1/jobs/validate", json=asked).json()
            lines[at_most, validated] = [line for line in plan["not_checked"] if "held out" in line]
    estimate = "how many are held out: estimated from the files' paths until every file is decoded"
    assert lines == {(0, True): [estimate], (0, False): [], (300, True): [], (300, False): []}


def test_regularisation_sets_double_the_steps_of_an_epoch(client, pictures, tiny_job) -> None:
    pictures()
    pictures("reg")
    job = tiny_job(datasets=[{"folder_path": "colours"}, {"folder_path": "reg", "is_reg": True}])
    plan = client.post("/v1/jobs/validate", json=job).json()
    assert (plan["steps_per_epoch"], plan["epochs"]) == (4.0, 1.5)


def test_paths_that_are_missing_are_named_by_their_own_keys(client, pictures, tiny_job) -> None:
    pictures()
    job = tiny_job(datasets=[{"folder_path": "colours", "mask_path": "no-masks"}])
    job["validation"] = {"dataset": {"folder_path": "no-pictures"}}
    plan = client.post("/v1/jobs/validate", json=job).json()
    assert [fault["pointer"] for fault in plan["problems"]] == ["/datasets/0/mask_path", "/validation/dataset/folder_path"]


def test_a_dataset_that_is_trained_cannot_be_held_out(client, pictures, tiny_job) -> None:
    pictures()
    job = tiny_job(validation={"dataset": {"folder_path": "colours"}})
    [fault] = client.post("/v1/jobs/validate", json=job).json()["problems"]
    assert fault["pointer"] == "/validation/dataset/folder_path"
    assert "all of /datasets/0 (colours) is held out too" in fault["message"]


def test_a_held_out_dataset_is_shown_after_the_others(client, pictures, home: Path, tiny_job) -> None:
    pictures(count=6)
    (home / "datasets" / "two").mkdir()
    for name, size in (("a", (64, 64)), ("b", (32, 48))):
        Image.new("RGB", size, (1, 2, 3)).save(home / "datasets" / "two" / f"{name}.png")
    job = tiny_job(validation={"dataset": {"folder_path": "two", "default_caption": ""}})
    trained, held = client.post("/v1/jobs/validate", json=job).json()["datasets"]
    assert (trained["images"], trained["held_out"]) == (6, 0)
    assert (held["folder_path"], held["images"], held["held_out"], held["captions_missing"]) == ("two", 2, 2, 2)
    assert [(bucket["width"], bucket["height"], bucket["images"]) for bucket in held["buckets"]] == [(32, 32, 2)]


def test_one_picture_alone_cannot_be_held_out(client, home: Path, tiny_job) -> None:
    folder = home / "datasets" / "one"
    folder.mkdir(parents=True)
    for name in ("a", "b"):
        Image.new("RGB", (32, 32)).save(folder / f"{name}.png")
    job = tiny_job(datasets=[{"folder_path": "one", "default_caption": ""}], validation={"fraction": 0.5})
    [fault] = client.post("/v1/jobs/validate", json=job).json()["problems"]
    assert fault["pointer"] == "/validation/fraction"
    assert "at least two different pictures, not 1" in fault["message"]


def test_names_and_captions_that_are_no_text_are_problems_and_not_errors_of_ours(client, pictures, tiny_job) -> None:
    folder = pictures()
    (folder / os.fsdecode(b"bad\xff.png")).write_bytes(next(folder.glob("*.png")).read_bytes())
    plan = client.post("/v1/jobs/validate", json=tiny_job()).json()
    assert "bad\\xff.png (its name is no UTF-8 text; rename it)" in plan["problems"][0]["message"]


def test_a_link_out_of_the_roots_is_named_and_never_read(client, pictures, home, tiny_job, tmp_path_factory) -> None:
    folder = pictures()
    secret, inside = tmp_path_factory.mktemp("outside") / "secret", home / "blobs"
    for place in (secret, inside):
        place.write_text(f"lies in {place.name}")
    first, second = sorted(folder.glob("*.txt"))[:2]
    for caption, target in ((first, inside), (second, secret)):
        caption.unlink()
        caption.symlink_to(target)
    plan = client.post("/v1/jobs/validate", json=tiny_job()).json()
    named = f"caption files that cannot be used: {second.name} (a link that leads out of the folders that jobs may read)"
    assert [fault["message"] for fault in plan["problems"]] == [named]
    shown = {each["file"]: each["caption"] for each in plan["datasets"][0]["samples"]}
    assert shown.get(f"{first.stem}.png", "lies in blobs") == "lies in blobs"
    assert "lies in secret" not in str(plan)


def test_files_that_no_reader_can_read_are_named_and_end_no_request(client, pictures, tiny_job) -> None:
    folder = pictures(count=6)
    names = sorted(path.stem for path in folder.glob("*.png"))
    captions = ['{"caption": %s}' % ("7" * 5000), "[" * 100_000, "x" * (3 << 20)]
    for stem, text in zip(names, captions, strict=False):
        (folder / f"{stem}.json").write_text(text)
    for stem in names[3:]:
        (folder / f"{stem}.json").write_text('{"caption": "c"}')
    Image.effect_noise((64, 64), 90).convert("RGB").save(folder / "broken.avif")
    data = (folder / "broken.avif").read_bytes()
    begin = data.index(b"mdat") + 4
    (folder / "broken.avif").write_bytes(data[:begin] + b"\0" * 200 + data[begin + 200 :])
    Image.new("I", (8, 8)).save(folder / "deep.tif")
    answer = client.post("/v1/jobs/validate", json=tiny_job(datasets=[{"folder_path": folder.name, "caption_ext": "json"}]))
    assert answer.status_code == 200
    unreadable, captions = (fault["message"] for fault in answer.json()["problems"])
    assert "broken.avif (its content is broken (Failed to decode frame 0: Decoding of color planes failed))" in unreadable
    assert "deep.tif (whole numbers of 32 bits or with a sign (mode I); save it with 8 or 16 bits a channel)" in unreadable
    for name, reason in zip(names, ("too many digits", "nested too deeply", "3 MB of text inside"), strict=False):
        assert f"{name}.json (" in captions
        assert reason in captions


def test_a_plan_names_what_is_cut_and_what_is_passed_over(client, pictures, tiny_job) -> None:
    folder = pictures(count=6)
    Image.new("RGB", (4, 100)).save(folder / "strip.png", icc_profile=b"none")
    (folder / "strip.txt").write_text("a strip")
    said = [each["message"] for each in client.post("/v1/jobs/validate", json=tiny_job()).json()["warnings"]]
    assert "1 file with a broken colour profile, which counts as none: strip.png" in said
    assert any("strip.png (4 x 100 as 16 x 64: 84% cut away, enlarged 4 times)" in message for message in said), said
