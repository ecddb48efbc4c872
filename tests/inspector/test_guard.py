"""Who may ask the inspector: host, origin, token, method and body of every request, and the headers of every answer."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

import dspyer.inspector
from dspyer import END, START, Graph
from dspyer.stores import Memory
from tests.inspector.asking import ADDRESS, TOKEN, request
from tests.rows import each

AUTH = {"X-Dspyer-Token": TOKEN}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
LARGEST_BODY = 16 * 1024 * 1024
JSON = {**AUTH, "Content-Type": "application/json"}


@pytest.fixture(scope="module")
def apps() -> dict[str, Any]:
    """An inspector that reads, one that acts, and one whose surroundings check who asks."""
    store = Memory()
    program = (
        Graph().add_node("add", lambda n: {"n": n + 1}, writes=["n"]).add_path(START, "add", END).compile(store=store)
    )
    program.thread("t").run({"n": 1})
    return {
        "reads": dspyer.inspector.app(store, token=TOKEN),
        "acts": dspyer.inspector.app(store, program, token=TOKEN),
        "open": dspyer.inspector.app(store, program, token=None, hosts=["ops.example.com"]),
        "everywhere": dspyer.inspector.app(store, token=TOKEN, hosts=["0.0.0.0"]),
    }


class Row(NamedTuple):
    name: str
    status: int
    path: str = "/api/about"
    method: str = "GET"
    headers: Any = AUTH
    app: str = "acts"
    body: Any = None
    content: bytes | None = None
    address: str = ADDRESS


HOST = "127.0.0.1:8000"
ROWS = [
    Row("the page needs no token", 200, "/", headers={}),
    Row("the data does", 401, headers={}),
    Row("a wrong token", 401, headers={"X-Dspyer-Token": TOKEN + "x"}),
    Row("a token that is a part", 401, headers={"X-Dspyer-Token": TOKEN[:-1]}),
    Row("an empty token", 401, headers={"X-Dspyer-Token": ""}),
    Row("a token beyond ASCII", 401, headers=[("X-Dspyer-Token", b"\xe9")]),
    Row("two tokens", 401, headers=[("X-Dspyer-Token", TOKEN), ("X-Dspyer-Token", "x")]),
    Row("a token in the address is none", 401, f"/api/about?token={TOKEN}", headers={}),
    Row("an unknown address tells nothing without a token", 401, "/api/whatever", headers={}),
    Row("the token", 200),
    Row("localhost", 200, address="http://localhost:8000"),
    Row("IPv6 loopback", 200, address="http://[::1]:8000"),
    Row("another port", 200, address="http://127.0.0.1:9999"),
    Row("no port", 200, address="http://127.0.0.1"),
    Row("upper case", 200, headers={**AUTH, "Host": "LOCALHOST:8000"}),
    Row("a rebound name", 403, headers={**AUTH, "Host": "evil.example:8000"}),
    Row("a rebound name asks for the page", 403, "/", headers={"Host": "evil.example:8000"}),
    Row("a name that begins like ours", 403, headers={**AUTH, "Host": "localhost.evil.example"}),
    Row("a name that ends like ours", 403, headers={**AUTH, "Host": "evil-localhost"}),
    Row("a user in the name", 403, headers={**AUTH, "Host": "localhost@evil.example"}),
    Row("another address of the machine", 403, headers={**AUTH, "Host": "192.168.1.7:8000"}),
    Row("brackets and more", 403, headers={**AUTH, "Host": "[::1].evil.example"}),
    Row("an empty host", 403, headers={**AUTH, "Host": ""}),
    Row("two hosts", 400, headers=[("Host", HOST), ("Host", "evil.example"), *AUTH.items()]),
    Row("our own page", 200, headers={**AUTH, "Origin": ADDRESS}),
    Row("our own page behind TLS", 200, headers={**AUTH, "Origin": f"https://{HOST}"}),
    Row("a foreign page", 403, headers={**AUTH, "Origin": "https://evil.example"}),
    Row("a foreign page on this machine", 403, headers={**AUTH, "Origin": "http://127.0.0.1:3000"}),
    Row("a page without an origin", 403, headers={**AUTH, "Origin": "null"}),
    Row("a browser says same origin", 200, headers={**AUTH, "Sec-Fetch-Site": "same-origin"}),
    Row("a browser says same site", 403, headers={**AUTH, "Sec-Fetch-Site": "same-site"}),
    Row("a browser says cross site", 403, headers={**AUTH, "Sec-Fetch-Site": "cross-site"}),
    Row("a link to the page from elsewhere", 200, "/", headers={"Sec-Fetch-Site": "cross-site"}),
    Row("no preflight is answered", 405, "/api/copy", "OPTIONS", {**JSON, "Origin": ADDRESS}),
    Row("a preflight of a foreign page", 403, "/api/copy", "OPTIONS", {"Origin": "https://evil.example"}),
    Row("all addresses: an address", 200, headers={**AUTH, "Host": "192.168.1.7:8000"}, app="everywhere"),
    Row("all addresses: an IPv6 address", 200, headers={**AUTH, "Host": "[fe80::1]:8000"}, app="everywhere"),
    Row("all addresses: a name", 403, headers={**AUTH, "Host": "evil.example"}, app="everywhere"),
    Row("without a token of its own", 200, headers={}, app="open", address="https://ops.example.com"),
    Row(
        "without a token, a foreign page",
        403,
        "/api/stop",
        "POST",
        {"Origin": "https://evil.example"},
        "open",
        address="https://ops.example.com",
    ),
    Row(
        "without a token, a form",
        415,
        "/api/stop",
        "POST",
        {"Content-Type": "text/plain"},
        "open",
        body={"thread": "t"},
        address="https://ops.example.com",
    ),
    Row("without a token, another name", 403, headers={}, app="open"),
    Row("a file of the page", 200, "/index.html/../", headers={}),
    Row("a file outside of it", 404, "/../__init__.py", headers={}),
    Row("encoded dots", 404, "/%2e%2e/page_file.py", headers={}),
    Row("encoded slashes", 404, "/..%2fpage_file.py", headers={}),
    Row("a null byte", 404, "/index.html%00.js", headers={}),
    Row("an absolute path", 404, "//etc/passwd", headers={}),
    Row("the page by another method", 405, "/", "POST", headers={}),
    Row("reading by another method", 405, "/api/runs", "POST", JSON, body={}),
    Row("acting by another method", 405, "/api/stop", "GET"),
    Row("acting without a program", 403, "/api/stop", "POST", JSON, "reads", {"thread": "t"}),
    Row("acting without a token", 401, "/api/stop", "POST", {"Content-Type": "application/json"}, body={"thread": "t"}),
    Row(
        "acting as a form",
        415,
        "/api/stop",
        "POST",
        {**AUTH, "Content-Type": "application/x-www-form-urlencoded"},
        body={},
    ),
    Row("acting as a text", 415, "/api/stop", "POST", {**AUTH, "Content-Type": "text/plain;application/json"}, body={}),
    Row("acting without a type", 415, "/api/stop", "POST", AUTH, body={}),
    Row("a body that is no JSON", 400, "/api/stop", "POST", JSON, content=b"{"),
    Row("a body of another encoding", 400, "/api/stop", "POST", JSON, content=b"\xff\xfe\xfd"),
    Row("a body that is nested deep", 400, "/api/stop", "POST", JSON, content=b"[" * 100_000),
    Row("a body that is no object", 400, "/api/stop", "POST", JSON, body=["t"]),
    Row("a body that lacks something", 400, "/api/stop", "POST", JSON, body={}),
    Row("a body with something else", 400, "/api/stop", "POST", JSON, body={"thread": "t", "force": True}),
    Row("a body of other types", 400, "/api/stop", "POST", JSON, body={"thread": 7}),
    Row("a body with no name", 404, "/api/stop", "POST", JSON, body={"thread": "missing"}),
    Row("a body that is too long", 413, "/api/stop", "POST", JSON, content=b" " * (LARGEST_BODY + 1)),
    Row("an action that does not fit", 409, "/api/stop", "POST", JSON, body={"thread": "t"}),
    Row("an unknown address", 404, "/api/whatever"),
    Row("an unknown thread", 404, "/api/record?thread=missing"),
    Row("an old address", 404, "/api/commits?thread=t"),
    Row("no thread", 400, "/api/record"),
    Row("a number that is none", 400, "/api/record?thread=t&first=x"),
    Row("a negative number", 400, "/api/record?thread=t&first=-1"),
    Row("a number that is too large", 400, "/api/runs?limit=100000"),
    Row("a status that is none", 400, "/api/runs?status=odd"),
    Row("a time that is none", 400, "/api/runs?since=odd"),
    Row("a cursor that is none", 400, "/api/runs?after=odd"),
    Row("a run that is none", 404, "/api/record?thread=t&run=odd"),
    Row("a value that is none", 404, "/api/values?thread=t&id=odd"),
]


@each("row", ROWS, ids=lambda row: row.name.replace(" ", "-"))
def test_a_request(row: Row, apps: dict[str, Any]) -> None:
    response = request(
        apps[row.app],
        row.method,
        row.path,
        headers=row.headers,
        body=row.body,
        content=row.content,
        address=row.address,
    )
    assert response.status_code == row.status, response.text
    for name, value in HEADERS.items():
        assert response.headers[name] == value
    assert "access-control-allow-origin" not in response.headers
    assert "Traceback" not in response.text
    assert TOKEN not in response.text
    if row.status >= 400:
        error = response.json()["error"]
        assert error["type"]
        assert error["message"]
