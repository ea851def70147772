"""The layout: the directories of the brokers and the name server of `libra up`, and the number of brokers.

one broker      DIR/commitlog …
N brokers       DIR/broker-a/commitlog … DIR/broker-b/commitlog …
name server     DIR/namesrv/kvConfig.json
"""

import string
from pathlib import Path
from typing import Final

from libramq.errors import ConfigError

NAMES: Final = tuple(f"broker-{letter}" for letter in string.ascii_lowercase)
BROKERS_MAX: Final = len(NAMES)
#: Entries that every store has.
_OF_A_STORE: Final = ("commitlog", "config")


def directories(data: Path, count: int) -> dict[str, Path]:
    """Return each broker's directory; raises ConfigError if stored messages would not be served."""
    if count == 1:
        _refuse_hidden(data, used=())
        return {NAMES[0]: data}
    if any((data / name).exists() for name in _OF_A_STORE):
        raise ConfigError(
            f"{data} holds the messages of a single broker; start it without --brokers, "
            "or name another directory with --data"
        )
    _refuse_hidden(data, used=NAMES[:count])
    return {name: data / name for name in NAMES[:count]}


#: The name server's audit, beside its KV configuration.
AUDIT_FILE: Final = "audit.jsonl"


def kv_file(data: Path) -> Path:
    """Return the file of the name server's KV configuration."""
    return data / "namesrv" / "kvConfig.json"


def _refuse_hidden(data: Path, used: tuple[str, ...]) -> None:
    there = [index for index, name in enumerate(NAMES) if (data / name).is_dir()]
    if there and there[-1] >= len(used):
        raise ConfigError(
            f"{data} holds the messages of {there[-1] + 1} brokers; start it with --brokers {there[-1] + 1}, "
            "or name another directory with --data"
        )
