"""Who may talk to the server: the right Host, no foreign Origin, and the token where one is set."""

import hashlib
import hmac
import re
import secrets
from datetime import UTC, datetime, timedelta

from fastapi import APIRouter, Response
from fastapi.requests import HTTPConnection
from sqlmodel import col, delete
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.api.deps import problem
from server.api.http import Route
from server.api.shapes import SignIn
from server.store.engine import reading, writing
from server.store.settings import LOOPBACK, settings
from server.store.tables import Session, now

COOKIE = "safelight_session"
SESSION_DAYS = 30
OPEN = {"/healthz", "/readyz", "/v1/session"}
GUARDED = ("/v1", "/openapi.json")  # all else is the UI's static shell
SAFE_PORTS = {"http": "80", "https": "443"}
PLACE = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[\w.-]+)(?::(?P<port>[0-9]{1,5}))?", re.ASCII)

router = APIRouter(prefix="/v1/session", tags=["session"], route_class=Route)


class Gate:
    """ASGI middleware. Refuses a Host that is not ours (DNS rebinding), an Origin that is not the Host (foreign pages), and,
    where SAFELIGHT_TOKEN is set, whoever has neither the token nor a session's cookie. Every reply gets `nosniff`."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        connection = HTTPConnection(scope)
        refused = self._refuse(connection)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message["headers"],
                    (b"x-content-type-options", b"nosniff"),
                    (b"referrer-policy", b"same-origin"),
                ]
            await send(message)

        return await (refused or self.app)(scope, receive, send_guarded)

    def _refuse(self, connection: HTTPConnection) -> ASGIApp | None:
        host = connection.headers.get("host", "")
        name, _ = _name_and_port(host, "http")
        if name not in LOOPBACK | {settings().host, *settings().allowed_hosts}:
            return problem(403, "Host not allowed", f"host {host!r} is not ours; SAFELIGHT_ALLOWED_HOSTS adds more")
        origin = connection.headers.get("origin")
        if origin is not None and not _same_origin(origin, host):
            return problem(403, "Origin not allowed", f"a page of '{origin}' may not talk to this server")
        path = connection.scope["path"]  # never connection.url, which is built from the Host header
        if not settings().token.get_secret_value() or path in OPEN or not path.startswith(GUARDED):
            return None
        if _has_token(connection) or _has_session(connection.cookies.get(COOKIE)):
            return None
        return problem(401, "Sign in first", "this server wants its token, as 'Authorization: Bearer ...' or by signing in")


@router.post("", status_code=204)
def sign_in(body: SignIn, response: Response) -> None:
    """Trade the token for a session's cookie."""
    token = settings().token.get_secret_value()
    if not token:
        return
    if not hmac.compare_digest(body.token.encode(), token.encode()):
        raise HTTPException(401, "That is not this server's token")
    value = secrets.token_urlsafe(32)
    expires = datetime.now(UTC) + timedelta(days=SESSION_DAYS)
    with writing() as session:
        session.connection().execute(delete(Session).where(col(Session.expires_at) < now()))
        session.add(Session(digest=_digest(value), expires_at=expires.isoformat(timespec="milliseconds").replace("+00:00", "Z")))
    response.set_cookie(COOKIE, value, max_age=SESSION_DAYS * 86400, httponly=True, samesite="strict", path="/")


@router.delete("", status_code=204)
def sign_out(connection: HTTPConnection, response: Response) -> None:
    """Forget the session that this cookie stands for."""
    if value := connection.cookies.get(COOKIE):
        with writing() as session:
            session.connection().execute(delete(Session).where(col(Session.digest) == _digest(value)))
    response.delete_cookie(COOKIE, path="/")


def _has_token(connection: HTTPConnection) -> bool:
    scheme, _, given = connection.headers.get("authorization", "").partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(
        given.strip().encode("latin-1"), settings().token.get_secret_value().encode()
    )


def _has_session(value: str | None) -> bool:
    if not value:
        return False
    with reading() as session:
        row = session.get(Session, _digest(value))
    return row is not None and row.expires_at > now()


def _digest(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()


def _same_origin(origin: str, host: str) -> bool:
    scheme, _, place = origin.partition("://")
    return scheme in SAFE_PORTS and _name_and_port(place, scheme) == _name_and_port(host, scheme)


def _name_and_port(place: str, scheme: str) -> tuple[str, str]:
    """`127.0.0.1:80` and `[::1]` in parts; two empty texts for anything that is not exactly a host with or without a port."""
    parts = PLACE.fullmatch(place)
    return (parts["name"].strip("[]").lower(), parts["port"] or SAFE_PORTS[scheme]) if parts else ("", "")
