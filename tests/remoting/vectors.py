"""Frames that Apache's programs exchanged, as recorded by tests/interop/capture.py."""

import json
from pathlib import Path
from typing import Any, NamedTuple

VECTORS = Path(__file__).parent.parent / "vectors"


class Exchange(NamedTuple):
    """One request and its response, if any; headers as the capture's own decoder read them."""

    name: str
    code: int
    request: bytes
    request_header: dict[str, Any]
    response: bytes | None
    response_header: dict[str, Any] | None


class Frame(NamedTuple):
    name: str
    data: bytes
    header: dict[str, Any]


def exchanges() -> list[Exchange]:
    return [
        Exchange(
            f"{path.stem}-{number}-{recorded['name']}",
            recorded["code"],
            bytes.fromhex(recorded["request"]),
            recorded["request_header"],
            bytes.fromhex(recorded["response"]) if recorded["response"] else None,
            recorded["response_header"],
        )
        for path in sorted(VECTORS.glob("remoting-*.json"))
        for number, recorded in enumerate(json.loads(path.read_text())["exchanges"])
    ]


def frames() -> list[Frame]:
    requests = [Frame(one.name, one.request, one.request_header) for one in exchanges()]
    responses = [
        Frame(one.name + "-reply", one.response, one.response_header)
        for one in exchanges()
        if one.response is not None and one.response_header is not None
    ]
    return requests + responses
