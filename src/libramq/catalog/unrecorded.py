"""Changes caused by use: consumption continues even if the disk cannot record them."""

from collections.abc import Callable
from typing import TypeVar

from libramq.logs import get_logger

log = get_logger(__name__)

C = TypeVar("C")
V = TypeVar("V")


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
