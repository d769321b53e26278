"""An optimizer from a package runs that package's code: behind a token only if the package is listed."""

from typing import Any

import pytest

from server.api.plan import make_plan
from server.store.settings import settings

THEIRS = {"train.optimizer": "their_package.optim:Own"}


@pytest.mark.parametrize(
    ("token", "listed", "refused"),
    [("", "", False), ("secret", "", True), ("secret", "other", True), ("secret", "other, their_package", False)],
)
def test_code_of_a_package_needs_its_name_on_the_list(
    migrated: Any, pictures: Any, tiny_job: Any, monkeypatch: Any, token: str, listed: str, refused: bool
) -> None:
    pictures()
    monkeypatch.setenv("SAFELIGHT_TOKEN", token)
    monkeypatch.setenv("SAFELIGHT_TRUSTED_PACKAGES", listed)
    settings.cache_clear()
    problems = make_plan(tiny_job(**THEIRS)).problems
    assert [(fault.pointer, "SAFELIGHT_TRUSTED_PACKAGES" in fault.message) for fault in problems] == (
        [("/train/optimizer", True)] if refused else []
    )


def test_a_listed_name_is_a_whole_package(monkeypatch: Any) -> None:
    monkeypatch.setenv("SAFELIGHT_TOKEN", "secret")
    monkeypatch.setenv("SAFELIGHT_TRUSTED_PACKAGES", "their_package")
    settings.cache_clear()
    assert settings().trusts("their_package:Own") and settings().trusts("their_package.deep.optim:Own")
    assert not settings().trusts("their_package_too:Own") and not settings().trusts("their:Own")
