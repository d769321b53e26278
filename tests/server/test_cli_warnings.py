"""What a plan warns of is seen by those who never look at a plan."""

import json
from typing import Any

from server.store.settings import settings


def test_submit_and_resume_print_what_the_plan_warns_of_beside_clean_json(
    safelight: Any, server: Any, tmp_path: Any, tiny_job: Any
) -> None:
    folder = settings().home / "datasets" / "colours"
    for caption in folder.glob("*.txt"):
        caption.rename(caption.with_suffix(".caption"))
    (tmp_path / "job.json").write_text(json.dumps(tiny_job(datasets=[{"folder_path": "colours", "default_caption": "a photo"}])))
    code, out, err = safelight("submit", str(tmp_path / "job.json"), "--json")
    job = json.loads(out)
    assert code == 0
    said = (
        "warning: /datasets/0/default_caption: 4 of 4 pictures have no caption in a .txt file or in metadata.jsonl, so default_caption "
        "is taken: 000.png, 001.png, 002.png, 003.png; 4 of them have a .caption file of their name: set caption_ext to caption"
    )
    assert said in err.splitlines()
    assert len(job["warnings"]) == len(err.splitlines())
    assert safelight("cancel", job["id"])[0] == 0
    for arguments in (
        ["resume", job["id"], "--set", "train.steps=7", "--json"],
        ["submit", str(tmp_path / "job.json"), "--dry-run"],
    ):
        code, out, err = safelight(*arguments)
        assert (code, said in err.splitlines()) == (0, True)
        assert json.loads(out)["warnings"]
