"""Wrong input yields one line that names the mistake and the remedy, exit code 2, and no traceback."""

import subprocess
import sys

import pytest
import typer

import libramq
from libramq.broker.broker_conf import broker_config
from libramq.cli.main import app, run
from libramq.errors import ConfigError
from libramq.nameserver.config import name_server_config
from libramq.transport.access import environment_access
from tests.cli.commands import libra, one_line


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["up", "--prot", "1"], "No such option: --prot"),
        (["upp"], "No such command 'upp'"),
        (["send", "-t"], "-t"),
        (["send", "body"], "Missing option '-t'"),
        (["admin", "topicroute"], "No such command 'topicroute'"),
        (["admin", "updateTopic", "-t", "T", "-r", "many"], "Invalid value for '-r'"),
        (["nameserver", "--port", "70000"], "Invalid value for '--port'"),
    ],
)
def test_unknown_arguments_are_named(arguments, line):
    said = one_line(libra(*arguments))
    assert line in said
    assert "see libra" in said
    assert said.endswith("--help")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["send", "-n", "127.0.0.1:1", "-t", "T", "x"], "127.0.0.1:1"),
        (["tail", "-n", "127.0.0.1:1", "-t", "T"], "127.0.0.1:1"),
        (
            ["admin", "topicList", "-n", "127.0.0.1:1"],
            "127.0.0.1:1 (is it running?): Connection refused. Start one (libra up)",
        ),
        (
            ["groups", "-n", "127.0.0.1:1"],
            "127.0.0.1:1 (is it running?): Connection refused. Check that it runs (`libra up`",
        ),
        (
            ["admin", "brokerStatus", "-b", "127.0.0.1:1"],
            "127.0.0.1:1 (is it running?): Connection refused; libra admin clusterList lists",
        ),
        (["admin", "topicList", "-n", "nonsense"], "'nonsense' is not an address; write host:port"),
        (["send", "-t", "../x", "y"], "the topic '../x' has characters other than"),
        (["send", "-t", "T", ""], "a body has between 1 and"),
        (["tail", "-t", "T\udcff"], "the topic 'T\\udcff' has characters other than"),
        (["tail", "-t", "T", "--from", "yesterday"], "--from yesterday: earliest, latest or a time"),
        (["admin", "updateTopic", "-t", "T"], "name the brokers: -c CLUSTER"),
        (["admin", "updateTopic", "-t", "T", "-c", "C", "-b", "h:1"], "name the brokers: -c CLUSTER"),
        (["admin", "updateTopic", "-t", "T", "-c", "C", "-p", "7"], "2 is write, 4 read, 6 both"),
        (["admin", "updateTopic", "-t", "T", "-c", "C", "-r", "0"], "0 queues; 1 to"),
        (["admin", "updateTopic", "-t", "T/../x", "-c", "C"], "the topic 'T/../x' has characters"),
        (["admin", "consumerConnection", "-g", "a b"], "the group 'a b' has characters"),
        (["nameserver", "--host", "0.0.0.0"], "refusing to listen on 0.0.0.0"),
        (["up", "--advertise", "broker.example"], "--advertise 'broker.example' is not an IP address"),
        (["up", "--advertise", "0.0.0.0"], "--advertise 0.0.0.0: no client can connect to such an address"),
        (["up", "--set", "recallMessageEnabled=true"], "no such option; did you mean recallMessageEnable?"),
        (["up", "--set", "aclEnable=true"], "aclEnable=true: users and policies are those of ACL 2.0"),
        (["up", "--set", "listenPort=1"], "--set listenPort: libra up sets it"),
        (["up", "--advertise", "10.0.0.11"], "add --host 10.0.0.11 and --allow-public"),
        (["up", "--host", "0.0.0.0"], "--allow-public if the network is trusted"),
        (["broker", "-c", "/nowhere/broker.conf"], "cannot read /nowhere/broker.conf"),
    ],
)
def test_impossible_requests_are_one_clear_line(arguments, line):
    assert line in one_line(libra(*arguments))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("listenPort=many", "listenPort=many; a whole number is needed"),
        ("listenPort=30_911", "listenPort=30_911; a whole number is needed"),
        (f"listenPort={'9' * 5_000}", f"listenPort={'9' * 64}… (5000 characters); a whole number is needed"),
        ("namesrvAddr=127.0.0.1:99999", "broker.conf: namesrvAddr: '127.0.0.1:99999' is not an address"),
        ("namesrvAddr=::::", "broker.conf: namesrvAddr: '::::' is not an address"),
        ("autoCreateTopicEnable=yes", "autoCreateTopicEnable=yes; true or false"),
        ("flushDiskType=SOMETIMES", "flushDiskType 'SOMETIMES'; ASYNC_FLUSH or SYNC_FLUSH"),
        ("bindAddress=0.0.0.0", "refusing to listen on 0.0.0.0"),
        ("brokerName=../x", "'../x'"),
        ("brokerName my broker", "broker.conf: the brokerName 'my broker' has characters other than"),
        ("brokerIP1=224.0.0.1", "brokerIP1 224.0.0.1: no client can connect to such an address"),
        ("brokerIP1=10.0.0.11", "add bindAddress=10.0.0.11 and allowPublic=true"),
    ],
)
def test_an_impossible_value_in_broker_conf_is_named(tmp_path, text, line):
    (tmp_path / "broker.conf").write_text(text + "\n")
    assert line in one_line(libra("broker", "-c", "broker.conf", cwd=tmp_path))


