"""A master and a slave of LibraMQ, connected step by step."""

from collections.abc import Callable
from pathlib import Path

from libramq.codes import RequestCode, ResponseCode
from libramq.errors import ConnectFailed, ConnectionLost, LibraError
from libramq.formats.document import encode_body
from libramq.formats.route import BrokerData, QueueData, TopicRouteData
from libramq.remoting.body.cluster import ClusterInfo
from libramq.remoting.command import Command
from libramq.replication.blocks import ReportReader
from libramq.rpc.question import Question
from libramq.runtime.seams import Dialed
from tests.broker.brokers import Conversation
from tests.fakes import FakePeer, ManualClock

NAME_SERVER = "127.0.0.1:9876"
MASTER = "127.0.0.1:10911"
HA = "127.0.0.1:10912"
SLAVE = "127.0.0.1:10921"
OTHER = "127.0.0.1:10931"
SECOND = "127.0.0.1:10941"
FILE_BYTES = 1 << 20


class Wire(FakePeer):
    """The connection between master and slave: the master's end, and the link at the slave's end."""

    def __init__(self, pair: "Pair", dialed: Dialed) -> None:
        super().__init__("127.0.0.1:60000")
        self._pair = pair
        self._dialed = dialed
        self._reports = ReportReader()
        self._entrance = pair.master.performer.entrance(pair.master.broker.replication.service)
        self._entrance.connected(self)

    # The master's end: bytes to the slave.

    def write(self, data: bytes) -> None:
        if self._pair.holds_blocks:
            return
        for at in range(0, len(data), self._pair.read_bytes):
            part = data[at : at + self._pair.read_bytes]
            self._pair.soon(lambda part=part: self._dialed.received(part))

    def close(self, reason: str) -> None:
        self._pair.closings.append(reason)
        self.cut()

    def cut(self) -> None:
        """End the connection on both sides."""
        if self.is_open:
            self.is_open = False
            self._pair.soon(lambda: self._entrance.closed(self))
            self._pair.soon(lambda: self._dialed.ended(""))

    @property
    def link(self) -> "Link":
        return Link(self)

    def report(self, data: bytes) -> None:
        reports = self._reports.receive(data)
        if self.is_open and reports:
            self._entrance.received(self, reports)


