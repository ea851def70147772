"""The message row: a stored message as a JSON object, whether its body is text or not."""

import base64
from typing import Any

from libramq.message.message import MessageExt


def message_row(message: MessageExt) -> dict[str, Any]:
    """Return a message as a row; a body that is not UTF-8 becomes `bodyBase64`."""
    row: dict[str, Any] = {
        "topic": message.topic,
        "broker": message.broker_name,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "storeTimestamp": message.store_timestamp_ms,
        "messageId": message.message_id,
        "properties": message.properties,
    }
    try:
        row["body"] = message.body.decode()
    except UnicodeDecodeError:
        row["bodyBase64"] = base64.b64encode(message.body).decode()
    return row


def detailed_row(message: MessageExt) -> dict[str, Any]:
    """Return a message as a row with all fields of its record."""
    return message_row(message) | {
        "offsetMessageId": message.offset_id,
        "tags": message.tags,
        "keys": list(message.keys),
        "bornTimestamp": message.born_timestamp_ms,
        "bornHost": "{}:{}".format(*message.born_host),
        "storeHost": "{}:{}".format(*message.store_host),
        "physicalOffset": message.physical_offset,
        "storeSize": message.store_size,
        "sysFlag": message.sys_flag,
        "flag": message.flag,
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
    }