def test_a_data_directory_that_cannot_be_created_is_named():
    assert "/proc/nowhere" in one_line(libra("up", "--data", "/proc/nowhere"))


@pytest.mark.parametrize("data", ["file", "file/below"])
def test_a_data_directory_that_is_a_file_is_named(tmp_path, data):
    (tmp_path / "file").touch()
    said = one_line(libra("up", "--data", data, cwd=tmp_path))
    assert said.endswith("file: this is a file; name a directory")


@pytest.mark.parametrize("text", ["listenPort=30_911", "listenPort=-1", f"listenPort={'9' * 5_000}"])
def test_an_impossible_port_of_a_name_server_is_named(tmp_path, text):
    (tmp_path / "namesrv.conf").write_text(text + "\n")
    line = one_line(libra("nameserver", "-c", "namesrv.conf", cwd=tmp_path))
    assert f"namesrv.conf: {text[:70]}" in line
    assert len(line) < 200


def test_signs_of_numbers_are_read_as_java_reads_them():
    assert broker_config({"listenPort": "+30911"})[0].listen_port == 30_911
    assert name_server_config({"listenPort": "+30911"})[0].listen_port == 30_911


def test_a_fault_in_the_file_of_access_is_named_once(tmp_path, monkeypatch):
    file = tmp_path / "access"
    monkeypatch.setenv("LIBRA_ACCESS", str(file))
    for content, why in ((None, "No such file"), ("a=\\u12", "line 1"), ("a=b", "access has no a")):
        if content is not None:
            file.write_text(content)
        with pytest.raises(ConfigError) as caught:
            environment_access()
        assert str(caught.value).startswith("LIBRA_ACCESS")
        assert why in str(caught.value)
        assert str(caught.value).count(str(file)) == 1


def test_help_is_quick_because_nothing_is_loaded_for_it():
    code = "import sys; from libramq.cli.main import run; run(['--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Start a name server and a broker, ready for clients" in done.stdout
    loaded = set(done.stdout.splitlines()[-1].split())
    assert loaded & {"libramq.cli.admin.commands"}
    assert not loaded & {
        "structlog",
        "msgspec",
        "uvloop",
        "libramq.broker",
        "libramq.client",
        "libramq.store",
    }


def test_completing_a_command_line_loads_no_logger(monkeypatch: pytest.MonkeyPatch):
    """The shell waits for it; options already typed are parsed as well."""
    monkeypatch.setenv("_LIBRA_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "libra tail --log-level debug --")
    monkeypatch.setenv("COMP_CWORD", "4")
    code = "import atexit, sys; atexit.register(lambda: print(*sys.modules))\n"
    code += "sys.argv = ['libra']; from libramq.cli.main import run; run([])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "--namesrvAddr" in done.stdout, done
    loaded = set(done.stdout.splitlines()[-1].split())
    assert loaded & {"libramq.cli.admin.commands"}
    assert not loaded & {"structlog", "libramq.logs"}


def test_success_exits_with_0(capsys):
    assert run(["admin", "updateTopic", "--help"]) == 0
    assert "--writeQueueNums" in capsys.readouterr().out


def test_help_names_no_type_for_flags(capsys):
    """`--once <bool>` would look as if the option took a value."""
    assert run(["groups", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--once" in shown
    assert "bool" not in shown
    assert "-h" in shown


def test_the_version_is_printed(capsys):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"libra {libramq.__version__}\n"


def test_python_runs_the_package_as_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "libramq", "--version"], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == (f"libra {libramq.__version__}\n", "")


def test_a_shell_completes_commands(capsys, monkeypatch):
    for name, value in {
        "_LIBRA_COMPLETE": "complete_bash",
        "COMP_WORDS": "libra gr",
        "COMP_CWORD": "1",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        run([])
    assert ended.value.code == 0
    assert capsys.readouterr().out.split() == ["groups"]


def commands_with_arguments(command=None, path=()):
    """Yield the path of every command of `libra` that does nothing without arguments."""
    command = command or typer.main.get_command(app)
    below = getattr(command, "commands", {})
    if (below and not command.invoke_without_command) or any(one.required for one in command.params):
        yield path
    for name in below:
        yield from commands_with_arguments(below[name], (*path, name))


@pytest.mark.parametrize("path", list(commands_with_arguments()), ids=" ".join)
def test_a_command_without_its_arguments_shows_its_help(path, capsys):
    assert run(list(path)) == 2
    shown = capsys.readouterr()
    assert f"Usage: {' '.join(['libra', *path])}" in shown.out
    assert shown.err == ""
