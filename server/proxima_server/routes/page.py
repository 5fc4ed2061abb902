"""The web page: live view, scheduler and chat. What it shows it asks for as any client does."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from starlette.responses import FileResponse, Response

from proxima_server import page
from proxima_server.errors import APIError, ErrorCode

router = APIRouter(include_in_schema=False)

_FOLDER = Path(page.__file__).parent
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_FILES = {path.relative_to(_FOLDER).as_posix(): path for path in _FOLDER.rglob("*") if path.suffix in _TYPES}
_HEADERS = {
    # Nothing from elsewhere, nothing inline, and in nobody's frame.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # Asked again each time, and answered with 304 while unchanged: an upgrade must not mix old modules with new ones.
    "Cache-Control": "no-cache",
}


@router.get("/")
async def index() -> Response:
    """The page."""
    return FileResponse(_FOLDER / "index.html", media_type="text/html", headers=_HEADERS)


@router.get("/ui/{name:path}")
async def file(name: str) -> Response:
    """A file that the page loads."""
    path = _FILES.get(name)
    if path is None:
        raise APIError(ErrorCode.NOT_FOUND, f"There is no file 'ui/{name}' here")
    return FileResponse(path, media_type=_TYPES[path.suffix], headers=_HEADERS)
