"""A name server's audit: changes, logins and refusals, in files of a bounded size."""

import json
from pathlib import Path
from typing import Any

import pytest

from libramq.auth.audit import COLLECTED_MS, KINDS_MAX
from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.errors import ConfigError
from libramq.formats.access import UserInfo
from libramq.formats.document import encode_body
from libramq.nameserver import audit_file
from libramq.nameserver.audit_file import AuditFile
from libramq.remoting.body.cluster import RegisterBrokerBody
from libramq.remoting.command import Command
from libramq.remoting.credentials import Credentials, sign
from libramq.remoting.headers import encode_header
from tests.fakes import ManualClock
from tests.nameserver.tables import header, table
from tests.nameserver.test_processor import Server

ALICE, BROKERS = Credentials("alice", "the-secret"), Credentials("brokers", "theirs")
VALUE = {"namespace": "n", "key": "k", "value": "hush"}


def audited(path: Path | None) -> Server:
    return Server(BROKERS, operator=UserInfo(username="alice", password="the-secret"), audit_path=path)


def ask(server: Server, who: Credentials, code: R, ext: dict[str, str], body: bytes = b"") -> int:
    request = sign(Command(code=code, ext=ext, body=body), who)
    return server.ask(code, request.ext, request.body).code


def after_a_second(server: Server) -> None:
    server.clock.advance(COLLECTED_MS)
    server.engine.tick()
    server.performer.follow()
    server.threads.run_all()


def events(*files: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for each in files for line in each.read_bytes().splitlines()]


def test_changes_sign_ins_and_refusals_are_in_files_of_their_own(tmp_path: Path):
    path = tmp_path / "namesrv" / "audit.jsonl"
    server = audited(path)
    assert ask(server, ALICE, R.PUT_KV_CONFIG, VALUE) == C.SUCCESS
    assert ask(server, ALICE, R.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"}) == C.SUCCESS
    assert ask(server, ALICE, R.DELETE_TOPIC_IN_NAMESRV, {"topic": "T"}) == C.SUCCESS
    assert ask(server, ALICE, R.UPDATE_NAMESRV_CONFIG, {}, b"enableTopicList=false") == C.SUCCESS
    assert ask(server, ALICE, R.DELETE_KV_CONFIG, VALUE) == C.SUCCESS
    assert ask(server, Credentials("eve", "guessed"), R.DELETE_KV_CONFIG, VALUE) == C.NO_PERMISSION
    assert server.ask(R.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"}).code == C.NO_PERMISSION
    assert server.register("T").code == C.NO_PERMISSION, "the request is not signed"
    after_a_second(server)
    assert [(each["kind"], each["user"], each["request"], *each["resources"]) for each in events(path)] == [
        ("changed", "alice", "PUT_KV_CONFIG", "Value:n/k"),
        ("changed", "alice", "WIPE_WRITE_PERM_OF_BROKER", "Broker:broker-a"),
        ("deleted", "alice", "DELETE_TOPIC_IN_NAMESRV", "Topic:T"),
        ("changed", "alice", "UPDATE_NAMESRV_CONFIG", "Cluster:*"),
        ("deleted", "alice", "DELETE_KV_CONFIG", "Value:n/k"),
        ("signedIn", "alice", "RocketMQ"),
    ]
    refused = path.with_name("audit.jsonl.refused")
    assert {(each["user"], each["request"]) for each in events(refused)} == {
        ("eve", "DELETE_KV_CONFIG"), (None, "ADD_WRITE_PERM_OF_BROKER"), (None, "REGISTER_BROKER"),
    }  # fmt: skip
    for each in (path, refused):
        assert each.stat().st_mode & 0o777 == 0o600
        assert not [word for word in (b"hush", b"the-secret", b"guessed") if word in each.read_bytes()]


def test_brokers_that_come_and_leave_are_recorded(tmp_path: Path):
    server = audited(tmp_path / "audit.jsonl")
    ext = encode_header(header())
    body = encode_body(RegisterBrokerBody(topic_config_serialize_wrapper=table("T", "U")))
    for code, sent in ((R.REGISTER_BROKER, body), (R.REGISTER_BROKER, body), (R.UNREGISTER_BROKER, b"")):
        assert ask(server, BROKERS, code, ext, sent) == C.SUCCESS
    after_a_second(server)
    found = events(tmp_path / "audit.jsonl")
    assert [(each["kind"], each["user"], each["request"], each["resources"][0]) for each in found] == [
        ("created", "brokers", "REGISTER_BROKER", "Broker:broker-a"),
        ("deleted", "brokers", "UNREGISTER_BROKER", "Broker:broker-a"),
    ]


def test_a_flood_of_refusals_takes_no_more_than_its_two_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(audit_file, "FILE_BYTES_MAX", 10_000)
    path = tmp_path / "audit.jsonl"
    server = audited(path)
    assert ask(server, ALICE, R.PUT_KV_CONFIG, VALUE) == C.SUCCESS
    for second in range(60):
        for number in range(KINDS_MAX):
            ask(server, Credentials(f"eve-{second}-{number}", "guessed"), R.DELETE_KV_CONFIG, VALUE)
        after_a_second(server)
    assert [each["kind"] for each in events(path)] == ["changed", "signedIn"]
    refused = path.with_name("audit.jsonl.refused")
    former = refused.with_name("audit.jsonl.refused.1")
    assert 0 < refused.stat().st_size <= 10_000
    assert 0 < former.stat().st_size <= 20_000
    assert former.stat().st_mode & 0o777 == 0o600


def test_without_a_file_it_is_in_the_log_and_a_stop_writes_what_is_pending(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO")
    server = audited(None)
    ask(server, Credentials("eve", "guessed"), R.DELETE_KV_CONFIG, VALUE)
    after_a_second(server)
    assert "User:eve is not found." in caplog.text
    server = audited(tmp_path / "audit.jsonl")
    ask(server, ALICE, R.PUT_KV_CONFIG, VALUE)
    server.audit_file.close()
    assert len(events(tmp_path / "audit.jsonl")) == 2


def test_a_file_that_cannot_be_written_stops_the_start(tmp_path: Path):
    (tmp_path / "audit.jsonl").mkdir()
    with pytest.raises(ConfigError, match="auditPath"):
        AuditFile(ManualClock(), tmp_path / "audit.jsonl")
    (tmp_path / "open").mkdir(mode=0o777)
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(ConfigError, match="chmod o-w"):
        AuditFile(ManualClock(), tmp_path / "open" / "audit.jsonl")


def test_a_full_file_that_cannot_be_replaced_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Its descriptor was closed twice, and might have been reused for another file by then."""
    monkeypatch.setattr(audit_file, "FILE_BYTES_MAX", 1)
    (tmp_path / "audit.jsonl.1").mkdir()
    server = audited(tmp_path / "audit.jsonl")
    for _ in range(2):
        ask(server, ALICE, R.PUT_KV_CONFIG, VALUE)
        after_a_second(server)
    assert "Is a directory" in caplog.text
