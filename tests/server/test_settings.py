"""Settings of the machine, from the environment and a .env file."""

from pathlib import Path

import pytest

from server.app import StartRefused, check_start, server_lock
from server.store.settings import Settings, settings


def test_defaults_keep_to_this_machine(monkeypatch) -> None:
    monkeypatch.delenv("SAFELIGHT_HOME")
    monkeypatch.delenv("SAFELIGHT_DATA_ROOTS")
    found = Settings(_env_file=None)  # type: ignore[call-arg]
    assert (found.host, found.port, found.url) == ("127.0.0.1", 8765, "http://127.0.0.1:8765")
    assert found.home == Path.home() / "safelight"
    assert found.roots == [Path.home() / "safelight", Path.home()]
    assert found.sqlalchemy_url == f"sqlite:///{Path.home()}/safelight/safelight.db"
    assert (found.token.get_secret_value(), found.allowed_hosts, found.redis_url) == ("", [], "")


def test_lists_are_split_at_commas(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("SAFELIGHT_ALLOWED_HOSTS", " a.example, ,b.example,")
    monkeypatch.setenv("SAFELIGHT_DATA_ROOTS", f"~,{tmp_path}")
    assert settings().allowed_hosts == ["a.example", "b.example"]
    assert settings().roots == [settings().home, Path.home().resolve(), tmp_path.resolve()]


def test_no_roots_leave_the_data_folder(monkeypatch) -> None:
    monkeypatch.setenv("SAFELIGHT_DATA_ROOTS", "")
    assert settings().roots == [settings().home]


def test_the_data_folder_is_absolute_wherever_one_stands(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    for given, meant in (("data", tmp_path / "data"), ("~/x", Path.home() / "x"), (f"{tmp_path}/a/../b", tmp_path / "b")):
        monkeypatch.setenv("SAFELIGHT_HOME", given)
        settings.cache_clear()
        assert settings().home == meant.resolve()


def test_a_dotenv_file_counts_and_the_environment_counts_more(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text("SAFELIGHT_PORT=1234\nSAFELIGHT_LOG_LEVEL=DEBUG\nOTHER=1\n")
    monkeypatch.setenv("SAFELIGHT_LOG_LEVEL", "ERROR")
    assert (settings().port, settings().log_level) == (1234, "ERROR")


@pytest.mark.parametrize(
    ("name", "value"),
    [("PORT", "0"), ("PORT", "x"), ("WARM_SECONDS", "-1"), ("LEASE_SECONDS", "0"), ("CPU_THREADS", "0"), ("OFFLINE", "maybe")],
)
def test_a_value_without_sense_is_named_in_one_line(monkeypatch, name, value) -> None:
    monkeypatch.setenv(f"SAFELIGHT_{name}", value)
    with pytest.raises(ValueError, match=rf"^SAFELIGHT_{name}={value}: [^\n]+$"):
        settings()


def test_the_token_is_never_printed(monkeypatch) -> None:
    monkeypatch.setenv("SAFELIGHT_TOKEN", "sesame")
    assert "sesame" not in f"{settings()!r} {settings()} {settings().model_dump()}"
    assert settings().token.get_secret_value() == "sesame"


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:8765"),
        ("::", "http://127.0.0.1:8765"),
        ("::1", "http://[::1]:8765"),
        ("localhost", "http://localhost:8765"),
        ("192.0.2.1", "http://192.0.2.1:8765"),
    ],
)
def test_the_url_is_one_that_this_machine_can_open(monkeypatch, host, url) -> None:
    monkeypatch.setenv("SAFELIGHT_HOST", host)
    assert settings().url == url


@pytest.mark.parametrize(
    ("host", "token", "fine"),
    [
        ("127.0.0.1", "", True),
        ("localhost", "", True),
        ("::1", "", True),
        ("0.0.0.0", "", False),
        ("::", "", False),
        ("127.0.0.2", "", False),
        ("example.org", "", False),
        ("0.0.0.0", "x", True),
    ],
)
def test_only_a_token_lets_others_in(host, token, fine) -> None:
    given = Settings(host=host, token=token)  # type: ignore[arg-type]
    if fine:
        check_start(given)
    else:
        with pytest.raises(StartRefused, match="set SAFELIGHT_TOKEN first"):
            check_start(given)


def test_a_data_folder_has_one_server(home) -> None:
    with server_lock(), pytest.raises(StartRefused, match="another server already uses"), server_lock():
        pass
    with server_lock():
        assert (home / "server.lock").exists()
