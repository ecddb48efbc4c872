"""Requests to the inspector without a server: each one is a call of the ASGI app."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx

TOKEN = "secret-token-of-the-tests"
ADDRESS = "http://127.0.0.1:8000"


def request(
    app: Any,
    method: str,
    path: str,
    *,
    headers: Any = None,
    params: dict[str, Any] | None = None,
    body: Any = None,
    content: bytes | None = None,
    address: str = ADDRESS,
) -> httpx.Response:
    """The response to one request, with exactly these headers; `body` is sent as JSON."""

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url=address) as client:
            data = content if body is None else json.dumps(body).encode()
            return await client.request(method, path, headers=headers, params=params, content=data)

    return asyncio.run(ask())


def get(app: Any, name: str, /, **params: Any) -> Any:
    """The JSON of an answer of the API; fails unless the status is 200."""
    response = request(app, "GET", f"/api/{name}", headers={"X-Dspyer-Token": TOKEN}, params=params)
    assert response.status_code == 200, response.text
    return json.loads(response.text, parse_constant=_refuse)


def post(app: Any, name: str, /, **body: Any) -> httpx.Response:
    """The response to an action."""
    headers = {"X-Dspyer-Token": TOKEN, "Content-Type": "application/json"}
    return request(app, "POST", f"/api/{name}", headers=headers, body=body)


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")
