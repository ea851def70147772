"""Persistence: a write that fails for any reason is retried."""

import errno
import json

from libramq.broker.files.persistence import FOLD_MS
from libramq.kernel.effect import Thread
from libramq.store import StoreMessage
from tests.broker.brokers import Conversation
from tests.fakes import FakePeer


def offsets_writes(talk: Conversation) -> list:
    """Let progress come due, and return its writes before the threads do them."""
    talk.advance(10_000)
    talk.flush()
    talk.advance(10_000)
    return [each for each in talk.threads.work if each[0] is Thread.DISK and "Progress" in repr(each[1])]


def test_a_topic_of_apaches_broker_with_queues_of_batches_gets_such_queues(tmp_path):
    """Apache's broker does not start beside a queue of the wrong kind."""
    config = tmp_path / "config"
    config.mkdir()
    topic = {"topicName": "Batched", "attributes": {"queue.type": "BatchCQ"}, "perm": 6}
    (config / "topics.json").write_text(json.dumps({"topicConfigTable": {"Batched": topic}}))
    talk = Conversation(tmp_path)
    talk.broker.store.append_batch([StoreMessage("Batched", 0, b"a")])
    talk.close()
    assert [path.name for path in (tmp_path / "batchconsumequeue").iterdir()] == ["Batched"]
    assert not (tmp_path / "consumequeue").exists()


def test_a_progress_file_is_written_again_after_an_unexpected_failure(tmp_path):
    talk = Conversation(tmp_path)
    talk.broker.offsets.commit("G", "T", 0, 0)
    talk.performer.follow()
    (work,) = offsets_writes(talk)
    talk.threads.work.remove(work)
    work[2](ValueError("a bug"))
    (work,) = offsets_writes(talk)
    talk.threads.work.remove(work)
    talk.threads.finish(work)
    assert not talk.broker.ledger.has_changes
    talk.close()


def test_a_table_whose_journal_cannot_be_closed_does_not_keep_others_from_their_files(tmp_path, monkeypatch):
    """A network file system may refuse to close it; then no table was written until the broker stopped."""
    talk = Conversation(tmp_path)
    opened, close, paths = talk.disk.open, talk.disk.close, {}

    def noted(path, **how):
        file = opened(path, **how)
        paths[file] = path.name
        return file

    def refused_once(file):
        close(file)
        if paths.pop(file, "").startswith("subscriptionGroup.json.journal"):
            monkeypatch.setattr(talk.disk, "close", close)
            raise OSError(errno.EIO, "a test")

    monkeypatch.setattr(talk.disk, "open", noted)
    monkeypatch.setattr(talk.disk, "close", refused_once)
    talk.beat(FakePeer(), "client", group="New")
    for topic in ("First", "Second"):
        talk.create_topic(topic)
        talk.advance(FOLD_MS)
        talk.threads.run_all(Thread.DISK)
    assert talk.disk.close == close
    assert '"Second"' in (tmp_path / "config" / "topics.json").read_text()
    talk.close()
