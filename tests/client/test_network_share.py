"""Tests of the network thread that the consumers of a process share."""

import asyncio
import multiprocessing
import random
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest

from libramq.client.network_thread import THREAD_NAME, NetworkShare
from libramq.errors import LocalProtocolError


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == THREAD_NAME]


async def current() -> int:
    return threading.get_ident()


def test_shares_run_on_one_thread_which_ends_with_the_last():
    first, second = NetworkShare(), NetworkShare()
    assert first.run(current()).result() == second.run(current()).result()

    first.stop()
    assert second.run(current()).result() == threads()[0].ident
    second.stop()

    assert threads() == []


def test_a_share_that_stops_cancels_its_own_work_only():
    first, second = NetworkShare(), NetworkShare()
    ended: list[str] = []
    begun = threading.Barrier(3)

    async def work(name: str) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(None, begun.wait)
            await asyncio.Event().wait()
        finally:
            ended.append(name)

    of_first, of_second = first.run(work("first")), second.run(work("second"))
    begun.wait()
    first.stop()

    assert ended == ["first"]
    assert not of_second.done()
    with pytest.raises(CancelledError):
        of_first.result()
    second.stop()
    assert ended == ["first", "second"]


def test_a_stopped_share_refuses_work():
    share, other = NetworkShare(), NetworkShare()
    share.stop()
    share.stop()

    with pytest.raises(LocalProtocolError, match="has been stopped"):
        share.run(current())
    with pytest.raises(LocalProtocolError, match="has been stopped"):
        share.call_soon(threads)
    other.stop()
    assert threads() == []


def test_a_share_can_end_on_the_thread_itself():
    share = NetworkShare()
    (thread,) = threads()

    async def end() -> None:
        share.end()

    share.run(end()).result()
    thread.join(60)

    assert threads() == []


def test_shares_that_come_and_go_at_once_never_meet_an_ending_thread():
    seed = random.randrange(1 << 32)
    print("seed", seed)
    randomness = random.Random(seed)
    rounds = [randomness.randrange(1, 4) for _ in range(200)]

    def live(count: int) -> None:
        shares = [NetworkShare() for _ in range(count)]
        for share in shares:
            assert share.run(current()).result() in {thread.ident for thread in threads()}
            share.stop()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(live, rounds))

    assert threads() == []


def test_a_thread_that_cannot_start_is_shared_by_nobody(monkeypatch):
    """The next client had waited for it for ever."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            NetworkShare()

    share = NetworkShare()
    assert share.run(current()).result(60) == threads()[0].ident
    share.stop()


def _in_child(share: NetworkShare, answer: "multiprocessing.SimpleQueue[str]") -> None:
    share.stop()  # The parent's share: nothing happens.
    own = NetworkShare()
    own.run(current()).result()
    own.stop()
    answer.put("ran")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_child_of_a_fork_has_a_thread_of_its_own():
    share = NetworkShare()
    context = multiprocessing.get_context("fork")
    answer = context.SimpleQueue()
    child = context.Process(target=_in_child, args=(share, answer))
    child.start()
    child.join(60)

    assert child.exitcode == 0
    assert answer.get() == "ran"
    assert share.run(current()).result() == threads()[0].ident
    share.stop()
