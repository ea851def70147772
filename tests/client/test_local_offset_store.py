"""Tests of the local offset store, which reads and writes Apache's file; a damaged one is not empty."""

import pytest

from libramq.client.consuming.committing.local_offset_store import LocalOffsetStore
from libramq.errors import ConfigError, InvalidName
from libramq.filesystem import LocalFileSystem
from libramq.message.queue import MessageQueue

Q0, Q1 = MessageQueue("T", "a", 0), MessageQueue("T", "a", 1)
# As LocalFileOffsetStore of RocketMQ 5.3.3 writes it: RemotingSerializable.toJson(wrapper, true).
APACHE = """{
\t"offsetTable":{
\t\t{
\t\t\t"brokerName":"a",
\t\t\t"queueId":0,
\t\t\t"topic":"T"
\t\t}:17,
\t\t{
\t\t\t"brokerName":"a",
\t\t\t"queueId":1,
\t\t\t"topic":"T"
\t\t}:0
\t}
}"""


@pytest.fixture
def store(tmp_path):
    return LocalOffsetStore(tmp_path, "10.0.0.1@DEFAULT", "g", LocalFileSystem())


def loaded(store, tmp_path):
    again = LocalOffsetStore(tmp_path, "10.0.0.1@DEFAULT", "g", LocalFileSystem())
    again.load()
    return {queue: again.read(queue) for queue in (Q0, Q1)}


def test_written_offsets_are_read_back(store, tmp_path):
    """They are kept by client id and group. Earlier ones stay, and the backup has the same."""
    store.load()
    assert store.read(Q0) is None
    store.write([(Q0, 5)])
    store.write([(Q1, 7)])
    assert store.path == tmp_path / "10.0.0.1@DEFAULT" / "g" / "offsets.json"
    assert loaded(store, tmp_path) == {Q0: 5, Q1: 7}
    store.path.unlink()
    assert loaded(store, tmp_path) == {Q0: 5, Q1: 7}


@pytest.mark.parametrize(
    "text",
    [
        APACHE,
        '{"offsetTable":{{"brokerName":"a","queueId":0,"topic":"T"}:17,'
        '{"topic":"T","brokerName":"a","queueId":1}:0}}',
    ],
    ids=["pretty", "compact"],
)
def test_apaches_text_is_read(store, tmp_path, text):
    """It may be laid out in any way."""
    store.path.parent.mkdir(parents=True)
    store.path.write_text(text)
    assert loaded(store, tmp_path) == {Q0: 17, Q1: 0}


@pytest.mark.parametrize("text", ["", "{", '{"offsetTable":[]}', '{"offsetTable":{"x":1}}'])
def test_a_damaged_file_gives_way_to_its_backup(store, tmp_path, text):
    store.write([(Q0, 5)])
    store.write([(Q0, 6)])
    store.path.write_text(text)
    assert loaded(store, tmp_path)[Q0] == 6


def test_two_damaged_files_are_an_error(store, tmp_path):
    """Starting at the end would lose messages, starting at the beginning would repeat them."""
    store.path.parent.mkdir(parents=True)
    store.path.write_text("{")
    with pytest.raises(ConfigError, match="repair or remove"):
        loaded(store, tmp_path)


def test_a_failed_write_is_retried(tmp_path):
    """The next write does so."""

    class Full(LocalFileSystem):
        full = True

        def replace_text(self, path, text, *, backup=True):
            if self.full:
                raise OSError("no space left")
            super().replace_text(path, text, backup=backup)

    disk = Full()
    store = LocalOffsetStore(tmp_path, "10.0.0.1@DEFAULT", "g", disk)
    store.write([(Q0, 5)])
    disk.full = False
    store.write([(Q1, 7)])
    assert loaded(store, tmp_path) == {Q0: 5, Q1: 7}


def test_client_ids_cannot_leave_the_directory(tmp_path):
    """A client id becomes a part of the path."""
    with pytest.raises(InvalidName):
        LocalOffsetStore(tmp_path, "10.0.0.1@../x", "g", LocalFileSystem())
