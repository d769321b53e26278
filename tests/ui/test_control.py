"""Pause, previews and checkpoints on demand, pins, and a job that goes on changed, in a real browser. The walk is ui/e2e/control.mjs."""

import json

SMALL = {
    "model": {"model_kwargs": {"channels": [16, 32]}},
    "train": {"batch_size": 4, "lr_warmup_steps": 1},
    "sample": {"sample_every": 100000, "sample_steps": 2},
    "save": {"save_every": 100000},
}


def test_controls(stack, walk) -> None:
    walk("control", stack(), seconds=300, SAFELIGHT_E2E_PATCH=json.dumps(SMALL), SAFELIGHT_E2E_STEPS="100000")
