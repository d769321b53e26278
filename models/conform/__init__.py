"""The contract's rules, run on an architecture's tiny checkpoint: `safelight conform ARCH`.

Each rule is a function that takes a Subject and returns what it saw, or raises Broken with what is wrong. The rules know no
architecture; what one claims (video, edit, ...) stands on its card. `check` runs all that apply.
"""

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from models.conform import adapters, closure, rules
from models.conform.subject import Broken, Subject, subject_for

Rule = Callable[[Subject], str | None]

RULES: tuple[Rule, ...] = (
    rules.names_agree,
    rules.nothing_optional_at_import,
    rules.latents_have_their_shape,
    rules.encoding_is_repeatable,
    rules.decoding_undoes_encoding,
    rules.embeds_are_two_dimensional,
    rules.empty_prompt_works,
    rules.noise_runs_from_clean_to_noise,
    rules.prediction_fits_the_target,
    rules.mixed_lengths_change_nothing,
    rules.text_matters,
    rules.guidance_is_combined_in_order,
    rules.linears_see_two_or_three_axes,
    rules.checkpointing_changes_memory_only,
    rules.attention_backends_agree,
    rules.space_versions_are_named,
    adapters.lora_keys_round_trip,
    adapters.lokr_keys_round_trip,
    rules.save_and_reload_is_exact,
    rules.control_matters,
    rules.stages_cover_all_timesteps,
    rules.audio_is_encoded,
    closure.seeds_decide,
    closure.closure,
)


@dataclass(frozen=True)
class Seen:
    """One line of the report."""

    rule: str
    holds: bool
    text: str
    seconds: float


def check(subject: Subject, more: Sequence[Rule] = ()) -> Iterator[Seen]:
    """Run every rule that applies, in order, and `more` after them; a rule that breaks does not stop the others. A model that does not
    load is said once."""
    try:
        width, height = subject.size
    except Exception as error:
        yield Seen("loads_and_encodes", False, _said(error), 0.0)
        return
    yield Seen("loads_and_encodes", True, f"examined on {width} x {height} pixels", 0.0)
    for rule in (*RULES, *more):
        began = time.monotonic()
        try:
            text = rule(subject)
            holds = True
        except Broken as broken:
            text, holds = str(broken), False
        except Exception as error:
            text, holds = _said(error), False
        if text is not None:
            yield Seen(rule.__name__, holds, text, time.monotonic() - began)


def _said(error: Exception) -> str:
    """An unexpected error with the last place outside libraries that it went through."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "site-packages" not in frame.filename]
    place = f" ({Path(frames[-1].filename).name} line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"


__all__ = ["RULES", "Broken", "Seen", "Subject", "check", "subject_for"]
