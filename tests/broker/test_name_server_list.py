"""A broker whose name servers are listed on a web page: it registers according to the page."""

from pathlib import Path

import pytest

from libramq.broker.broker_conf import broker_config
from libramq.broker.cluster.name_server_list import FIRST_MS, LOOK_MS
from libramq.broker.config import BrokerConfig
from libramq.codes import RequestCode as R
from libramq.errors import ConfigError, NameServerUnavailable
from libramq.kernel.effect import Thread
from libramq.rpc.question import Question
from tests.broker.brokers import Conversation, find_answer, send_header
from tests.fakes import FakePeer

URL = "http://config.example:8080/rocketmq/nsaddr"
ONE, TWO, THREE = "127.0.0.1:9876", "127.0.0.1:9877", "127.0.0.1:9878"


class Listed(Conversation):
    """A broker and its page, which the test writes. page=None: the page cannot be read."""

    def __init__(self, root: Path, page: tuple[str, ...] | None) -> None:
        self.page = page
        self.fetched: list[str] = []
        super().__init__(root, namesrv_addr=URL, fetch_name_servers=self._fetch)
        self.tried = 0
        self.broker.registration.begin(self._tried)
        self.look()

    def _tried(self) -> None:
        self.tried += 1

    def _fetch(self, url: str) -> tuple[str, ...]:
        self.fetched.append(url)
        if self.page is None:
            raise NameServerUnavailable(f"no list of name servers at {url}")
        return self.page

    def look(self, after_ms: int = 0) -> None:
        """Let time pass, and run the threads' due work: fetching the page and encoding registrations."""
        if after_ms:
            self.advance(after_ms)
        self.coordinate()
        self.threads.run_all(Thread.DISK)
        self.coordinate()
        self.threads.run_all(Thread.COMPUTE)

    def tick(self) -> None:
        """Run due work; name servers answer heartbeats at once."""
        super().tick()
        beats = [each for each in self.performer.asked if each.call.code == R.BROKER_HEARTBEAT]
        self.performer.asked = [each for each in self.performer.asked if each not in beats]
        for question in beats:
            question.answered(None)

    def registered_at(self) -> list[str]:
        """Return where the broker has registered since the last call, and answer each registration."""
        found: list[Question] = [each for each in self.performer.asked if each.call.code == R.REGISTER_BROKER]
        self.performer.asked = [each for each in self.performer.asked if each not in found]
        for question in found:
            question.answered(None)
        self.performer.follow()
        return sorted({each.address for each in found})


def test_a_broker_registers_at_the_name_servers_of_the_page(tmp_path: Path):
    talk = Listed(tmp_path, (ONE, TWO))
    assert talk.fetched == [URL]
    assert talk.registered_at() == [ONE, TWO]
    assert talk.tried == 1
    talk.look(LOOK_MS - 1)
    assert len(talk.fetched) == 1
    talk.close()


def test_a_broker_follows_the_page(tmp_path: Path):
    """It registers at new name servers and no longer at removed ones, which no longer delay answers."""
    talk = Listed(tmp_path, (ONE, TWO))
    talk.registered_at()
    talk.page = (TWO, THREE)
    talk.look(LOOK_MS - 100)
    talk.registered_at()
    talk.advance(100)  # The page is about to be fetched.
    peer, command = FakePeer(), talk.command(R.SEND_MESSAGE_V2, send_header("New"), b"hello")
    talk.give(peer, command)
    assert find_answer(peer, command) is None, "the name servers do not know the topic yet"
    talk.look()
    talk.look(10)
    assert {TWO, THREE} <= set(talk.registered_at())
    assert find_answer(peer, command) is not None
    talk.look(60_000)
    assert talk.registered_at() == [TWO, THREE]
    talk.close()


def test_the_name_servers_of_before_are_used_while_the_page_cannot_be_read(tmp_path: Path):
    talk = Listed(tmp_path, (ONE,))
    talk.registered_at()
    talk.page = None
    talk.look(LOOK_MS)
    talk.look(60_000)
    assert ONE in talk.registered_at()
    talk.close()


def test_a_broker_starts_without_the_page_and_looks_again_soon(tmp_path: Path, caplog):
    talk = Listed(tmp_path, None)
    assert talk.tried == 1
    assert talk.registered_at() == []
    talk.look(FIRST_MS)
    assert caplog.text.count("the name servers of before are used") == 1
    talk.page = (ONE,)
    talk.look(FIRST_MS)
    assert talk.registered_at() == [ONE]
    talk.close()


def test_a_broker_that_leaves_looks_no_more(tmp_path: Path):
    talk = Listed(tmp_path, (ONE,))
    talk.registered_at()
    talk.broker.leave(lambda: None)
    talk.look(LOOK_MS)
    assert len(talk.fetched) == 1
    talk.close()


def test_the_page_of_an_address_server_is_named_as_in_apaches_configuration():
    def url(**options: str) -> str | None:
        config, unknown = broker_config({"fetchNamesrvAddrByAddressServer": "true", **options})
        assert not unknown
        return config.address_server_url

    assert url(rmqAddressServerDomain="config.example") == URL
    assert (
        url(rmqAddressServerDomain="config.example:80", rmqAddressServerSubGroup="mine")
        == "http://config.example:80/rocketmq/mine"
    )
    assert BrokerConfig().address_server_url is None
    with pytest.raises(ConfigError, match="needs rmqAddressServerDomain"):
        url()
