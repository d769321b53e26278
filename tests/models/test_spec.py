"""The schemas that forms, scripts and generated clients are made from, and the presets that fill them."""

from collections.abc import Iterator
from typing import Annotated, Any

import jsonschema
import pytest
from pydantic import TypeAdapter

from models import catalog
from models.choices import inner_spec
from models.fit import misfits
from models.spec import KINDS, JobSpec, ModelSpec, Spec, entry

ARCHS = list(catalog.archs())
SCHEMAS = [(arch, kind) for arch in ARCHS for kind in KINDS]
PRESETS = [(arch, preset.name) for arch, card in catalog.archs().items() for preset in card.presets]
SECTIONS = {"What", "Dataset", "Training", "Previews", "Advanced"}
OPEN_INPUTS = 10


def leaves(
    node: dict[str, Any], root: dict[str, Any], value: Any = ..., path: str = "", required: bool = True
) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """(path, schema, required) of every input below `node`; of a list of objects, those of one item. With a `value`, only the
    parts that it has: nothing below a section that is null."""
    beside = {key: inner for key, inner in node.items() if key not in ("$ref", "anyOf")}
    for branch in [node, *node.get("anyOf", [])]:
        if "$ref" in branch:
            node = {**root["$defs"][branch["$ref"].rsplit("/", 1)[1]], **beside}
    if "properties" in node:
        for key, inner in node["properties"].items() if value is not None else ():
            below = value.get(key) if isinstance(value, dict) else ...
            yield from leaves(inner, root, below, f"{path}/{key}", key in node.get("required", ()))
    elif "$ref" in node.get("items", {}):
        yield from leaves(node["items"], root, ..., f"{path}/*")
    else:
        yield path, node, required


def preset(arch: str, name: str) -> dict[str, Any]:
    return next(p for p in catalog.presets(arch) if p["name"] == name)


@pytest.mark.parametrize(("arch", "kind"), SCHEMAS)
def test_every_input_says_what_it_is_and_where_it_stands(arch, kind) -> None:
    schema = catalog.job_schema(arch, kind)
    found = list(leaves(schema, schema))
    assert len(found) > 10
    for path, leaf, required in found:
        ui = leaf["ui"]
        assert ui["section"] in SECTIONS, path
        assert isinstance(ui["order"], int), path
        assert leaf["title"], path
        if not ui.get("hidden"):
            assert leaf["description"].endswith("."), path
            assert required or "default" in leaf, path


@pytest.mark.parametrize(("arch", "kind"), SCHEMAS)
def test_a_schema_is_valid_and_closed(arch, kind) -> None:
    schema = catalog.job_schema(arch, kind)
    jsonschema.Draft202012Validator.check_schema(schema)
    for part in [schema, *schema["$defs"].values()]:
        assert part["additionalProperties"] is False


def test_the_schema_shows_the_defaults_of_the_arch() -> None:
    schema = catalog.job_schema("pocket", "train")
    shown = {path: leaf.get("default") for path, leaf, _ in leaves(schema, schema)}
    assert shown["/datasets/*/resolution"] == [32]
    assert (shown["/sample/width"], shown["/sample/guidance_scale"], shown["/sample/sample_steps"]) == (32, 2.0, 20)
    assert (shown["/model/arch"], shown["/model/dtype"], shown["/train/batch_size"]) == ("pocket", "fp32", 8)
    assert shown["/train/lr"] == 1e-4  # not the arch's: the general one


def test_a_job_that_leaves_things_out_gets_the_defaults_of_the_arch() -> None:
    job = {
        "kind": "train",
        "name": "n",
        "model": {"arch": "pocket", "name_or_path": "random"},
        "network": None,
        "datasets": [{"folder_path": "x"}],
    }
    spec = catalog.parse_job(job).model_dump()
    assert spec["datasets"][0]["resolution"] == [32]
    assert (spec["train"]["batch_size"], spec["train"]["steps"], spec["sample"]["width"]) == (8, 1000, 32)
    assert spec["model"]["model_kwargs"] == {"channels": [64, 96, 128]}
    assert "network" in spec
    assert spec["network"] is None


@pytest.mark.parametrize("arch", ARCHS)
def test_the_defaults_of_the_general_schema_are_not_those_of_an_arch(arch) -> None:
    before = catalog.general_schema()
    catalog.job_schema(arch, "train")
    assert catalog.general_schema() == before
    assert before["$defs"]["DatasetSpec"]["properties"]["resolution"]["default"] == [512]


@pytest.mark.parametrize(("arch", "name"), PRESETS)
def test_a_preset_is_a_whole_job(arch, name) -> None:
    spec = preset(arch, name)["spec"]
    assert catalog.parse_job(spec).model_dump(mode="json") == spec
    assert spec["model"]["arch"] == arch
    assert preset(arch, name)["label"]
    assert preset(arch, name)["description"].endswith(".")


