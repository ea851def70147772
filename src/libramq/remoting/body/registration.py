"""The registration, in which a broker describes itself to name servers.

Upstream: body/RegisterBrokerBody.java.
"""

from libramq.formats.document import Document
from libramq.formats.tables import TopicConfigSerializeWrapper


class RegisterBrokerBody(Document, frozen=True, kw_only=True):
    """REGISTER_BROKER: the whole table of topics."""

    topic_config_serialize_wrapper: TopicConfigSerializeWrapper
    filter_server_list: list[str] = []
