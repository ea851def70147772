"""Tests of a send's attempts, outcome by outcome."""

import random

import pytest

from libramq.client.producing.fault_strategy import FaultStrategy
from libramq.client.producing.send_attempts import Attempt, SendAttempts
from libramq.client.routing.publish_info import publish_info
from libramq.errors import (
    ConnectFailed,
    ConnectionLost,
    InvalidMessage,
    RemoteError,
    RequestTimeout,
    broker_error,
)
from tests.client.consuming.examples import route

INFO = publish_info("T", route(2, brokers=("a", "b")))
TRANSPORT = [ConnectFailed("x"), ConnectionLost("x"), RequestTimeout("x"), RemoteError("x")]


def attempts(*, chosen_queue=None, retries=2, timeout_ms=3000, not_safe=False, enabled=False):
    strategy = FaultStrategy(random.Random(5), enabled=enabled)
    return SendAttempts(
        strategy,
        INFO,
        chosen_queue,
        left=1 + retries,
        deadline_ms=100 + timeout_ms,
        retry_when_not_safe=not_safe,
    )


def test_a_stored_message_ends_the_attempts():
    """There is one attempt, which may take the whole timeout."""
    send = attempts()
    first = send.next(100)
    assert first.queue in INFO.queues
    assert first.timeout_ms == 3000
    assert send.stored(105, safe=True) is None


@pytest.mark.parametrize("error", TRANSPORT, ids=lambda error: type(error).__name__)
def test_transport_failures_alternate_brokers_until_the_attempts_are_used_up(error):
    """There are 1 + 2 attempts, at alternating brokers, within the timeout; then the last error is raised."""
    send = attempts()
    first = send.next(100)
    second = send.failed(error, 600)
    third = send.failed(error, 1100)
    assert isinstance(second, Attempt)
    assert isinstance(third, Attempt)
    assert first.queue.broker_name == third.queue.broker_name != second.queue.broker_name
    assert (second.timeout_ms, third.timeout_ms) == (2500, 2000)
    assert send.failed(error, 1600) is None


@pytest.mark.parametrize("code", [17, 14, 1, 2, 16, 204, 205, 1500])
def test_retryable_error_answers_go_to_another_broker(code):
    """These are the codes of retryResponseCodes."""
    send = attempts()
    first = send.next(100)
    following = send.failed(broker_error(code, "no"), 200)
    assert isinstance(following, Attempt)
    assert following.queue.broker_name != first.queue.broker_name


@pytest.mark.parametrize("code", [13, 26, 29, 3, 9999])
def test_other_error_answers_end_the_attempts(code):
    """Another broker would give the same answer."""
    send = attempts()
    send.next(100)
    error = broker_error(code, "no")
    assert send.failed(error, 200) is None


def test_local_errors_end_the_attempts():
    """A message that cannot be encoded is not sent twice."""
    send = attempts()
    send.next(100)
    error = InvalidMessage("too large")
    assert send.failed(error, 200) is None


def test_an_exhausted_timeout_ends_the_attempts():
    """It does so however many attempts are left."""
    send = attempts(retries=9)
    send.next(100)
    error = RequestTimeout("x")
    assert isinstance(send.failed(error, 3099), Attempt)
    assert send.failed(error, 3100) is None


def test_a_named_queue_is_kept():
    """Transport failures are retried there; an error answer of its broker is final."""
    queue = INFO.queues[1]
    send = attempts(chosen_queue=queue)
    assert send.next(100).queue == queue
    following = send.failed(ConnectionLost("x"), 200)
    assert isinstance(following, Attempt)
    assert following.queue == queue
    error = broker_error(2, "busy")
    assert send.failed(error, 300) is None


def test_a_message_stored_less_safely_is_retried_only_on_request():
    """The option is retryAnotherBrokerWhenNotStoreOK."""
    plain = attempts()
    plain.next(100)
    assert plain.stored(200, safe=False) is None
    careful = attempts(not_safe=True)
    first = careful.next(100)
    following = careful.stored(200, safe=False)
    assert following is not None
    assert following.queue.broker_name != first.queue.broker_name
    assert careful.stored(300, safe=True) is None


def test_failures_affect_the_next_send():
    """The strategy is shared, so the next send avoids the broker that failed."""
    strategy = FaultStrategy(random.Random(5), enabled=True)

    def one():
        return SendAttempts(strategy, INFO, None, left=1, deadline_ms=3000)

    send = one()
    failed = send.next(0).queue.broker_name
    send.failed(RequestTimeout("x"), 10)
    assert all(one().next(20).queue.broker_name != failed for _ in range(10))
