"""An option of `broker.conf`, as a field of a configuration."""

from dataclasses import field
from typing import Any


def option(default: Any, name: str, about: str) -> Any:
    """Return an option's field. name: in `broker.conf`."""
    return field(default=default, metadata={"name": name, "about": about})
