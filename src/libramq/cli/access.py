"""Access to servers with authentication or TLS: a file named by the environment, for every command.

These are not options, since every user of the machine can read a command line. The file uses the names of
`transport/access.py`, as Apache's tools.yml and tls.properties have them.
"""

import os
from pathlib import Path
from typing import Any, Final

from libramq.errors import ConfigError
from libramq.formats.properties_file import read_properties
from libramq.transport.access import Access, access_of

VARIABLE: Final = "LIBRA_ACCESS"


def properties() -> dict[str, str]:
    """Return the properties in the file; empty if the environment names none. Raises ConfigError."""
    file = os.environ.get(VARIABLE)
    try:
        return read_properties(Path(file)) if file else {}
    except ConfigError as error:  # It names the file.
        raise ConfigError(f"{VARIABLE}: {error}") from None


def access() -> Access:
    """Return the commands' credentials and TLS; ConfigError names a fault in the file."""
    found = properties()
    try:
        return access_of(found)
    except ConfigError as error:
        raise ConfigError(f"{VARIABLE}={os.environ[VARIABLE]}: {error}") from None


def client_options() -> dict[str, Any]:
    """Return the same properties as options of Producer, PushConsumer and Admin."""
    found = access()
    return {"credentials": found.credentials, "tls": found.tls}
