"""Files of weights are looked at when a job is submitted: POST and validate refuse what is no weights, in the words of a run."""

from pathlib import Path
from typing import Any

from tests.weight_files import safetensors

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
BASE = safetensors(a__weight=[4])
LORA = safetensors(a__lora_A__weight=[2], a__lora_B__weight=[2])
DOUBLE = safetensors(transformer__a__lora_A__weight=[2], diffusion_model__a__lora_A__weight=[2])
KLEIN = {"arch": "flux2_klein_4b"}
PART = {"model_index.json": b"{}", "transformer/config.json": b"{}"}

BASES: dict[str, tuple[dict[str, Any], dict[str, bytes], str]] = {
    "a pointer": (
        {"name_or_path": "x"},
        {"x": POINTER},
        f"is a Git LFS pointer of {len(POINTER)} bytes, not the file itself; run `git lfs",
    ),
    "an adapter": ({"name_or_path": "x"}, {"x": LORA}, "is an adapter (lora: it holds 'a.lora_A.weight'), not a model"),
    "another layout": ({"name_or_path": "x"}, {"x": BASE}, "a layout that is not read here (1 tensors, the first 'a.weight'"),
    "a folder for a file": (
        {"name_or_path": "x"},
        {"x/y": b""},
        "x is a folder; this model starts from a file that a job of this",
    ),
    "a hub for a file": ({"name_or_path": "org/x"}, {}, "org/x names a repository on a hub; this model starts from a file"),
    "a pointer in a part": (
        {**KLEIN, "name_or_path": "x"},
        {**{f"x/{name}": data for name, data in PART.items()}, "x/vae/diffusion_pytorch_model.safetensors": POINTER},
        "x/vae/diffusion_pytorch_model.safetensors is a Git LFS pointer",
    ),
    "a tokenizer": (
        {**KLEIN, "name_or_path": "org/x", "te_name_or_path": "t"},
        {"t/tokenizer/tokenizer.json": POINTER},
        "t/tokenizer/tokenizer.json is a Git LFS pointer",
    ),
    "a VAE": ({**KLEIN, "name_or_path": "org/x", "vae_path": "v"}, {"v/config.json": b"<html>"}, "v/config.json is a web page"),
    "up": (
        {**KLEIN, "name_or_path": "../x"},
        {},
        "'../x' leads out of the models folder, and is no name on a hub, which is org/name",
    ),
    "the parent": ({**KLEIN, "name_or_path": ".."}, {}, "'..' leads out of the models folder"),
    "hidden": ({**KLEIN, "name_or_path": "org/.x"}, {}, "org/.x is missing, and 'org/.x' is no name on a hub"),
    "not there": ({**KLEIN, "name_or_path": "a/b/c"}, {}, "a/b/c is missing, and 'a/b/c' is no name on a hub, which is org/name"),
    "a file that is not there": ({**KLEIN, "name_or_path": "a/b.safetensors"}, {}, "models/a/b.safetensors is missing"),
    "another hub": ({**KLEIN, "name_or_path": "ms:org/x"}, {}, "ModelScope is not supported"),
}


def put(home: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        path = home / "models" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def refused(client: Any, job: dict[str, Any]) -> list[dict[str, Any]]:
    """What both ways of submitting a job say is wrong with it."""
    (home_problems,) = [client.post("/v1/jobs/validate", json=job).json()["problems"]]
    answer = client.post("/v1/jobs", json=job)
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"] == home_problems
    return home_problems


def test_a_base_that_is_no_weights_is_refused_at_submission(client, home, pictures) -> None:
    pictures(size=48)
    for number, (label, (model, files, said)) in enumerate(BASES.items()):
        folder = f"case{number}/"
        inside = {"arch": "pocket"} | {
            key: f"{folder}{given}" if given in ("x", "t", "v") else given for key, given in model.items()
        }
        put(home, {folder + name: data for name, data in files.items()})
        job = {"model": inside, "datasets": [{"folder_path": "colours", "resolution": [48]}]}
        problems = refused(client, {"kind": "train", "name": "n", "network": {}, **job})
        assert [said in problem["message"] for problem in problems] == [True], (label, problems)
        assert problems[0]["pointer"] == f"/model/{list(model)[-1]}", label


ADAPTERS = {
    "base.safetensors": (BASE, "holds 'a.weight', which is no adapter"),
    "pointer.safetensors": (POINTER, "is a Git LFS pointer"),
    "double.safetensors": (
        DOUBLE,
        "names one layer twice, as 'transformer.a.lora_A.weight' and as 'diffusion_model.a.lora_A.weight'",
    ),
    "org/name": (b"", "org/name is no file under the models folder; adapters are not fetched from a hub"),
}


def test_every_adapter_that_cannot_be_used_is_refused_at_submission(client, home, an_adapter, pictures, tiny_job) -> None:
    put(home, {name: data for name, (data, _) in ADAPTERS.items() if data} | {"good.safetensors": an_adapter})
    sample = {"kind": "sample", "name": "n", "model": {"arch": "pocket", "name_or_path": "random"}, "samples": [{"prompt": ""}]}
    names = ["good.safetensors", *ADAPTERS]
    several = refused(client, {**sample, "adapters": [{"path": name} for name in names]})
    matrix = refused(client, {**sample, "matrix": {"checkpoints": names, "weights": [1.0]}})
    assert [problem["pointer"] for problem in several] == [f"/adapters/{place}/path" for place in range(1, 5)]
    assert [problem["pointer"] for problem in matrix] == [f"/matrix/checkpoints/{place}" for place in range(1, 5)]
    for problem, (_, said) in zip([*several, *matrix], [*ADAPTERS.values()] * 2, strict=True):
        assert said in problem["message"]
    pictures()
    for name, (_, said) in ADAPTERS.items():
        (problem,) = refused(client, tiny_job(network={"pretrained_lora_path": name}))
        assert problem["pointer"] == "/network/pretrained_lora_path" and said in problem["message"]
