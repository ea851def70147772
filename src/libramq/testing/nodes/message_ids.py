"""The unique ids of a simulated producer's messages: its name and a number."""

from collections.abc import Callable


class NumberedIds:
    """Numbers messages by what a producer counts."""

    def __init__(self, name: str, number: Callable[[], int]) -> None:
        self._name = name
        self._number = number

    def __call__(self) -> str:
        """Return the id of the message that the producer counted last."""
        return f"{self._name}-{self._number()}"

    def many(self, count: int) -> list[str]:
        """Return ids of several messages; a simulated producer sends each by itself."""
        return [f"{self()}-{position}" for position in range(count)]
