"""The server commands: composing, announcing (also to systemd) and stopping the servers of `libra up`,
`nameserver` and `broker`, with refusals of invalid configuration, and warnings.
"""

import asyncio
import contextlib
import os
import shlex
import socket
import stat
import sys
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from libramq.broker.broker_conf import advice, broker_config, load_broker_config, option_value
from libramq.broker.config import CREDENTIALS_OPTION, INITIAL_USER_OPTION, SECRET_OPTIONS, BrokerConfig
from libramq.broker.shell import BrokerServer
from libramq.cli.options import Damaged, LogLevel, chosen_name_servers
from libramq.cli.running import Service, StopSignal
from libramq.cli.servers.broker_children import BrokerChildren
from libramq.cli.servers.layout import AUDIT_FILE, directories, kv_file
from libramq.cli.servers.memory import calm_garbage_collector, keep_freed_memory
from libramq.cli.servers.ports import NAME_SERVER_PORT, choose_ports, further_broker_ports
from libramq.clock import SystemClock
from libramq.errors import ConfigError, LibraError, needs_extra
from libramq.filesystem import LocalFileSystem
from libramq.formats.access import UserInfo
from libramq.formats.properties_file import parse_properties, read_properties, read_properties_files
from libramq.nameserver import NameServer
from libramq.nameserver.config import NameServerConfig, name_server_config
from libramq.remoting.credentials import Credentials, parse_credentials
from libramq.secret_bits import SYSTEM_SECRETS
from libramq.transport.address import (
    bind_address,
    check_announced,
    check_bind_address,
    is_loopback,
    join_address,
)
from libramq.transport.admission import raise_limit
from libramq.transport.server_tls import encryption
from libramq.transport.tls_options import PREFIX as TLS_PREFIX
from libramq.transport.tls_options import tls_options

if TYPE_CHECKING:
    from libramq.cli.servers.secure_directory import SecureDirectory

Failure = Callable[[], Coroutine[Any, Any, LibraError]]

#: Options that `libra up` sets itself.
_OF_UP: Final = (
    "brokerName", "brokerId", "brokerRole", "brokerIP1", "bindAddress", "allowPublic", "listenPort",
    "namesrvAddr", "storePathRootDir", "kafkaListenPort", "metricsExporterType", "metricsPromExporterPort",
    CREDENTIALS_OPTION,
)  # fmt: skip

#: Options with secrets.
_SECRETS: Final = frozenset({*SECRET_OPTIONS, "tls.server.keyPassword", "tls.client.keyPassword"})
#: Ours: the size of a SHA-256 digest; HMAC uses at most a block of 64 bytes.
SECRET_BYTES: Final = 32
#: RFC 5737, RFC 3849: documentation addresses. Connecting a datagram socket to one sends nothing.
_ELSEWHERE: Final = {socket.AF_INET: ("192.0.2.1", 9), socket.AF_INET6: ("2001:db8::1", 9)}
_LOOPBACK: Final = "127.0.0.1"
#: Names by which local programs reach the servers, whatever these advertise.
_OWN_NAMES: Final = (_LOOPBACK, "::1", "localhost")
#: Wildcard addresses, each with the loopback address that reaches it: "::" does not accept IPv4.
_WILDCARDS: Final = {"": _LOOPBACK, "0.0.0.0": _LOOPBACK, "::": "::1"}


