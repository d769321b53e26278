"""Errors meant for people: each names the thing, the value given and what would be right."""

import errno
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

DISK_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)  # the errno of an OSError that some room would mend


@dataclass(frozen=True)
class Problem:
    """One fault in what a user gave us. `pointer` is a JSON pointer into it (RFC 6901). `suggestion` is a value to use instead, or advice
    in words; `misspelt` where it is the known name most like the one that was given."""

    pointer: str
    message: str
    suggestion: str | None = None
    misspelt: bool = False

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class UserError(Exception):
    """Something the user can mend. `code` is stable and machine readable; anything else that is raised is our bug."""

    def __init__(self, message: str, *, code: str = "invalid", hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.hint = hint


class SpecError(UserError):
    """A job that cannot run as written, with one Problem per fault."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = list(problems)
        first = self.problems[0]
        more = f" (and {len(self.problems) - 1} more)" if len(self.problems) > 1 else ""
        super().__init__(f"{first.pointer or '/'}: {first.message}{more}", code="invalid_spec", hint=first.suggestion)
