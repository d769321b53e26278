"""What HTTP asks of every route: GET answers HEAD too, and a body has a largest size."""

from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LARGEST_BODY_BYTES = 8 * 1024 * 1024


class Route(APIRoute):
    """A route whose GET is also its HEAD (RFC 9110, 9.3.2). The server sends no body with it; the description of the API does not
    list it. A stream must end by itself: see `server.api.events`."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return super().matches({**scope, "method": "GET"} if self._is_head(scope) else scope)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._is_head(scope):
            await self.app(scope, receive, send)
        else:
            await super().handle(scope, receive, send)

    def _is_head(self, scope: Scope) -> bool:
        return scope["type"] == "http" and scope["method"] == "HEAD" and "GET" in (self.methods or ())


class BodyLimit:
    """ASGI middleware: a body above LARGEST_BODY_BYTES is answered with 413, before it is read where its length is announced. Uploads
    (multipart) are files and have limits of their own."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope.get("headers", ()))
        if scope["type"] != "http" or headers.get(b"content-type", b"").lower().startswith(b"multipart/"):
            return await self.app(scope, receive, send)
        announced = headers.get(b"content-length", b"0")
        seen = int(announced) if announced.isdigit() else 0

        async def receive_counted() -> Message:
            nonlocal seen
            _check(seen)
            message = await receive()
            if b"content-length" not in headers:
                seen += len(message.get("body", b""))
                _check(seen)
            return message

        return await self.app(scope, receive_counted, send)


def _check(num_bytes: int) -> None:
    if num_bytes > LARGEST_BODY_BYTES:
        raise HTTPException(413, f"a body may have at most {LARGEST_BODY_BYTES // 1024**2} MiB")
