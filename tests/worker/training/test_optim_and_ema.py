"""Optimizers against the classes they come from, averages against float64."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from prodigyopt import Prodigy
from transformers.optimization import Adafactor

from models.errors import UserError
from models.spec import TrainSettings
from server.store.settings import settings
from worker.training.ema import Ema
from worker.training.optim import make_optimizer, rate_of, set_rate

START = torch.randn(8, 5, generator=torch.Generator().manual_seed(3))
FLOAT_STATE = 1e-7  # fused kernels sum in another order


def settings_of(optimizer: str, lr: float = 3e-4, **more: Any) -> TrainSettings:
    return TrainSettings.model_validate({"optimizer": optimizer, "lr": lr, **more})


def after(optimizer_of: Any, steps: int = 6) -> torch.Tensor:
    """The weights after some steps down a quartic."""
    param = torch.nn.Parameter(START.clone())
    optimizer = optimizer_of([param])
    for _ in range(steps):
        optimizer.zero_grad()
        (param**4).sum().backward()
        optimizer.step()
    return param.detach()


OWN: list[tuple[str, dict[str, Any], Any]] = [
    ("adam", {}, lambda p: torch.optim.Adam(p, lr=3e-4)),
    ("adamw", {}, lambda p: torch.optim.AdamW(p, lr=3e-4, eps=1e-6)),
    ("adamw", {"beta1": 0.8, "beta2": 0.95, "eps": 1e-7, "weight_decay": 0.2},
     lambda p: torch.optim.AdamW(p, lr=3e-4, betas=(0.8, 0.95), eps=1e-7, weight_decay=0.2)),
    ("adam", {"beta2": 0.9}, lambda p: torch.optim.Adam(p, lr=3e-4, betas=(0.9, 0.9))),
    ("adagrad", {"eps": 1e-5}, lambda p: torch.optim.Adagrad(p, lr=3e-4, eps=1e-5)),
    ("nadam", {"beta1": 0.7}, lambda p: torch.optim.NAdam(p, lr=3e-4, betas=(0.7, 0.999))),
    ("radam", {"weight_decay": 0.1}, lambda p: torch.optim.RAdam(p, lr=3e-4, weight_decay=0.1)),
    ("rmsprop", {"alpha": 0.8, "momentum": 0.5}, lambda p: torch.optim.RMSprop(p, lr=3e-4, alpha=0.8, momentum=0.5)),
    ("sgd", {}, lambda p: torch.optim.SGD(p, lr=3e-4)),
    ("sgd", {"momentum": 0.9, "nesterov": True}, lambda p: torch.optim.SGD(p, lr=3e-4, momentum=0.9, nesterov=True)),
    ("adafactor", {}, lambda p: Adafactor(p, lr=3e-4, scale_parameter=False, relative_step=False, warmup_init=False)),
    ("adafactor", {"beta1": 0.5, "scale_parameter": True, "clip_threshold": 0.5, "decay_rate": -0.5},
     lambda p: Adafactor(p, lr=3e-4, beta1=0.5, scale_parameter=True, relative_step=False, clip_threshold=0.5, decay_rate=-0.5)),
    ("adafactor", {"relative_step": True, "warmup_init": True, "scale_parameter": True},
     lambda p: Adafactor(p, relative_step=True, warmup_init=True, scale_parameter=True)),
    ("prodigy", {}, lambda p: Prodigy(p, lr=1.0)),
    ("prodigy", {"beta2": 0.99, "beta3": 0.9, "d0": 1e-4, "d_coef": 2.0, "growth_rate": 1.5, "use_bias_correction": True},
     lambda p: Prodigy(p, lr=1.0, betas=(0.9, 0.99), beta3=0.9, d0=1e-4, d_coef=2.0, growth_rate=1.5, use_bias_correction=True)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options", "plain"), OWN)
def test_an_optimizer_is_the_one_it_says_with_the_jobs_options(name: str, options: dict[str, Any], plain: Any) -> None:
    train = settings_of(name, lr=1.0 if name == "prodigy" else 3e-4, optimizer_params=options)
    made = after(lambda params: make_optimizer(params, train))
    assert torch.allclose(made, after(plain), rtol=0, atol=FLOAT_STATE)
    assert not torch.equal(made, START)


@pytest.mark.parametrize(("name", "epsilon"), [("adam", 1e-6), ("prodigy", 1e-6), ("adamw", 1e-6), ("nadam", 1e-8)])
def test_epsilons_are_those_of_ai_toolkit_where_that_is_asked_for(name: str, epsilon: float) -> None:
    made = make_optimizer([torch.nn.Parameter(START.clone())], settings_of(name, as_in_ai_toolkit=True))
    assert made.defaults["eps"] == epsilon


def test_an_option_of_another_optimizer_is_left_out() -> None:
    # It can only be an architecture's default: the job's own is refused.
    made = make_optimizer(
        [torch.nn.Parameter(START.clone())], settings_of("sgd", optimizer_params={"beta1": 0.5, "weight_decay": 0.1})
    )
    assert (made.defaults["weight_decay"], made.defaults["momentum"]) == (0.1, 0)


def test_fused_kernels_are_used_where_torch_has_them() -> None:
    param = torch.nn.Parameter(START.clone())
    fused = {name: make_optimizer([param], settings_of(name)).defaults.get("fused") for name, _, _ in OWN}
    assert {name for name, is_fused in fused.items() if is_fused} == {"adam", "adamw", "adagrad", "sgd"}


def test_the_eight_bit_optimizer_runs_close_to_the_full_one() -> None:
    pytest.importorskip("bitsandbytes", reason="the extra adamw8bit is not installed")
    big = torch.randn(64, 128, generator=torch.Generator().manual_seed(1))  # smaller ones are kept in 32 bits
    ends, states = [], []
    for name in ("adamw", "adamw8bit"):
        param = torch.nn.Parameter(big.clone())
        optimizer = make_optimizer([param], settings_of(name, lr=1e-2))
        for _ in range(10):
            optimizer.zero_grad()
            (param**2).sum().backward()
            optimizer.step()
        ends.append(param.detach())
        states.append(optimizer.state[param])
    assert states[1]["state1"].dtype == torch.uint8
    moved, apart = (ends[0] - big).norm(), (ends[0] - ends[1]).norm()
    assert 0 < float(apart) < 0.05 * float(moved)  # 8 bits keep two to three digits


def test_without_bitsandbytes_the_error_says_what_else_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", None)
    with pytest.raises(UserError, match="adamw8bit' needs bitsandbytes") as refused:
        make_optimizer([torch.nn.Parameter(START.clone())], settings_of("adamw8bit"))
    assert "adafactor" in str(refused.value.hint)


def test_prodigy_tells_d_times_its_rate() -> None:
    param = torch.nn.Parameter(START.clone())
    optimizer = make_optimizer([param], settings_of("prodigy", lr=1.0, optimizer_params={"d0": 1e-4}))
    for step in range(5):
        set_rate(optimizer, 0.5)
        (param**4).sum().backward()
        optimizer.step()
        group = optimizer.param_groups[0]
        assert rate_of(optimizer, 0.5) == 0.5 * group["d"], step
    assert rate_of(optimizer, 0.5) > 0.5 * 1e-4


def test_adafactor_with_its_own_rate_is_not_given_the_jobs_and_tells_its_own() -> None:
    param = torch.nn.Parameter(START.clone())
    optimizer = make_optimizer([param], settings_of("adafactor", optimizer_params={"relative_step": True}))
    set_rate(optimizer, 0.5)
    assert rate_of(optimizer, 0.5) == 0
    for _ in range(3):
        (param**4).sum().backward()
        optimizer.step()
    assert rate_of(optimizer, 0.5) == pytest.approx(1e-2)  # min(0.01, 1 / sqrt(3)): Shazeer & Stern 2018, section 9
    assert rate_of(make_optimizer([param], settings_of("adamw")), 0.5) == 0.5


THEIRS = """
import torch