async def up(
    *,
    nameserver_port: int | None,
    broker_port: int | None,
    brokers: int,
    metrics_port: int | None,
    kafka_port: int | None,
    host: str | None,
    data: Path,
    advertise: str | None,
    allow_public: bool,
    secure: bool,
    config_files: Sequence[Path],
    settings: Sequence[str],
    keep_going: bool,
    damaged: Damaged | None,
    log_level: LogLevel,
) -> None:
    """Run the name server and the first broker here, other brokers in their own processes, until a signal."""
    host = _listening(host, advertise, allow_public=allow_public)
    stores = directories(data, brokers)
    ports = choose_ports(host, nameserver_port, broker_port)
    further, remarks = further_broker_ports(host, ports, brokers - 1)
    advertised = advertise or _advertised(host)
    properties = _properties(config_files, settings)
    credentials = _credentials(host, brokers, is_secure=secure)
    secured = _secured(data, {advertised, host}, properties) if secure else None
    nameserver = _name_server(
        host, ports.nameserver, data, properties, allow_public=allow_public, credentials=credentials
    )
    namesrv = join_address(advertised, ports.nameserver)
    configs = _configs(
        stores,
        (ports.broker, *further),
        kafka_port=kafka_port,
        metrics_port=metrics_port,
        settings=properties,
        bind_address=host,
        broker_ip=advertised,
        namesrv_addr=join_address(_WILDCARDS.get(host, host), ports.nameserver),
        allow_public=allow_public,
        damaged=damaged,
        credentials=credentials,
    )
    kafka = [join_address(advertised, config.kafka_listen_port) for config in configs]
    children = BrokerChildren(configs[1:], log_level, keep_going=keep_going)
    lines = [
        *ports.remarks,
        *remarks,
        f"LibraMQ is up: name server {namesrv}, {_named_brokers(configs)}, data in {_absolute(data)}",
        *([f"Kafka's clients connect to {','.join(kafka)}"] if kafka_port else []),
        *_metrics_line(configs),
        *_access_lines(secured),
        *_examples(ports.nameserver, host, namesrv),
    ]
    first = broker_server(configs[0])
    services: list[Service] = [nameserver, first, children, *kafka_servers(first, configs[0])]
    await _serve(services, lambda: [*lines, *children.lines()], children.supervise)


def _named_brokers(configs: Sequence[BrokerConfig]) -> str:
    named = ", ".join(f"{config.broker_name} {_named(config)}" for config in configs)
    return f"{'broker' if len(configs) == 1 else 'brokers'} {named}"


def _examples(port: int, host: str, namesrv: str) -> list[str]:
    """Return commands to try, without -n if the name server is at the default address."""
    is_found = port == NAME_SERVER_PORT and host in ("127.0.0.1", "localhost")
    option = "" if is_found else f" -n {namesrv}"
    return [
        f"Try:  libra send{option} -t Hello 'Hello, balance'",
        f"      libra tail{option} -t Hello --from earliest    (Ctrl-C here stops the servers)",
    ]


def _secured(data: Path, addresses: Collection[str], properties: dict[str, str]) -> "SecureDirectory":
    """Add the options of secured servers to those of --set."""
    with needs_extra("--secure", "secure"):
        from libramq.cli.servers.secure_directory import SecureDirectory
    secured = SecureDirectory(data, {*addresses, *_OWN_NAMES} - set(_WILDCARDS))
    for name, text in secured.properties().items():
        if name in properties:
            raise ConfigError(f"--set {name}: --secure sets it; leave one of them out")
        properties[name] = text
    return secured


def _access_lines(secured: "SecureDirectory | None") -> list[str]:
    if secured is None:
        return []
    return [
        "Clients must encrypt and sign. The first user, with all rights, is in this file; keep it secret:",
        f"      export LIBRA_ACCESS={shlex.quote(str(secured.access_file))}",
    ]


def _credentials(host: str, brokers: int, *, is_secure: bool) -> Credentials | None:
    """Return the credentials that the brokers of `libra up` share; child processes get them over a pipe."""
    if brokers == 1 and is_loopback(host) and not is_secure:
        return None
    return Credentials("libra-up", SYSTEM_SECRETS.token_hex(SECRET_BYTES))


def _metrics_line(configs: Sequence[BrokerConfig]) -> list[str]:
    places = [
        f"{'https' if config.tls.mode == 'enforcing' else 'http'}://"
        f"{join_address(_LOOPBACK, config.metrics_port)}/metrics"
        for config in configs
        if config.metrics_exporter_type == "PROM"
    ]
    return [f"Metrics for Prometheus: {' '.join(places)}"] if places else []


def _configs(
    stores: Mapping[str, Path],
    ports: Sequence[int],
    *,
    kafka_port: int | None,
    metrics_port: int | None,
    settings: Mapping[str, str],
    **of_all: Any,
) -> list[BrokerConfig]:
    """Return the configuration of each broker; Kafka's and the metrics' ports count up from the first."""
    configs = []
    for index, ((name, store), port) in enumerate(zip(stores.items(), ports, strict=True)):
        more: dict[str, Any] = {"kafka_listen_port": kafka_port + index} if kafka_port else {}
        if metrics_port is not None:
            more |= {"metrics_exporter_type": "PROM", "metrics_port": metrics_port + index}
        one = broker_config(
            settings, broker_name=name, store_path=str(store), listen_port=port, **of_all, **more
        )
        configs.append(one[0])
    return configs


