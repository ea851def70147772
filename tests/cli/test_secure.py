"""`libra up --secure`: encrypted, with a first user, from the first start."""

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from libramq.cli.servers.secure_directory import SecureDirectory
from libramq.formats.properties_file import property_line, read_properties
from libramq.sync import Producer
from tests.cli.commands import end, libra, one_line, start
from tests.interop.cluster import Cluster
from tests.interop.ports import free_broker_port, free_port


@contextmanager
def secured(data: Path) -> Iterator[str]:
    """Run a secured cluster; yield the name server's address."""
    port = free_port()
    ports = ["--nameserver-port", str(port), "--broker-port", str(free_broker_port())]
    up = start(["up", "--secure", "--data", str(data), *ports])
    try:
        assert up.stdout is not None
        while "export LIBRA_ACCESS=" not in (line := up.stdout.readline()):
            assert line, up.stderr.read() if up.stderr else ""
        assert line.split("=")[1].strip() == str(data / "secure" / "access.properties")
        yield f"127.0.0.1:{port}"
    finally:
        end(up)


def test_only_users_may_do_anything_and_they_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, access = tmp_path / "data", tmp_path / "data" / "secure" / "access.properties"
    with secured(data) as namesrv:
        assert stat.S_IMODE(access.parent.stat().st_mode) == 0o700
        assert {stat.S_IMODE(file.stat().st_mode) for file in access.parent.iterdir()} == {0o600}
        plain = one_line(libra("send", "-n", namesrv, "-t", "T", "plain"))
        assert "the server may require TLS (tls=, or the file that LIBRA_ACCESS names)" in plain
        monkeypatch.setenv("LIBRA_ACCESS", str(access))
        assert libra("send", "-n", namesrv, "-t", "T", "hello").code == 0
        with Producer(namesrv=namesrv) as producer:
            producer.send("T", b"of a program without a secret in it")
        (stored,) = (data / "commitlog").iterdir()
        assert stat.S_IMODE(stored.stat().st_mode) == 0o600
        user = ("-u", "reader", "-p", "a password")
        made = libra("admin", "createUser", "-n", namesrv, "-c", "DefaultCluster", *user)
        assert made.code == 0, made
        again = one_line(libra("admin", "createUser", "-n", namesrv, "-c", "DefaultCluster", *user))
        assert again.endswith("The user is existed. It exists already: libra admin updateUser changes it.")
        encrypted = {name: text for name, text in read_properties(access).items() if name.startswith("tls.")}
        for signed in ({}, {"accessKey": "reader", "secretKey": "a password"}):
            file = tmp_path / "other.properties"
            file.write_text("".join(property_line(*each) for each in (encrypted | signed).items()))
            monkeypatch.setenv("LIBRA_ACCESS", str(file))
            file.chmod(0o644)
            refused = libra("send", "-n", namesrv, "-t", "T", "not allowed")
            assert (f"chmod 600 {file}" in refused.err) == bool(signed)
            assert refused.code != 0
            assert "NO_PERMISSION" in refused.err, refused
            kept = libra("admin", "wipeWritePerm", "-n", namesrv, "-b", "broker-a")
            assert "NO_PERMISSION" in kept.out + kept.err, kept
            audit_is_refused = libra("admin", "audit", "-n", namesrv)
            assert "NO_PERMISSION" in audit_is_refused.err, audit_is_refused
        monkeypatch.setenv("LIBRA_ACCESS", str(access))
        value = ("-s", "n", "-k", "k", "-v", "v")
        assert libra("admin", "updateKvConfig", "-n", namesrv, *value).code == 0
        of_names = data / "namesrv" / "audit.jsonl"
        assert stat.S_IMODE(of_names.stat().st_mode) == 0o600
        Cluster.wait_until(lambda: "PUT_KV_CONFIG" in of_names.read_text(), "the change", within_s=30)
        changes = libra("admin", "audit", "--file", str(of_names), "-k", "changed", "--json")
        assert [(each["user"], each["request"]) for each in json.loads(changes.out)] == [
            ("admin", "PUT_KV_CONFIG")
        ]
        refusals = ("admin", "audit", "--file", str(of_names), "-k", "refused")
        said = "WIPE_WRITE_PERM_OF_BROKER"
        Cluster.wait_until(lambda: said in libra(*refusals).out, "the refusal", within_s=30)
        shown = audited(namesrv, "created")
        assert [(each["user"], each["request"], each["resources"]) for each in shown] == [
            ("admin", "AUTH_CREATE_USER", ["User:reader"])
        ]
        Cluster.wait_until(
            lambda: {each["user"] for each in audited(namesrv, "refused")} == {None, "reader", "admin"},
            "the refusals of all",
            within_s=30,
        )
        table = libra("admin", "audit", "-n", namesrv, "-u", "admin", "-m", "1").out
        assert "AUTH_CREATE_USER" in table or "signedIn" in table
        policy = ("-s", "User:reader", "-r", "Topic:T", "-a", "Pub", "-d", "Allow")
        for change in ("createAcl", "updateAcl"):
            changed = libra("admin", change, "-n", namesrv, "-c", "DefaultCluster", *policy)
            assert changed.code == 0, changed
    authority, password = access.with_name("ca.pem").read_bytes(), access.read_bytes()
    monkeypatch.setenv("LIBRA_ACCESS", str(access))
    with secured(data) as namesrv:
        found = libra("tail", "-n", namesrv, "-t", "T", "--from", "earliest", "--count", "1")
        assert "hello" in found.out
    assert (access.with_name("ca.pem").read_bytes(), access.read_bytes()) == (authority, password)


def audited(namesrv: str, kind: str) -> list[dict[str, Any]]:
    """Return the events of a kind; refusals appear after a second."""
    found: list[dict[str, Any]] = []

    def has_some() -> bool:
        done = libra("admin", "audit", "-n", namesrv, "-k", kind, "--json")
        found[:] = json.loads(done.out or "[]")
        return bool(found)

    Cluster.wait_until(has_some, kind, within_s=30)
    return found


@pytest.mark.parametrize("what", ["readable", "a link", "planted in an open directory"])
def test_files_that_others_may_have_made_are_not_believed(tmp_path: Path, what: str) -> None:
    data = tmp_path / "data"
    secure = data / "secure"
    data.mkdir()
    if what == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        secure.symlink_to(tmp_path / "elsewhere")
    else:
        secure.mkdir(mode=0o700)
        (secure / "access.properties").write_text("accessKey=admin\nsecretKey=theirs\n")
        (secure / "access.properties").chmod(0o644 if what == "readable" else 0o600)
        data.chmod(0o755 if what == "readable" else 0o770)
    refused = one_line(libra("up", "--secure", "--data", str(data), "--nameserver-port", str(free_port())))
    assert "must be yours alone" in refused
    assert not (secure / "ca.pem").exists()


def test_a_directory_it_creates_is_private_under_any_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        SecureDirectory(tmp_path / "data", ["127.0.0.1"])
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700


def test_its_own_settings_cannot_be_set_and_damaged_files_are_named(tmp_path: Path) -> None:
    up = ("up", "--secure", "--data", str(tmp_path / "data"), "--nameserver-port", str(free_port()))
    assert "--secure sets it" in one_line(libra(*up, "--set", "authenticationEnabled=false"))
    key = tmp_path / "data" / "secure" / "ca.key"
    key.write_text("spoilt")
    assert f"{key.with_name('ca.pem')} or ca.key cannot be used" in one_line(libra(*up))
