"""The parts of a broker that store what producers send, put together."""

import random
from typing import Any

from libramq.broker.cluster.replication import Replication
from libramq.broker.config import BrokerConfig
from libramq.broker.files.files import BrokerFiles
from libramq.broker.messages.creation_rate import CreationRate
from libramq.broker.messages.redelivery import Redelivery
from libramq.broker.messages.sending import Sending
from libramq.broker.messages.stored_properties import BrokerProperties
from libramq.broker.processor.messages.send_message import SendMessage
from libramq.broker.processor.messages.timer_requests import TimerRequests
from libramq.broker.transactions.transactions import Transactions
from libramq.catalog.requirements import Requirements
from libramq.kernel.parts import Kernel
from libramq.message.ids import UniqueIdGenerator
from libramq.store.retention.disk_space import DiskSpace


class ProducingParts:
    """Sends, messages sent back, and requests about timer messages."""

    def __init__(
        self,
        config: BrokerConfig,
        files: BrokerFiles,
        transactions: Transactions,
        requirements: Requirements,
        redelivery: Redelivery,
        replication: Replication,
        kernel: Kernel,
        *,
        unique_id: UniqueIdGenerator,
        randomness: random.Random,
    ) -> None:
        tables = files.tables
        self.creations = CreationRate(kernel.clock.monotonic_ms())
        properties = BrokerProperties(
            cluster=config.cluster_name, region=config.region_id, trace_on=config.trace_on
        )
        disk_space = DiskSpace(
            files.filesystem, files.store.config.disks, config.disk_space_warning_level_ratio
        )
        self.sending = Sending(
            topics=tables.topics,
            requirements=requirements,
            creations=self.creations,
            log=files.log,
            durability=replication.gate,
            disk_space=disk_space,
            properties=properties,
            unique_id=unique_id,
            redelivery=redelivery,
            schedule=files.schedule,
            timers=files.timers.timers,
            transactions=None if config.reject_transaction_message else transactions,
            randomness=randomness,
            message_bytes_max=config.max_message_size,
        )
        self.sends = SendMessage(self.sending, properties)
        self.services: list[Any] = [self.sends, _timer_requests(config, files)]


def _timer_requests(config: BrokerConfig, files: BrokerFiles) -> TimerRequests:
    return TimerRequests(
        files=files.timers,
        log=files.log,
        topics=files.tables.topics,
        broker_name=config.broker_name,
        recall_enabled=config.recall_message_enable,
        max_delay_ms=config.timer_max_delay_sec * 1000,
    )
