"""The work of a consumer, counted: what became of its messages, and what is in hand now."""

from collections.abc import Iterable
from typing import NamedTuple

from libramq.client.consuming.handling.handler_result import Ending, HandlerOutcome, NotDone
from libramq.client.consuming.queues.owned_queue import Delivery, OwnedQueue
from libramq.client.statistics import ConsumerStatistics
from libramq.clock import MonotonicMs


class HandlerCounts:
    """Counts what became of deliveries, over the runs of a consumer. Written on the network thread."""

    def __init__(self) -> None:
        self.handled = self.retried = self.rejected = self.calls = self.milliseconds = 0

    def add(self, delivery: Delivery, ending: Ending, now_ms: MonotonicMs) -> None:
        """Count a delivery that has ended."""
        count = delivery.handled_count
        if ending in (HandlerOutcome.SKIPPED, HandlerOutcome.FOREIGN) or not count:
            return
        if delivery.is_call:
            self.calls += 1
            self.milliseconds += max(0, now_ms - delivery.began_ms)
        if isinstance(ending, NotDone):
            self.retried += len(ending.retries)
            self.rejected += len(ending.rejects)
            self.handled += count - len(ending.retries) - len(ending.rejects) - len(ending.busy)
        elif ending is HandlerOutcome.SUCCESS:
            self.handled += count
        else:
            self.retried += count

    def snapshot(self, work: "WorkInHand") -> ConsumerStatistics:
        """Return the statistics, with what is in hand now."""
        return ConsumerStatistics(
            queues=work.queues,
            waiting=work.waiting,
            in_flight=work.in_flight,
            handled=self.handled + work.done,
            retried=self.retried,
            rejected=self.rejected,
            handler_calls=self.calls,
            handler_ms=self.milliseconds,
            lag=work.lag,
            queues_without_lag=work.queues_without_lag,
        )


class WorkInHand(NamedTuple):
    """The messages that a consumer has in hand. done: the first ones of batches that are not finished."""

    queues: int = 0
    waiting: int = 0
    in_flight: int = 0
    done: int = 0
    lag: int | None = None
    queues_without_lag: int = 0

    @classmethod
    def of_queues(cls, queues: Iterable[OwnedQueue]) -> "WorkInHand":
        """Return what is in hand of queues that are ours, or are being given up."""
        owned = list(queues)
        deliveries = [each for one in owned for each in one.work.deliveries]
        in_flight, done = (sum(counts) for counts in zip((0, 0), *map(_in_hand, deliveries), strict=True))
        lags = [_lag(each) for each in owned if each.is_ours]
        known = [lag for lag in lags if lag is not None]
        return cls(
            queues=len(lags),
            waiting=sum(len(each.held) for each in owned) - in_flight - done,
            in_flight=in_flight,
            done=done,
            lag=sum(known) if known else None,
            queues_without_lag=len(lags) - len(known),
        )

    @classmethod
    def of_deliveries(cls, deliveries: Iterable[Delivery]) -> "WorkInHand":
        """Return what is in hand of messages that belong to no queue."""
        found = list(deliveries)
        in_flight = sum(each.in_hand_count for each in found)
        return cls(waiting=sum(len(each.messages) for each in found) - in_flight, in_flight=in_flight)


def _in_hand(delivery: Delivery) -> tuple[int, int]:
    return delivery.in_hand_count, delivery.done_count


def _lag(owned: OwnedQueue) -> int | None:
    end = owned.cursor.end_offset
    if end is None:
        return None
    if not owned.held:  # All that was read is done; the rest was not selected.
        return max(0, end - owned.cursor.next_offset)
    done = sum(each.done_count for each in owned.work.deliveries)
    return max(0, end - owned.continues_at - done)
