"""One module per group of endpoints."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from proxima_server.gateway import Gateway


def _gateway(request: Request) -> Gateway:
    gateway: Gateway = request.app.state.gateway
    return gateway


TheGateway = Annotated[Gateway, Depends(_gateway)]
