"""Architectures from folders elsewhere, as facts: what a worker found out about them, without any of their code.

A card travels as JSON. Its options travel as a JSON Schema and come back as a type that checks by that schema.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, create_model
from pydantic_core import PydanticCustomError

from models.arch import Arch
from models.spec import Spec


class FreeOptions(Spec):
    """`model_kwargs` of a class that declares none: any JSON object, handed to it as it is."""

    model_config = ConfigDict(extra="allow")


@dataclass(frozen=True)
class Extension:
    """What is known of one architecture. Healthy ones have a card and the JSON Schema of each job kind; broken ones a reason.
    `digest` is that of its source files, `source` the folder they lie in."""

    name: str
    source: str
    digest: str
    card: Arch | None = None
    schemas: Mapping[str, Any] = field(default_factory=dict)
    broken: str | None = None


def card_as_json(card: Arch) -> dict[str, Any]:
    """All of a card; the type of its options as a JSON Schema, null for free ones."""
    free = issubclass(card.options, FreeOptions)
    return {**card.model_dump(mode="json", exclude={"options"}), "options": None if free else card.options.model_json_schema()}


def card_from_json(data: Mapping[str, Any]) -> Arch:
    """The inverse of `card_as_json`."""
    schema = data["options"]
    lists = {key: tuple(data[key]) for key in ("capabilities", "adapters", "presets")}
    options = FreeOptions if schema is None else options_type(schema)
    card: Arch = Arch.model_validate({**data, **lists, "options": options}, strict=False)
    return card


def options_type(schema: Mapping[str, Any]) -> type[Spec]:
    """A type with one field for each property of `schema`, which checks values by that property's schema."""
    required = schema.get("required", ())
    fields: dict[str, Any] = {}
    for name, part in schema.get("properties", {}).items():
        default = ... if name in required else part.get("default")
        check = _checker({**part, "$defs": schema.get("$defs", {})})
        annotation = Annotated[Any, AfterValidator(check)]
        fields[name] = (annotation, Field(default, title=part.get("title"), description=part.get("description")))
    return create_model("Options", __base__=Spec, __doc__=schema.get("description"), **fields)


def _checker(schema: Mapping[str, Any]) -> Callable[[Any], Any]:
    import jsonschema  # for options of architectures from elsewhere alone

    validator = jsonschema.Draft202012Validator(schema)

    def check(value: Any) -> Any:
        fault = jsonschema.exceptions.best_match(validator.iter_errors(value))
        if fault is not None:
            where = "".join(f"[{part!r}]" for part in fault.absolute_path)
            raise PydanticCustomError("option", "{fault}", {"fault": f"{where + ': ' if where else ''}{fault.message}"})
        return value

    return check
