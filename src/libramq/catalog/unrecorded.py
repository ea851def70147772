"""Changes that the disk cannot record: those that a request names are refused, those by use (a first pull)
take effect without a record.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from libramq.codes import ResponseCode
from libramq.errors import broker_error
from libramq.filesystem import NO_SPACE
from libramq.logs import get_logger

log = get_logger(__name__)

C = TypeVar("C")
V = TypeVar("V")


@contextmanager
def refused_without_room(name: str) -> Iterator[None]:
    """Refuse a request that changes a table of a full disk; raises BrokerError."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        raise broker_error(
            ResponseCode.SERVICE_NOT_AVAILABLE,
            f"the disk has no room to record {name}, which stays as it was; free space: {error}",
        ) from error


class RecordByUse:
    """Records changes that no request names, such as a group created by its first pull; logs a refusal once.

    Such a change takes effect regardless: it is repeated on the next use, and the next fold has it.
    """

    def __init__(self) -> None:
        self._is_refused = False

    def __call__(
        self, record: Callable[[str, C | None, V], None], name: str, config: C | None, version: V
    ) -> None:
        """Record a change if possible."""
        try:
            record(name, config, version)
        except OSError as error:
            if not self._is_refused:
                log.error(
                    "topics and groups created on first use cannot be recorded yet",
                    name=name,
                    reason=str(error),
                )
            self._is_refused = True
        else:
            self._is_refused = False