class Link:
    """The slave's end of the connection."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def write(self, data: bytes) -> None:
        self._wire._pair.soon(lambda: self._wire.report(data))

    def close(self) -> None:
        self._wire._pair.soon(self._wire.cut)  # What was written before arrives.

    abort = close


class Pair:
    """A master, a slave, and the name server that the slave follows."""

    def __init__(self, root: Path, *, read_bytes: int = 1 << 20, **of_master: object) -> None:
        self._root = root
        self._soon: list[Callable[[], None]] = []
        self.read_bytes = read_bytes
        self.holds_blocks = False
        self.is_reachable = True
        self.closings: list[str] = []
        self.clusters = {"DefaultCluster": ["broker-a"]}
        #: Another master of the cluster, which has the topics that it was sent; none unless a test opens it.
        self.other: Conversation | None = None
        #: Another slave of the master, with a higher id; none unless a test opens it.
        self.second: Conversation | None = None
        #: Addresses that answer nobody, and that nobody has found out about.
        self.silent: set[str] = set()
        #: Whether the master's process stands still.
        self.is_frozen = False
        #: Whether the first slave's process stands still, and name servers have lost it.
        self.is_slave_frozen = False
        #: Whether the first slave and the name servers do not reach each other.
        self.is_slave_lost = False
        self.loses_answers = False
        #: What brokers answer instead of their own answers, by address and code.
        self.forged: dict[tuple[str, int], bytes] = {}
        #: How many more requests the other master gets, before it is out of reach; None: any number.
        self.other_takes: int | None = None
        #: What the other master has answered, while that is held up; None: it arrives at once.
        self.held_answers: list[Callable[[], None]] | None = None
        #: Whether the name server does not answer the master.
        self.leaves_master_alone = False
        #: Whether name servers have lost the master, and nobody else has.
        self.is_master_unlisted = False
        #: The most bytes of bodies that a broker sent to other processes at once.
        self.asked_bytes_max = 0
        self.wire: Wire | None = None
        self.wires: list[Wire] = []
        self.clock = ManualClock()
        defaults: dict[str, object] = {"ha_listen_port": 10912, "max_message_size": 600_000}
        self.of_master = defaults | of_master
        self.master = self.open_master()
        self.slave = self.open_slave()

    def open_master(self) -> Conversation:
        self.master = Conversation(self._root / "master", clock=self.clock, **self.of_master)
        return self.master

    def open_slave(self, name: str = "slave", **options: object) -> Conversation:
        defaults: dict[str, object] = {
            "broker_role": "SLAVE",
            "broker_id": 1,
            "namesrv_addr": NAME_SERVER,
            "listen_port": 10921,
            "slave_read_enable": True,
            "max_message_size": 600_000,
        }
        self.slave = Conversation(self._root / name, clock=self.clock, dialer=self, **(defaults | options))
        self.slave.broker.registration.begin(lambda: None)
        return self.slave

    def open_second(self, **options: object) -> Conversation:
        """Open a second slave, which follows the master as well."""
        first = self.slave
        named = {"broker_id": 2, "listen_port": 10941} | options
        self.second = self.open_slave("second", **named)
        self.slave = first
        return self.second

    def open_other(self, **options: object) -> Conversation:
        named = {"broker_name": "broker-b"} | options
        self.other = Conversation(self._root / "other", clock=self.clock, **named)
        return self.other

    def return_master(self, **options: object) -> None:
        """Restart the master, which asks the slave what it has delivered."""
        self.of_master |= options
        self.open_master()
        self.is_reachable = True

    def freeze_master(self) -> None:
        """Stop the master's process: it does nothing, and hears nothing."""
        self.part()
        self.run()
        self.is_frozen = True

    def thaw_master(self) -> None:
        """Let the master go on."""
        self.is_frozen, self.is_reachable = False, True

    def promote(self, *, is_killed: bool = False, **options: object) -> Conversation:
        """Lose the master, and restart the slave as the master."""
        self.part()
        self.run()
        if is_killed:
            self.slave.kill()
        else:
            self.slave.close()
        root = self.slave.broker.store.config.root
        self.slave = Conversation(root, clock=self.clock, **({"max_message_size": 600_000} | options))
        return self.slave

    def soon(self, action: Callable[[], None]) -> None:
        self._soon.append(action)

    def dial(self, address: str, dialed: Dialed) -> None:
        """Connect the slave; this is a `runtime.seams.Dialer`."""
        if not self.is_reachable or address != HA:
            self.soon(lambda: dialed.refused(ConnectFailed(f"cannot connect to {address}")))
            return
        self.wire = Wire(self, dialed)
        self.wires.append(self.wire)
        link = self.wire.link
        self.soon(lambda: dialed.opened(link))

    def run(self, milliseconds: int = 0) -> None:
        """Let time pass, and run everything that is due."""
        end_ms = self.clock.monotonic_ms() + milliseconds
        while True:
            self._settle()
            due = [each for talk in self._talks if (each := talk.broker.engine.next_due_ms) is not None]
            if not due or min(due) > end_ms:
                break
            self._pass(max(0, min(due) - self.clock.monotonic_ms()))
        self._pass(end_ms - self.clock.monotonic_ms())

    def _pass(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds)
        for talk in self._talks:
            talk.tick()

    @property
    def _talks(self) -> list[Conversation]:
        open_ones = [self.slave, self.master, self.second, self.other]
        running = [talk for talk in open_ones if talk is not None and not talk.is_killed]
        frozen = [self.master] * self.is_frozen + [self.slave] * self.is_slave_frozen
        return [talk for talk in running if talk not in frozen]

    @property
    def _askers(self) -> list[Conversation]:
        return [talk for talk in self._talks if talk is not self.other]

    def _settle(self) -> None:
        while self._soon or self._is_asking() or self._has_work():
            for talk in self._askers:
                asked, talk.performer.asked = talk.performer.asked, []
                size = sum(len(question.command().body) for question in asked)
                self.asked_bytes_max = max(self.asked_bytes_max, size)
                for question in asked:
                    is_cut = self.leaves_master_alone if talk is self.master else self.is_slave_lost
                    if is_cut and talk is not self.second and question.address == NAME_SERVER:
                        question.done(ConnectionLost(f"{NAME_SERVER} is gone"))
                        talk.performer.follow()
                    elif not talk.is_killed:
                        self._answer(question)
                        talk.performer.follow()
            for talk in self._talks:
                talk.threads.run_all()
            actions, self._soon = self._soon, []
            for action in actions:
                action()

    def _has_work(self) -> bool:
        return any(talk.threads.work for talk in self._talks)

    def _is_asking(self) -> bool:
        return any(talk.performer.asked for talk in self._askers)

    def _answer(self, question: Question) -> None:
        command = question.command()
        answer = self._answer_of(question.address, command)
        if question.address == OTHER and self.held_answers is not None:
            self.held_answers.append(lambda: question.done(answer))
        else:
            question.done(answer)

    def release_answers(self) -> None:
        """Let arrive what the other master has answered."""
        answers, self.held_answers = self.held_answers or [], None
        for answer in answers:
            answer()
        self.slave.performer.follow()

    def _answer_of(self, address: str, command: Command) -> Command | LibraError:
        forged = self.forged.get((address, command.code))
        if forged is not None:
            return Command(code=ResponseCode.SUCCESS, body=forged)
        if address == MASTER:
            if not self.is_reachable:
                return ConnectionLost(f"{MASTER} is gone")
            return self.master.ask(FakePeer(), command.code, command.ext, command.body)
        slave = {SLAVE: self.slave, SECOND: self.second}.get(address)
        if slave is not None:
            if slave not in self._talks or address in self.silent:
                return ConnectionLost(f"{address} is gone")
            return slave.ask(FakePeer(), command.code, command.ext, command.body)
        if address == OTHER:
            assert self.other is not None
            if self.other_takes is not None:
                self.other_takes -= 1
                if self.other_takes < 0:
                    return ConnectFailed(f"{OTHER} is gone")
            answer = self.other.ask(FakePeer(), command.code, command.ext, command.body)
            return ConnectionLost(f"{OTHER} is gone") if self.loses_answers else answer
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return self._route(command.ext["topic"])
        if command.code == RequestCode.REGISTER_BROKER:
            is_listed = self.is_reachable and not self.is_master_unlisted
            ext = {"masterAddr": MASTER, "haServerAddr": HA} if is_listed else {}
            return Command(code=ResponseCode.SUCCESS, ext=ext)
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            masters = {0: MASTER} if self.is_reachable and not self.is_master_unlisted else {}
            slaves = {1: SLAVE}
            if self.second is not None:
                is_gone = (
                    self.is_slave_frozen
                    or self.is_slave_lost
                    or (self.slave.is_killed and SLAVE not in self.silent)
                )
                slaves = {} if is_gone else slaves
                slaves |= {} if self.second.is_killed else {2: SECOND}
            broker = BrokerData(broker_name="broker-a", broker_addrs=masters | slaves)
            info = ClusterInfo(broker_addr_table={"broker-a": broker}, cluster_addr_table=self.clusters)
            return Command(code=ResponseCode.SUCCESS, body=encode_body(info))
        return Command(code=ResponseCode.SUCCESS)

    def _route(self, topic: str) -> Command:
        """Return a route, in which the slave has its master's place while that is gone."""
        brokers = [BrokerData(broker_name="broker-a", broker_addrs={0: SLAVE})]
        queues = [QueueData(broker_name="broker-a", read_queue_nums=1, write_queue_nums=1, perm=4)]
        if self.other is not None and topic in self.other.broker.topics:
            brokers.append(BrokerData(broker_name="broker-b", broker_addrs={0: OTHER}))
            queues.append(QueueData(broker_name="broker-b", read_queue_nums=1, write_queue_nums=1, perm=6))
        body = encode_body(TopicRouteData(broker_datas=brokers, queue_datas=queues))
        return Command(code=ResponseCode.SUCCESS, body=body)

    def part(self) -> None:
        """Make the master unreachable."""
        self.is_reachable = False
        for wire in self.wires:
            wire.cut()

    def close(self) -> None:
        for talk in self._talks:
            talk.close()


def log_of(talk: Conversation) -> bytes:
    """Return the commit log from its files, up to its end."""
    files = sorted(talk.broker.store.config.commit_log_directory.iterdir())
    first = int(files[0].name)
    return b"".join(path.read_bytes() for path in files)[: talk.broker.store.end - first]
