"""The OpenAPI document: our routes, and vLLM's request and response models as soon as the engine is ready."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from proxima_engine.runtime import EnginePhase
from proxima_server.errors import KINDS, MAX_MESSAGE_CHARS, MAX_PARAM_CHARS, ErrorCode
from proxima_server.gateway import Gateway

GENERATE_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "required": ["prompt"],
    "properties": {"prompt": {"type": "string"}, "stream": {"type": "boolean", "default": False}},
    "additionalProperties": {"description": "any sampling parameter of /v1/completions"},
}


ERROR_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string", "maxLength": MAX_MESSAGE_CHARS},
                "type": {"type": "string", "enum": sorted({kind.type for kind in KINDS.values()})},
                "param": {"type": ["string", "null"], "maxLength": MAX_PARAM_CHARS},
                "code": {"type": "string", "enum": [code.value for code in ErrorCode]},
            },
        }
    },
}


def install(app: FastAPI, gateway: Gateway) -> None:
    """Make `app.openapi` build the document when asked: it is complete, and kept, once the engine is ready."""
    kept: dict[str, Any] = {}

    def openapi() -> dict[str, Any]:
        if kept:
            return kept
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        _set_request(document, "/generate", GENERATE_SCHEMA)
        _describe_errors(document)
        if gateway.phase is EnginePhase.READY:
            for path, (request, response) in gateway.serving.schemas().items():
                _set_request(document, path, _with_components(document, request))
                _set_response(document, path, _with_components(document, response))
            kept.update(document)
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend the document


def _describe_errors(document: dict[str, Any]) -> None:
    """All operations fail alike. FastAPI describes errors of its own, which are translated before they are sent."""
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas.pop("HTTPValidationError", None)
    schemas.pop("ValidationError", None)
    schemas["Error"] = ERROR_SCHEMA
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    for operations in document["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
            operation["responses"]["default"] = {"description": "an error", "content": error}


def _with_components(document: dict[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    components = document.setdefault("components", {}).setdefault("schemas", {})
    components.update(schema.get("$defs", {}))
    return {key: value for key, value in schema.items() if key != "$defs"}


def _set_request(document: dict[str, Any], path: str, schema: Mapping[str, Any]) -> None:
    document["paths"][path]["post"]["requestBody"] = {
        "required": True,
        "content": {"application/json": {"schema": schema}},
    }


def _set_response(document: dict[str, Any], path: str, schema: Mapping[str, Any]) -> None:
    content = document["paths"][path]["post"]["responses"]["200"]["content"]
    content["application/json"] = {"schema": schema}
