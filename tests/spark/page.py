"""The code blocks of docs/clusters.md, so that tests run exactly what readers run."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "clusters.md"


def block(heading: str, containing: str, *, language: str = "sh") -> str:
    """Return the code block that contains a text below a heading of the page."""
    section = re.search(
        rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.DOTALL | re.MULTILINE
    )
    assert section is not None, f"docs/clusters.md has no heading {heading!r}"
    blocks = re.findall(rf"^```{language}\n(.*?)^```", section[1], re.DOTALL | re.MULTILINE)
    (found,) = (each for each in blocks if containing in each)
    return str(found)


def line(heading: str, containing: str) -> str:
    """Return the line that contains a text in the page's shell block, without its comment."""
    (found,) = (each for each in block(heading, containing).splitlines() if containing in each)
    return found.partition("  #")[0].strip()


def at(url: str, command: str) -> str:
    """Return one of the page's commands for the cluster at a `spark://` address."""
    address = url.removeprefix("spark://")
    host, _, port = address.rpartition(":")
    return command.replace("HOST:7077", address).replace(
        "--host HOST --port 7077", f"--host {host} --port {port}"
    )
