"""A real browser, from the form to the preview, against a real stack. The walks are ui/e2e/form-to-preview.mjs and form.mjs."""

import json

SMALL = {
    "model": {"model_kwargs": {"channels": [16, 32]}},
    "train": {"lr_warmup_steps": 1},
    "sample": {"sample_every": 3, "sample_steps": 2},
    "save": {"save_every": 3},
}


def test_form_to_preview(stack, walk) -> None:
    walk("form-to-preview", stack(), SAFELIGHT_E2E_PATCH=json.dumps(SMALL))


def test_the_form_itself(stack, walk) -> None:
    walk("form", stack("serve"))
