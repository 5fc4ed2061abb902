"""The page of API docs, whose files come from here and from nowhere else."""

from __future__ import annotations

from pathlib import Path

import fastapi_offline
from fastapi import APIRouter, Request
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import FileResponse, Response

from proxima_server.errors import APIError, ErrorCode

OPENAPI_URL = "/openapi.json"
_FOLDER = Path(fastapi_offline.__file__).parent / "static"
_FILES = ("swagger-ui.css", "swagger-ui-bundle.js", "favicon.png")

router = APIRouter(include_in_schema=False)


@router.get("/docs")
async def docs(request: Request) -> Response:
    """Swagger UI on our schema."""
    root = request.scope.get("root_path", "")
    style, script, icon = (f"{root}/docs/{name}" for name in _FILES)
    return get_swagger_ui_html(
        openapi_url=f"{root}{OPENAPI_URL}",
        title=f"{request.app.title} - API",
        swagger_css_url=style,
        swagger_js_url=script,
        swagger_favicon_url=icon,
    )


@router.get("/docs/{name}")
async def file(name: str) -> Response:
    """One of the files that the page loads."""
    if name not in _FILES:
        raise APIError(ErrorCode.NOT_FOUND, f"There is no file '{name}' here")
    return FileResponse(_FOLDER / name)