def _properties(files: Sequence[Path], settings: Sequence[str]) -> dict[str, str]:
    """Return the broker.conf options of -c and --set; raises ConfigError for those that `libra up` sets."""
    properties: dict[str, str] = {}
    for setting in settings:
        if "=" not in setting:
            raise ConfigError(f"--set {setting}: write NAME=VALUE")
    named = [(str(file), read_properties(file)) for file in files]
    for where, options in [*named, ("--set", parse_properties("\n".join(settings)))]:
        for name in options:
            if name in _OF_UP:
                raise ConfigError(
                    f"{where} {name}: libra up sets it by its other options; use libra broker instead"
                )
        properties |= options
        try:
            unknown = broker_config(options)[1]
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
        if where == "--set":
            for name in unknown:
                raise ConfigError(f"--set {name}: no such option{advice(name)}")
        else:
            _report_unknown((Path(where),), unknown, BrokerConfig)
    _warn_of_readers(files)
    return properties


async def nameserver(
    *, config_files: Sequence[Path], host: str | None, port: int | None, allow_public: bool
) -> None:
    """Run a name server until a signal. host, port: None uses those of the files."""
    properties = read_properties_files(config_files)
    _warn_of_readers(config_files)
    text = properties.get(CREDENTIALS_OPTION, "")
    try:
        tls = encryption(tls_options(properties))
        config, unknown = name_server_config(
            {
                name: text
                for name, text in properties.items()
                if not name.startswith(TLS_PREFIX) and name not in SECRET_OPTIONS
            }
        )
        credentials = parse_credentials(CREDENTIALS_OPTION, text) if text else None
        operator = _operator(properties)
    except ConfigError as error:
        raise ConfigError(f"{_joined(config_files)}: {error}" if config_files else str(error)) from None
    _report_unknown(config_files, unknown, NameServerConfig)
    host = config.bind_address if host is None else host
    port = config.listen_port if port is None else port
    server = NameServer(
        host,
        port,
        operator=operator,
        allow_public=allow_public,
        credentials=credentials,
        config=config,
        encryption=tls,
    )
    await _serve(
        [server], lambda: [f"The name server listens on {join_address(host, port)}. Ctrl-C stops it."]
    )


async def broker(
    *,
    config_files: Sequence[Path],
    settings: Sequence[str],
    namesrv: str | None,
    allow_public: bool,
    damaged: Damaged | None,
) -> None:
    """Run a broker with its configuration files until a signal."""
    overrides = {"namesrv_addr": namesrv, "allow_public": allow_public or None, "damaged": damaged}
    config, unknown = load_broker_config(*config_files, settings=settings, **overrides)
    _warn_of_readers(config_files)
    if config.namesrv_addr is None:
        config = replace(config, namesrv_addr=config.address_server_url or chosen_name_servers(None))
    _report_unknown(config_files, unknown, BrokerConfig)
    server = broker_server(config)
    await _serve(
        [server, *kafka_servers(server, config)],
        lambda: [
            f"Broker {config.broker_name} of cluster {config.cluster_name} listens on {_named(config)}, "
            f"name server {config.namesrv_addr}, data in {_absolute(config.store_path)}. "
            "Ctrl-C stops it."
        ],
    )


def _named(config: BrokerConfig) -> str:
    """Return a broker's address as users write it: with brackets, unlike the address sent to clients."""
    return join_address(config.broker_ip, config.listen_port)


def broker_server(config: BrokerConfig) -> BrokerServer:
    """Return a broker. With authentication, only its own account can read the files that it creates."""
    if config.authentication_enabled:
        os.umask(stat.S_IRWXG | stat.S_IRWXO)
    return BrokerServer(config, clock=SystemClock(), filesystem=LocalFileSystem())


def kafka_servers(broker: BrokerServer, config: BrokerConfig) -> list[Service]:
    """Return a broker's server for Kafka's clients, if configured; raises ConfigError without the extra."""
    if not config.kafka_listen_port:
        return []
    with needs_extra("kafkaListenPort", "kafka"):
        from libramq.protocols.kafka.server import KafkaServer
    return [KafkaServer(broker, config, LocalFileSystem())]


