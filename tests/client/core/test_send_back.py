"""The send-back and its copy."""

from libramq.client.core.consumer_settings import ConsumerSettings
from libramq.client.core.send_back import INNER_PRODUCER, retry_copy, send_back_header
from libramq.client.core.send_request import send_call
from libramq.message.properties import properties_from_text
from libramq.message.queue import MessageQueue
from libramq.remoting.headers import encode_header
from tests.client.core.examples import message

SETTINGS = ConsumerSettings(group="g", client_id="c")


def test_the_request_names_the_stored_message():
    """The broker takes its body from the log; level 0 lets it choose the delay."""
    assert encode_header(send_back_header(message(7), SETTINGS)) == {
        "offset": "1007", "group": "g", "delayLevel": "0", "originMsgId": "id-7", "originTopic": "T",
        "maxReconsumeTimes": "16",
    }  # fmt: skip


def test_the_copy_is_what_the_broker_would_have_made():
    """Retry topic, one more try, a delay that grows with the tries; the unique id stays."""
    failed = message(7, tag="a")
    failed.reconsume_times = 2
    failed.properties |= {"MIN_OFFSET": "0", "MAX_OFFSET": "9", "TRAN_MSG": "true"}
    copy = retry_copy(failed, SETTINGS)
    assert properties_from_text(copy.properties) == {
        "UNIQ_KEY": "id-7", "TAGS": "a", "ORIGIN_MESSAGE_ID": "id-7", "RETRY_TOPIC": "T", "DELAY": "5",
    }  # fmt: skip
    call = send_call(copy, MessageQueue("%RETRY%g", "a", 0), INNER_PRODUCER, born_ms=1)
    assert (call.ext["b"], call.ext["j"], call.ext["l"]) == ("%RETRY%g", "3", "16")
    assert call.ext["a"] == "CLIENT_INNER_PRODUCER"


def test_a_copy_of_a_copy_remembers_the_first_id():
    """ORIGIN_MESSAGE_ID is set once."""
    failed = message(7)
    failed.properties["ORIGIN_MESSAGE_ID"] = "first"
    assert properties_from_text(retry_copy(failed, SETTINGS).properties)["ORIGIN_MESSAGE_ID"] == "first"
