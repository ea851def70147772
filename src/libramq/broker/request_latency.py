"""The latency of requests by code, for metrics, from the start of processing to the answer; and which
requests are logged as slow.

Waiting for the disk, for slaves and for name servers counts, and so do the turns of others between the steps
of a request. A held pull or poll waits for messages, so its answers are counted separately, and are never
slow.
Upstream: RemotingMetricsManager.java.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from libramq.clock import Clock, MonotonicMs
from libramq.codes import RequestCode, ResponseCode
from libramq.logs import get_logger
from libramq.rpc.request import Request

log = get_logger(__name__)

#: RemotingMetricsManager.getMetricsView.
BOUNDS_MS: Final = (1, 3, 5, 7, 10, 100, 1_000, 2_000, 3_000)
#: Ours: clients give up after 3 s (Java's sends), and users notice a delay of one second.
SLOW_MS: Final = 1_000
#: Ours: one line a second, because every request is slow if the disk stalls.
LOG_MS: Final = 1_000
#: Unknown codes are counted together, because a client may send any number.
UNKNOWN: Final = "unknown"
_REQUESTS: Final = {code.value: code.name.lower() for code in RequestCode}
_RESPONSES: Final = {code.value: code.name.lower() for code in ResponseCode}
#: The names of a group in requests; `a` is SEND_MESSAGE_V2's.
_GROUPS: Final = ("consumerGroup", "group", "lbGroup", "producerGroup", "a")
_SENDS: Final = frozenset(
    {RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE}
)
#: Messages that are stored, though less safely than requested.
_STORED: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    }
)


#: The most frequent codes of refused sends.
_REFUSALS: Final = (
    ResponseCode.SYSTEM_ERROR,
    ResponseCode.SYSTEM_BUSY,
    ResponseCode.SERVICE_NOT_AVAILABLE,
    ResponseCode.MESSAGE_ILLEGAL,
    ResponseCode.NO_PERMISSION,
    ResponseCode.TOPIC_NOT_EXIST,
)


class Answered(NamedTuple):
    """The kind of an answer: its request and response codes, and whether the request was held."""

    request: str
    response: str
    is_held: bool


@dataclass(slots=True)
class Times:
    """The number of answers up to each bound and beyond the last, and their total time."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_MS) + 1))
    sum_ms: int = 0

    def note(self, took_ms: int) -> None:
        """Count an answer."""
        self.counts[bisect_left(BOUNDS_MS, took_ms)] += 1
        self.sum_ms += took_ms


class RequestLatency:
    """The latencies since the start. Written on the loop's thread; others read values that only grow."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._logged_ms: MonotonicMs | None = None
        self._unlogged = 0
        self._times: dict[tuple[int, int, bool], Times] = {}

    def answered(self, request: Request, response_code: int) -> None:
        """Count an answer that is about to be sent."""
        code = request.command.code
        now_ms = self._clock.monotonic_ms()
        took_ms = now_ms - request.monotonic_ms
        key = (code if code in _REQUESTS else -1, response_code, request.is_held)
        times = self._times.get(key)
        if times is None:
            times = self._times[key] = Times()
        times.note(took_ms)
        if took_ms >= SLOW_MS and not request.is_held:
            self._log(request, took_ms, now_ms)

    def times(self) -> Mapping[Answered, Times]:
        """Return the latencies by kind of answer."""
        return {
            Answered(_REQUESTS.get(code, UNKNOWN), _RESPONSES.get(response, UNKNOWN), is_held): times
            for (code, response, is_held), times in self._times.copy().items()
        }

    def refused_sends(self) -> Mapping[str, int]:
        """Return the number of refused sends, by response code."""
        # Increases are visible only from 0 on.
        refused = dict.fromkeys(map(_RESPONSES.__getitem__, _REFUSALS), 0)
        for (code, response, _), times in self._times.copy().items():
            if code in _SENDS and response not in _STORED:
                name = _RESPONSES.get(response, UNKNOWN)
                refused[name] = refused.get(name, 0) + sum(times.counts)
        return refused

    def _log(self, request: Request, took_ms: int, now_ms: MonotonicMs) -> None:
        if self._logged_ms is not None and now_ms - self._logged_ms < LOG_MS:
            self._unlogged += 1
            return
        ext = request.command.ext
        more = {"more": self._unlogged} if self._unlogged else {}
        log.warning(
            "slow request",
            request=_REQUESTS.get(request.command.code, UNKNOWN),
            ms=took_ms,
            client=request.peer.address,
            group=next((ext[name] for name in _GROUPS if name in ext), None),
            **more,
        )
        self._logged_ms, self._unlogged = now_ms, 0
