"""What a plan says of a job's data."""

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


def test_one_picture_alone_cannot_be_held_out(client, home: Path, tiny_job) -> None:
    folder = home / "datasets" / "one"
    folder.mkdir(parents=True)
    for name in ("a", "b"):
        Image.new("RGB", (32, 32)).save(folder / f"{name}.png")
    job = tiny_job(datasets=[{"folder_path": "one", "default_caption": ""}], validation={"fraction": 0.5})
    [fault] = client.post("/v1/jobs/validate", json=job).json()["problems"]
    assert fault["pointer"] == "/validation/fraction"
    assert "at least two different pictures, not 1" in fault["message"]
