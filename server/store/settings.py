"""Settings of this machine, from SAFELIGHT_* variables and a .env file. A job's own settings are models.spec."""

from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

LOOPBACK = {"127.0.0.1", "localhost", "::1"}


TAKES = {
    "int_parsing": "a whole number", "float_parsing": "a number", "bool_parsing": "true or false", "path_type": "a path",
    "greater_than": "more than {gt:g}", "greater_than_equal": "at least {ge:g}", "less_than_equal": "at most {le:g}",
    "finite_number": "a finite number",
}  # fmt: skip


class Settings(BaseSettings):
    """Every setting, with its default. Lists are separated by commas."""

    model_config = SettingsConfigDict(env_prefix="SAFELIGHT_", env_file=".env", extra="ignore")

    home: Path = Path("~/safelight")
    host: str = "127.0.0.1"
    port: int = Field(8765, ge=1, le=65535)
    allowed_hosts: Annotated[list[str], NoDecode] = []
    database_url: str = ""
    redis_url: str = ""
    token: SecretStr = SecretStr("")
    data_roots: Annotated[list[Path], NoDecode] = [Path("~")]
    extensions: Annotated[list[Path], NoDecode] = []
    trusted_packages: Annotated[list[str], NoDecode] = []
    offline: bool = False
    warm_seconds: float = Field(60, ge=0)
    lease_seconds: float = Field(20, gt=0)
    cpu_threads: int = Field(1, ge=1)
    quantized_cache_gb: float = Field(50, ge=0)
    log_level: str = "INFO"

    @field_validator("allowed_hosts", "data_roots", "extensions", "trusted_packages", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value

    @field_validator("home")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().resolve()

    @property
    def roots(self) -> list[Path]:
        """Folders that jobs may read."""
        return [self.home, *(root.expanduser().resolve() for root in self.data_roots)]

    def trusts(self, name: str) -> bool:
        """Whether a job may have the worker import `package.module:Class`. Without a token whoever can post jobs is at this machine
        anyway; with one, the package must be listed."""
        return not self.token.get_secret_value() or name.partition(":")[0].partition(".")[0] in self.trusted_packages

    @property
    def sqlalchemy_url(self) -> str:
        return self.database_url or f"sqlite:///{self.home / 'safelight.db'}"

    @property
    def url(self) -> str:
        """Where this machine reaches the server."""
        host = "127.0.0.1" if self.host in {"0.0.0.0", "::"} else self.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"


@cache
def settings() -> Settings:
    """The settings of this process, read once. Raises ValueError, in one line, when one of them has no sense."""
    try:
        return Settings()
    except ValidationError as error:
        faults = [f"SAFELIGHT_{str(fault['loc'][0]).upper()}={fault['input']}: {_sentence(fault)}" for fault in error.errors()]
        raise ValueError("; ".join(faults)) from None


def _sentence(fault: Any) -> str:
    return f"must be {TAKES[fault['type']].format(**fault.get('ctx', {}))}" if fault["type"] in TAKES else "has no sense"
