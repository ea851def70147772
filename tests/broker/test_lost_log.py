"""A broker whose commit log is gone: its groups lose the lost messages, and not one more."""

import shutil
from pathlib import Path

import pytest

from libramq.errors import StoreDamaged
from tests.broker.brokers import Conversation
from tests.fakes import FakePeer


def consumed(root: Path) -> None:
    """Leave a stopped broker's files: a queue with ten messages, all of them committed by G."""
    talk = Conversation(root)
    for number in range(10):
        talk.send(FakePeer(), body=b"%d" % number)
    talk.broker.offsets.commit("G", "T", 0, 10)
    talk.broker.offsets.write()
    talk.broker.close()


@pytest.mark.parametrize("lost", ["log", "log and queues", "log, queues and recovery point"])
@pytest.mark.parametrize("damaged", ["skip", "cut"])
def test_a_group_reads_every_message_stored_after_its_log_was_lost(tmp_path: Path, lost: str, damaged: str):
    """Its committed offsets were beyond the new queues, so it skipped as many messages as it had read."""
    consumed(tmp_path)
    shutil.rmtree(tmp_path / "commitlog")
    if "queues" in lost:
        shutil.rmtree(tmp_path / "consumequeue")
    if "point" in lost:
        (tmp_path / "libra.checkpoint").unlink()
    else:
        with pytest.raises(StoreDamaged, match="--damaged=skip"):
            Conversation(tmp_path)
    talk = Conversation(tmp_path, damaged=damaged)
    committed = talk.broker.offsets.query("G", "T", 0)
    assert committed == talk.broker.store.max_offset("T", 0)
    talk.send(FakePeer(), body=b"new")
    result = talk.broker.store.read("T", 0, committed, 32)
    assert result.count == 1
    assert committed == (10 if damaged == "skip" and lost == "log" else 0)
    talk.broker.close()


def test_a_queue_whose_files_were_lost_is_built_again_and_no_offset_moves(tmp_path: Path):
    consumed(tmp_path)
    shutil.rmtree(tmp_path / "consumequeue" / "T")
    talk = Conversation(tmp_path)
    assert talk.broker.store.max_offset("T", 0) == 10
    assert talk.broker.offsets.query("G", "T", 0) == 10
    talk.broker.close()