def as_if_typed(spec: JobSpec) -> JobSpec:
    """The same job under the general declarations, where nothing counts as the arch's default."""
    job = spec.model_dump(mode="json")
    job["model"]["model_kwargs"] = {}  # the arch's own, which the general declarations do not know
    return KINDS[job["kind"]].model_validate(job)


@pytest.mark.parametrize(("arch", "name"), PRESETS)
def test_a_preset_sets_nothing_that_means_nothing(arch, name) -> None:
    spec = as_if_typed(catalog.parse_job(preset(arch, name)["spec"]))
    assert list(misfits(catalog.arch(arch), spec)) == []


@pytest.mark.parametrize(("arch", "kind"), SCHEMAS)
def test_the_defaults_of_an_arch_set_nothing_that_means_nothing(arch, kind) -> None:
    job: dict[str, Any] = {"kind": kind, "name": "n", "model": {"arch": arch, "name_or_path": "x"}}
    job |= {"datasets": [{"folder_path": "x"}]} if kind == "train" else {"samples": [{"prompt": "x"}]}
    spec = as_if_typed(catalog.parse_job(job))
    assert list(misfits(catalog.arch(arch), spec)) == []


def conditions(cls: type[Spec], around: type[Spec] | None = None) -> Iterator[tuple[str, type[Spec] | None, str, list[Any]]]:
    """(place, the declaration that should have the key, the key, its values) of every `when` below `cls`."""
    for name, info in cls.model_fields.items():
        extra = info.json_schema_extra
        hint: Any = extra["ui"] if isinstance(extra, dict) else {}
        for key, values in hint.get("when", {}).items():
            yield f"{cls.__name__}.{name}", around if key.startswith("../") else cls, key.removeprefix("../"), values
        if inner := inner_spec(info.annotation):
            yield from conditions(inner, cls)


@pytest.mark.parametrize("kind", KINDS)
def test_every_condition_names_a_key_and_values_that_it_can_have(kind) -> None:
    found = list(conditions(KINDS[kind]))
    assert ("ModelSpec.qtype", ModelSpec, "quantize", [True]) in found
    for place, holder, key, values in found:
        assert holder is not None, place
        assert values, place
        field = holder.model_fields[key]
        known = TypeAdapter(Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation)
        assert [known.validate_python(value, strict=True) for value in values] == values, place
        extra: Any = field.json_schema_extra
        assert set(values) <= set(extra["ui"].get("suggest", values)), place


@pytest.mark.parametrize(("arch", "name"), PRESETS)
def test_a_preset_opens_few_inputs(arch, name) -> None:
    spec = preset(arch, name)["spec"]
    schema = catalog.job_schema(arch, spec["kind"])
    opened = [path for path, leaf, _ in leaves(schema, schema, spec) if leaf["ui"].get("basic")]
    assert 3 <= len(opened) <= OPEN_INPUTS, opened


@pytest.mark.parametrize(("arch", "name"), PRESETS)
def test_a_preset_fits_both_schemas(arch, name) -> None:
    spec = preset(arch, name)["spec"]
    jsonschema.validate(spec, catalog.job_schema(arch, spec["kind"]), jsonschema.Draft202012Validator)
    jsonschema.validate(spec, catalog.general_schema(), jsonschema.Draft202012Validator)


def test_the_general_schema_is_valid_and_refuses_what_is_no_job(tiny_job, sample_job) -> None:
    schema = catalog.general_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    check = jsonschema.Draft202012Validator(schema)
    assert check.is_valid(tiny_job())
    assert check.is_valid(sample_job)
    for changes in ({"kind": "trian"}, {"train.steps": 0}, {"train.steps": "6"}, {"surprise": 1}, {"datasets": []}):
        assert not check.is_valid(tiny_job(**changes)), changes


def test_defaults_of_one_job_are_not_shared_with_the_next() -> None:
    class Basket(Spec):
        fruit: list[str] = entry([], title="Fruit", help="What is in it.", section="What", order=1)

    one = Basket()
    one.fruit.append("apple")
    assert Basket().fruit == []


def test_a_spec_does_not_change_after_it_was_made(tiny_job) -> None:
    spec = catalog.parse_job(tiny_job())
    with pytest.raises(ValueError, match="frozen"):
        spec.name = "other"


@pytest.mark.parametrize(("arch", "name"), PRESETS)
def test_alpha_follows_the_rank_of_a_preset_until_someone_sets_it(arch, name) -> None:
    spec = preset(arch, name)["spec"]
    if spec.get("network") is not None:
        assert (spec["network"]["linear_alpha"], spec["network"]["conv_alpha"]) == (None, None)


def test_the_form_hears_whose_value_an_empty_input_has() -> None:
    shown = catalog.job_schema("pocket", "train")["$defs"]["NetworkSpec"]["properties"]
    assert {key: leaf["ui"]["follows"] for key, leaf in shown.items() if "follows" in leaf["ui"]} == {
        "linear_alpha": "linear", "conv_alpha": "conv"
    }  # fmt: skip
