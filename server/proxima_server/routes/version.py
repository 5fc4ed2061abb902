"""What is running."""

from __future__ import annotations

from fastapi import APIRouter

from proxima_server.versions import proxima_version, vllm_version

router = APIRouter(tags=["health"])


@router.get("/version")
async def version() -> dict[str, str]:
    """`version` is vLLM's, as with `vllm serve`."""
    return {"version": vllm_version(), "proxima_version": proxima_version()}
