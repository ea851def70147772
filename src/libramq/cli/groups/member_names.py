"""Member names: client ids shortened as far as they stay unique.

127.0.0.1@26622#16918612000   →   127.0.0.1@26622      if no other member belongs to that process
127.0.0.1@host-7              →   worker-1             the name of a static member
rdkafka-3f9a…32 digits        →   rdkafka-3f9a         a member's id of Kafka's protocol
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

#: The time that unnamed clients, Java's and ours, append to address and process.
_TIME: Final = re.compile(r"(?<=@)(\d+)#\d+$")
#: What our broker appends to the name of Kafka's client: 16 bytes that cannot be guessed.
_RANDOM: Final = re.compile(r"(?<=-[0-9a-f]{4})[0-9a-f]{28}$")
_CLIENT_ID: Final = re.compile(r"[^\s,]+")
_NONE: Final[Mapping[str, str]] = {}


class MemberNames:
    """Short names of the clients in some texts. static: names of static members, by client id."""

    def __init__(self, texts: Iterable[str], *, static: Mapping[str, str] = _NONE) -> None:
        client_ids = {client_id for text in texts for client_id in _CLIENT_ID.findall(text)}
        candidates = {
            client_id: static.get(client_id) or _RANDOM.sub("", _TIME.sub(r"\1", client_id))
            for client_id in client_ids | set(static)
        }
        uses = Counter(candidates.values())
        self._names = {client_id: name for client_id, name in candidates.items() if uses[name] == 1}

    def short(self, text: str) -> str:
        """Return a text with all client ids in it shortened."""
        return _CLIENT_ID.sub(lambda client_id: self._names.get(client_id[0], client_id[0]), text)