async def _serve(
    services: Sequence[Service],
    lines: Callable[[], Sequence[str]],
    failure: Failure | None = None,
) -> None:
    """Start the services in order, print the lines, wait for a signal, and stop in reverse order; raise any
    failure.
    """
    raise_limit()
    signal = StopSignal()
    async with AsyncExitStack() as stack:
        for service in services:
            await service.start()
            stack.push_async_callback(service.stop)
        calm_garbage_collector()
        keep_freed_memory()
        for line in lines():
            print(line, flush=True)
        _notify_systemd("READY=1")
        await _signal_or_failure(signal, failure)
        with contextlib.suppress(OSError):  # The reader of the output may be gone.
            print("Stopping; a second Ctrl-C ends it at once.", flush=True)
        _notify_systemd("STOPPING=1")


def _notify_systemd(state: str) -> None:
    """Notify systemd of the service's state (sd_notify(3), Type=notify); no-op without its socket."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address.startswith(("/", "@")):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifier:
            # "@" stands for the zero byte of an abstract address.
            notifier.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)


async def _signal_or_failure(signal: StopSignal, failure: Failure | None) -> None:
    """Wait for a signal, or raise the failure that comes first."""
    if failure is None:
        return await signal.wait()
    signalled, failed = asyncio.create_task(signal.wait()), asyncio.create_task(failure())
    try:
        await asyncio.wait((signalled, failed), return_when=asyncio.FIRST_COMPLETED)
        if not signalled.done():  # A signal to the process group also ends the children, which is no failure.
            raise failed.result()
    finally:
        signalled.cancel()
        failed.cancel()


def _listening(host: str | None, advertise: str | None, *, allow_public: bool) -> str:
    """Return the address to listen on; raises ConfigError if nobody, or more than allowed, could connect."""
    if advertise is not None:
        check_announced(advertise, "--advertise")
    if host is None:
        announced = advertise or _LOOPBACK
        host = bind_address(announced, "--advertise", f"--host {announced} and --allow-public")
    check_bind_address(host, allow_public=allow_public, remedy="use --allow-public")
    return host


def _advertised(host: str) -> str:
    """Return the address to which clients connect."""
    if host not in _WILDCARDS:
        return host
    family = socket.AF_INET6 if host == "::" else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ELSEWHERE[family])
        except OSError:
            raise ConfigError(
                f"cannot determine this machine's address for --host {host}; name it with --advertise"
            ) from None
        return str(probe.getsockname()[0])


def _absolute(path: Path | str) -> str:
    return os.path.abspath(path)


def _name_server(
    host: str,
    port: int,
    data: Path,
    properties: Mapping[str, str],
    *,
    allow_public: bool,
    credentials: Credentials | None,
) -> NameServer:
    """Return the name server of `libra up`, to which some of its brokers' options apply."""
    operator = _operator(properties)
    config = NameServerConfig(
        kv_config_path=str(kv_file(data)),
        authentication_enabled=operator is not None,
        audit_path=str(kv_file(data).with_name(AUDIT_FILE)) if operator is not None else "",
    )
    return NameServer(
        host,
        port,
        operator=operator,
        allow_public=allow_public,
        credentials=credentials,
        config=config,
        encryption=encryption(tls_options(properties)),
    )


def _operator(properties: Mapping[str, str]) -> UserInfo | None:
    """Return the only user who may change a name server; None: anyone."""
    operator: Any = option_value(INITIAL_USER_OPTION, properties.get(INITIAL_USER_OPTION, ""), None)
    is_enabled = properties.get("authenticationEnabled", "").lower() == "true"
    if is_enabled and operator is None:
        raise ConfigError(
            f"authenticationEnabled=true needs {INITIAL_USER_OPTION}: only that user may change "
            "the name server"
        )
    if operator is not None and not is_enabled:
        raise ConfigError(f"{INITIAL_USER_OPTION} has no effect without authenticationEnabled=true; set both")
    return operator if is_enabled else None


def _joined(files: Sequence[Path]) -> str:
    return ", ".join(map(str, files)) or "--set"


def _warn_of_readers(files: Sequence[Path]) -> None:
    """Warn about files with secrets that every user of the machine can read."""
    for file in files:
        if file.stat().st_mode & stat.S_IROTH and not _SECRETS.isdisjoint(read_properties(file)):
            print(
                f"libra: {file} holds secrets, and every user of this machine can read it; chmod o-r {file}",
                file=sys.stderr,
            )


def _report_unknown(files: Sequence[Path], names: Sequence[str], options: type) -> None:
    for name in names:
        more = advice(name, options)
        print(f"libra: {_joined(files)}: {name} is unknown and has no effect{more}", file=sys.stderr)