class Own(torch.optim.SGD):
    def __init__(self, params, lr, pull=(1.0, 2.0), sharp=False):
        assert isinstance(pull, tuple)
        super().__init__(params, lr=lr * pull[0])

class NeedsClosure(torch.optim.SGD):
    def step(self, closure):
        raise SystemExit("called")

class Switched(torch.optim.SGD):
    def train(self): ...
    def eval(self): ...

class NotOne:
    def __init__(self, *args, **kwargs):
        raise SystemExit("called")
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    folder = tmp_path / "their_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "optim.py").write_text(THEIRS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "their_package", raising=False)
    monkeypatch.delitem(sys.modules, "their_package.optim", raising=False)
    return "their_package.optim"


def foreign(name: str, **arguments: Any) -> torch.optim.Optimizer:
    return make_optimizer([torch.nn.Parameter(START.clone())], settings_of(name, optimizer_kwargs=arguments))


def test_an_installed_optimizer_gets_the_jobs_rate_and_arguments(package: str) -> None:
    made = foreign(f"{package}:Own", pull=[2.0, 3.0])
    assert type(made).__name__ == "Own" and made.param_groups[0]["lr"] == 6e-4


@pytest.mark.parametrize(
    ("name", "arguments", "complaint"),
    [
        ("NotOne", {}, "not a subclass of torch.optim.Optimizer"),
        ("Nothing", {}, "has no Nothing"),
        ("Own", {"unknown": 1}, "unknown"),
    ],
)
def test_what_is_not_an_optimizer_is_refused_before_it_is_called(package: str, name: str, arguments: Any, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        foreign(f"{package}:{name}", **arguments)


def test_a_package_that_is_not_there_is_named() -> None:
    with pytest.raises(UserError, match="no_such_package"):
        foreign("no_such_package:Adam")


def test_with_a_token_only_listed_packages_are_imported(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAFELIGHT_TOKEN", "secret")
    settings.cache_clear()
    with pytest.raises(UserError, match="SAFELIGHT_TRUSTED_PACKAGES"):
        foreign(f"{package}:Own")
    assert package not in sys.modules
    monkeypatch.setenv("SAFELIGHT_TRUSTED_PACKAGES", "other, their_package")
    settings.cache_clear()
    assert type(foreign(f"{package}:Own")).__name__ == "Own"


def test_the_average_is_that_of_float64() -> None:
    param = torch.nn.Parameter(torch.randn(50))
    ema = Ema({"w": param}, decay=0.9)
    wanted = param.detach().double()
    for _ in range(30):
        with torch.no_grad():
            param.add_(torch.randn(50))
        ema.update()
        wanted = 0.9 * wanted + 0.1 * param.detach().double()
    assert torch.allclose(ema.shadow["w"].double(), wanted, rtol=0, atol=1e-5)


def test_the_average_is_in_the_model_only_inside_and_the_weights_come_back_bit_for_bit() -> None:
    param = torch.nn.Parameter(torch.randn(50))
    ema = Ema({"w": param}, decay=0.9)
    with torch.no_grad():
        param.add_(1)
    ema.update()
    own = param.detach().clone()
    with pytest.raises(RuntimeError, match="inside"), ema.applied():
        assert torch.equal(param, ema.shadow["w"])
        assert not torch.equal(param, own)
        raise RuntimeError("inside")
    assert torch.equal(param, own)


@pytest.mark.parametrize(("name", "reason"), [("NeedsClosure", "needs a closure"), ("Switched", r"train\(\) and eval\(\)")])
def test_an_optimizer_that_the_loop_cannot_drive_is_refused_with_the_reason(package: str, name: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        foreign(f"{package}:{name}")


def test_lbfgs_is_refused() -> None:
    with pytest.raises(UserError, match="needs a closure"):
        foreign("torch.optim:LBFGS")
