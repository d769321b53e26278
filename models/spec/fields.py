"""How a key of a job is declared: strict types, and with each what a form needs to draw it."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import pydantic
from pydantic import ConfigDict, Field
from pydantic.fields import FieldInfo

from models.words import NOT_BLANK


class Spec(pydantic.BaseModel):
    """Base of all declarations: unknown keys are errors, values are frozen, NaN and infinity are refused."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=(), validate_default=True
    )


Section = Literal["What", "Dataset", "Training", "Previews", "Advanced"]
Encoded = Literal["latents", "text"]
ENCODED: tuple[Encoded, ...] = ("latents", "text")


def entry(
    default: Any = ...,
    *,
    title: str,
    help: str,
    section: Section,
    order: int,
    unit: str | None = None,
    basic: bool = False,
    widget: str | None = None,
    needs: str | Sequence[str] | None = None,
    when: Mapping[str, Sequence[Any]] | None = None,
    suggest: Sequence[str] = (),
    follows: str | None = None,
    encodes: Sequence[Encoded] = ENCODED,
    **limits: Any,
) -> Any:
    """A field with what a form needs to draw it.

    `basic` inputs are open on a preset (at most 10 of them); the others are folded by section. A field that `needs` a capability, or one
    of several, is hidden, and refused, for an arch whose card names none; so is one whose neighbours do not have one of the values in
    `when`, where "../key" names a key of the object around this one (for an item of a list, of the object that holds the list).
    `suggest` are values to offer for a free text; `follows` names the neighbour whose value holds while this one is not set.
    `encodes`, of an option of an arch, names which encodings depend on it: when it changes,
    cached encodings of the other kinds are used again. `limits` are pydantic's (ge, gt, le, lt, min_length, max_length, pattern).
    """
    ui: dict[str, Any] = {"section": section, "order": order, "basic": basic}
    ui |= {"unit": unit} if unit else {}
    ui |= {"widget": widget} if widget else {}
    ui |= {"needs": [needs] if isinstance(needs, str) else list(needs)} if needs else {}
    ui |= {"when": {key: list(values) for key, values in when.items()}} if when else {}
    ui |= {"suggest": list(suggest)} if suggest else {}
    ui |= {"follows": follows} if follows else {}
    ui |= {"encodes": list(encodes)} if tuple(encodes) != ENCODED else {}
    return Field(default, title=title, description=help, json_schema_extra={"ui": ui}, **limits)


def fixed(default: Any = ...) -> Any:
    """A field that a form never draws."""
    return Field(default, json_schema_extra={"ui": {"section": "What", "order": 0, "basic": False, "hidden": True}})


def part(default_factory: Any, title: str, **ui: Any) -> Any:
    """A field that holds further declarations."""
    return Field(default_factory=default_factory, title=title, json_schema_extra={"ui": ui})


def path(title: str, section: Section, order: int, help: str, **more: Any) -> Any:
    """An optional file or folder."""
    return entry(None, title=title, section=section, order=order, widget="path", min_length=1, max_length=1000, help=help, **more)


class NoOptions(Spec):
    """`model_kwargs` of an arch that has none."""


def options_that_encode(options: Spec, kind: Encoded) -> dict[str, Any]:
    """The options, as JSON, that encodings of this kind may hang on: all that do not say otherwise, undeclared ones too."""
    silent = {name for name, info in type(options).model_fields.items() if kind not in hints(info).get("encodes", ENCODED)}
    return options.model_dump(mode="json", exclude=silent)


def hints(info: FieldInfo) -> Any:
    """What `entry` noted for a form; empty for a field that was declared without it."""
    extra = info.json_schema_extra
    return (extra.get("ui") if isinstance(extra, dict) else None) or {}


Dtype = Literal["fp32", "bf16", "fp16"]
Part = Annotated[str, Field(pattern=NOT_BLANK)]  # of a name that is looked for; a blank one would be in every name
