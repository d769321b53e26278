"""A run says which captions and prompts its text encoder cuts, also when their embeds are cached from an earlier one."""

from pathlib import Path
from typing import Any

CAPTIONS = "captions of more tokens than the 256 that the text encoder reads, which cuts them there: 001.png (302)"
PROMPT = "a prompt of 302 tokens, of which the text encoder reads the first 256: 'sky sky sky"


def cut(reporter: Any, job: dict[str, Any], run_here: Any) -> list[str]:
    lines: list[str] = []
    reporter.log = lambda message, _level="INFO": lines.append(message)
    run_here(job, reporter)
    return [line for line in lines if "tokens" in line]


def test_a_training_run_says_what_is_cut(pictures: Any, tiny_job: Any, run_here: Any, scripted: Any) -> None:
    folder: Path = pictures()
    (folder / "001.txt").write_text("sea " * 300)
    job = tiny_job(**{"train.steps": 1, "sample.samples": [{"prompt": "a sea"}, {"prompt": "sky " * 300}]})
    for name in ("first", "with cached embeds"):
        captions, prompt = cut(scripted(name), job, run_here)
        assert captions == CAPTIONS
        assert prompt.startswith(PROMPT)


def test_a_sampling_run_says_what_is_cut(home: Path, run_here: Any, scripted: Any) -> None:
    model = {"arch": "pocket", "name_or_path": "random", "model_kwargs": {"channels": [16, 32]}}
    job = {"kind": "sample", "name": "x", "model": model, "sample": {"sample_steps": 1}, "samples": [{"prompt": "sky " * 300}]}
    [prompt] = cut(scripted("sampled"), job, run_here)
    assert prompt.startswith(PROMPT)
