"""Apache's request codes and mqadmin's commands, and where each stands: the tables in docs/requests.md.

Names and numbers are those of Apache RocketMQ 5.3.3 (RequestCode.java, MQAdminStartup.java). What
servers serve is `rpc/request_table.py`; what clients do, their own tables.
"""

from typing import Final, NamedTuple

import typer

from libramq.cli.admin.commands import app as admin
from libramq.client.consuming.broker_requests import SERVED as SERVED_BY_CLIENTS
from libramq.codes import RequestCode
from libramq.rpc.request_table import BROKER_REQUESTS, NAME_SERVER_REQUESTS

#: RequestCode.java.
CODES: Final[dict[int, str]] = {
    10: "SEND_MESSAGE", 11: "PULL_MESSAGE", 12: "QUERY_MESSAGE", 13: "QUERY_BROKER_OFFSET",
    14: "QUERY_CONSUMER_OFFSET", 15: "UPDATE_CONSUMER_OFFSET", 17: "UPDATE_AND_CREATE_TOPIC",
    18: "UPDATE_AND_CREATE_TOPIC_LIST", 21: "GET_ALL_TOPIC_CONFIG", 22: "GET_TOPIC_CONFIG_LIST",
    23: "GET_TOPIC_NAME_LIST", 25: "UPDATE_BROKER_CONFIG", 26: "GET_BROKER_CONFIG",
    27: "TRIGGER_DELETE_FILES", 28: "GET_BROKER_RUNTIME_INFO", 29: "SEARCH_OFFSET_BY_TIMESTAMP",
    30: "GET_MAX_OFFSET", 31: "GET_MIN_OFFSET", 32: "GET_EARLIEST_MSG_STORETIME", 33: "VIEW_MESSAGE_BY_ID",
    34: "HEART_BEAT", 35: "UNREGISTER_CLIENT", 36: "CONSUMER_SEND_MSG_BACK", 37: "END_TRANSACTION",
    38: "GET_CONSUMER_LIST_BY_GROUP", 39: "CHECK_TRANSACTION_STATE", 40: "NOTIFY_CONSUMER_IDS_CHANGED",
    41: "LOCK_BATCH_MQ", 42: "UNLOCK_BATCH_MQ", 43: "GET_ALL_CONSUMER_OFFSET", 45: "GET_ALL_DELAY_OFFSET",
    46: "CHECK_CLIENT_CONFIG", 47: "GET_CLIENT_CONFIG", 60: "GET_TIMER_CHECK_POINT",
    61: "GET_TIMER_METRICS", 100: "PUT_KV_CONFIG", 101: "GET_KV_CONFIG", 102: "DELETE_KV_CONFIG",
    103: "REGISTER_BROKER", 104: "UNREGISTER_BROKER", 105: "GET_ROUTEINFO_BY_TOPIC",
    106: "GET_BROKER_CLUSTER_INFO", 200: "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP",
    201: "GET_ALL_SUBSCRIPTIONGROUP_CONFIG", 202: "GET_TOPIC_STATS_INFO",
    203: "GET_CONSUMER_CONNECTION_LIST", 204: "GET_PRODUCER_CONNECTION_LIST",
    205: "WIPE_WRITE_PERM_OF_BROKER", 206: "GET_ALL_TOPIC_LIST_FROM_NAMESERVER",
    207: "DELETE_SUBSCRIPTIONGROUP", 208: "GET_CONSUME_STATS", 209: "SUSPEND_CONSUMER",
    210: "RESUME_CONSUMER", 211: "RESET_CONSUMER_OFFSET_IN_CONSUMER",
    212: "RESET_CONSUMER_OFFSET_IN_BROKER", 213: "ADJUST_CONSUMER_THREAD_POOL",
    214: "WHO_CONSUME_THE_MESSAGE", 215: "DELETE_TOPIC_IN_BROKER", 216: "DELETE_TOPIC_IN_NAMESRV",
    217: "REGISTER_TOPIC_IN_NAMESRV", 219: "GET_KVLIST_BY_NAMESPACE", 220: "RESET_CONSUMER_CLIENT_OFFSET",
    221: "GET_CONSUMER_STATUS_FROM_CLIENT", 222: "INVOKE_BROKER_TO_RESET_OFFSET",
    223: "INVOKE_BROKER_TO_GET_CONSUMER_STATUS", 224: "GET_TOPICS_BY_CLUSTER",
    225: "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST", 300: "QUERY_TOPIC_CONSUME_BY_WHO",
    301: "REGISTER_FILTER_SERVER", 302: "REGISTER_MESSAGE_FILTER_CLASS", 303: "QUERY_CONSUME_TIME_SPAN",
    304: "GET_SYSTEM_TOPIC_LIST_FROM_NS", 305: "GET_SYSTEM_TOPIC_LIST_FROM_BROKER",
    306: "CLEAN_EXPIRED_CONSUMEQUEUE", 307: "GET_CONSUMER_RUNNING_INFO", 308: "QUERY_CORRECTION_OFFSET",
    309: "CONSUME_MESSAGE_DIRECTLY", 310: "SEND_MESSAGE_V2", 311: "GET_UNIT_TOPIC_LIST",
    312: "GET_HAS_UNIT_SUB_TOPIC_LIST", 313: "GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST",
    314: "CLONE_GROUP_OFFSET", 315: "VIEW_BROKER_STATS_DATA", 316: "CLEAN_UNUSED_TOPIC",
    317: "GET_BROKER_CONSUME_STATS", 318: "UPDATE_NAMESRV_CONFIG", 319: "GET_NAMESRV_CONFIG",
    320: "SEND_BATCH_MESSAGE", 321: "QUERY_CONSUME_QUEUE", 322: "QUERY_DATA_VERSION",
    323: "RESUME_CHECK_HALF_MESSAGE", 324: "SEND_REPLY_MESSAGE", 325: "SEND_REPLY_MESSAGE_V2",
    326: "PUSH_REPLY_MESSAGE_TO_CLIENT", 327: "ADD_WRITE_PERM_OF_BROKER", 328: "GET_ALL_PRODUCER_INFO",
    329: "DELETE_EXPIRED_COMMITLOG", 343: "QUERY_TOPICS_BY_CONSUMER", 345: "QUERY_SUBSCRIPTION_BY_CONSUMER",
    351: "GET_TOPIC_CONFIG", 352: "GET_SUBSCRIPTIONGROUP_CONFIG", 353: "UPDATE_AND_GET_GROUP_FORBIDDEN",
    354: "CHECK_ROCKSDB_CQ_WRITE_PROGRESS", 355: "EXPORT_ROCKSDB_CONFIG_TO_JSON", 361: "LITE_PULL_MESSAGE",
    370: "RECALL_MESSAGE", 400: "QUERY_ASSIGNMENT", 401: "SET_MESSAGE_REQUEST_MODE",
    402: "GET_ALL_MESSAGE_REQUEST_MODE", 513: "UPDATE_AND_CREATE_STATIC_TOPIC",
    901: "GET_BROKER_MEMBER_GROUP", 902: "ADD_BROKER", 903: "REMOVE_BROKER", 904: "BROKER_HEARTBEAT",
    905: "NOTIFY_MIN_BROKER_ID_CHANGE", 906: "EXCHANGE_BROKER_HA_INFO", 907: "GET_BROKER_HA_STATUS",
    908: "RESET_MASTER_FLUSH_OFFSET", 1001: "CONTROLLER_ALTER_SYNC_STATE_SET",
    1002: "CONTROLLER_ELECT_MASTER", 1003: "CONTROLLER_REGISTER_BROKER",
    1004: "CONTROLLER_GET_REPLICA_INFO", 1005: "CONTROLLER_GET_METADATA_INFO",
    1006: "CONTROLLER_GET_SYNC_STATE_DATA", 1007: "GET_BROKER_EPOCH_CACHE",
    1008: "NOTIFY_BROKER_ROLE_CHANGED", 1009: "UPDATE_CONTROLLER_CONFIG", 1010: "GET_CONTROLLER_CONFIG",
    1011: "CLEAN_BROKER_DATA", 1012: "CONTROLLER_GET_NEXT_BROKER_ID", 1013: "CONTROLLER_APPLY_BROKER_ID",
    2001: "UPDATE_COLD_DATA_FLOW_CTR_CONFIG", 2002: "REMOVE_COLD_DATA_FLOW_CTR_CONFIG",
    2003: "GET_COLD_DATA_FLOW_CTR_INFO", 2004: "SET_COMMITLOG_READ_MODE", 3001: "AUTH_CREATE_USER",
    3002: "AUTH_UPDATE_USER", 3003: "AUTH_DELETE_USER", 3004: "AUTH_GET_USER", 3005: "AUTH_LIST_USER",
    3006: "AUTH_CREATE_ACL", 3007: "AUTH_UPDATE_ACL", 3008: "AUTH_DELETE_ACL", 3009: "AUTH_GET_ACL",
    3010: "AUTH_LIST_ACL", 200050: "POP_MESSAGE", 200051: "ACK_MESSAGE", 200052: "PEEK_MESSAGE",
    200053: "CHANGE_MESSAGE_INVISIBLETIME", 200054: "NOTIFICATION", 200055: "POLLING_INFO",
    200056: "POP_ROLLBACK", 200151: "BATCH_ACK_MESSAGE",
}  # fmt: skip

_UNUSED = "nothing of Apache's 5.3.3 sends or serves it"
_STATIC = "static topics are passed on by the name server, and not made here; see [below](#static-topics)"
_CONTROLLER = "there is no controller: a slave does not become master by itself"
_COLD = "cold reads never hold up others here, so there is nothing to control"
_ROCKSDB = "the store has files, not RocksDB"
_CONTAINER = "broker containers do not exist here"

#: Why a code is not served, beside those whose standing other pages describe.
REASONS: Final[dict[int, str]] = {
    **dict.fromkeys((13, 22, 23, 27, 47, 209, 210, 211, 212, 213, 214, 301, 302), _UNUSED),
    354: _ROCKSDB,
    355: _ROCKSDB,
    513: _STATIC,
    902: _CONTAINER,
    903: _CONTAINER,
    **dict.fromkeys(range(1001, 1014), _CONTROLLER),
    **dict.fromkeys(range(2001, 2005), _COLD),
    200056: "POP keeps its check points in one place, so there is nothing to go back to",
}


class Command(NamedTuple):
    """A command of mqadmin: the codes that it needs beside routes; note: what else is to be known."""

    name: str
    codes: tuple[int, ...]
    note: str = ""


#: MQAdminStartup.initCommand; each was run against a broker of ours by hand or by tests/interop.
COMMANDS: Final = (
    Command("updateTopic", (17,), "attributes and units too; `COMPACTION` is refused"),
    Command("updateTopicList", (18,), "all topics of a list or none"),
    Command("deleteTopic", (215, 216)),
    Command(
        "updateSubGroup",
        (200,),
        "`groupRetryPolicy` has no effect, as at Apache's broker; attributes are refused, as by 5.3.3",
    ),
    Command("updateSubGroupList", (225,), "all groups of a list or none"),
    Command("setConsumeMode", (401,)),
    Command("deleteSubGroup", (207, 215, 216)),
    Command("updateBrokerConfig", (25,), "some options, until the broker stops; every other one is refused"),
    Command("updateTopicPerm", (351, 17)),
    Command("topicRoute", (105,)),
    Command("topicStatus", (202,)),
    Command("topicClusterList", (105, 106)),
    Command("addBroker", (902,)),
    Command("removeBroker", (903,)),
    Command("resetMasterFlushOffset", (908,), "accepted; a master has nothing to reset"),
    Command("brokerStatus", (28,)),
    Command("queryMsgById", (33, 309)),
    Command("queryMsgByKey", (12,)),
    Command("queryMsgByUniqueKey", (12,)),
    Command("queryMsgByOffset", (11,)),
    Command("queryMsgTraceById", (12,), "of messages whose producers write traces"),
    Command("printMsg", (11, 29, 30, 31)),
    Command("printMsgByQueue", (11, 29, 30, 31)),
    Command("sendMsgStatus", (310,)),
    Command("brokerConsumeStats", (317,)),
    Command("producerConnection", (204,)),
    Command("consumerConnection", (203,)),
    Command("consumerProgress", (208, 203, 307)),
    Command("consumerStatus", (203, 307)),
    Command("cloneGroupOffset", (208, 15)),
    Command("producer", (328,)),
    Command("clusterList", (106, 28)),
    Command("topicList", (206, 224, 300)),
    Command("updateKvConfig", (100,)),
    Command("deleteKvConfig", (102,)),
    Command("wipeWritePerm", (205,)),
    Command("addWritePerm", (327,)),
    Command("resetOffsetByTime", (222,)),
    Command("skipAccumulatedMessage", (222,)),
    Command("updateOrderConf", (100, 101, 102)),
    Command("cleanExpiredCQ", (306,)),
    Command("deleteExpiredCommitLog", (329,)),
    Command("cleanUnusedTopic", (316,)),
    Command("startMonitoring", (208, 202, 203, 307), "`libra admin` prints what mqadmin writes to its log"),
    Command("statsAll", (315, 208)),
    Command("allocateMQ", (105,)),
    Command("checkMsgSendRT", (310,)),
    Command("clusterRT", (310,)),
    Command("getNamesrvConfig", (319,)),
    Command("updateNamesrvConfig", (318,), "some options, until the name server stops"),
    Command("getBrokerConfig", (26,), "without secrets"),
    Command("getConsumerConfig", (352,)),
    Command("queryCq", (321,)),
    Command("sendMessage", (310,)),
    Command("consumeMessage", (11,)),
    Command("updateStaticTopic", (513,)),
    Command("remappingStaticTopic", (513,)),
    Command("exportMetadata", (21, 201)),
    Command("exportConfigs", (26,)),
    Command("exportMetrics", (26, 28, 317)),
    Command("exportMetadataInRocksDB", (), "reads RocksDB files, which the store does not have"),
    Command("exportPopRecord", (200056,)),
    Command("haStatus", (907,)),
    Command("getSyncStateSet", (1006,)),
    Command("getBrokerEpoch", (1007,)),
    Command("getControllerMetaData", (1005,)),
    Command("getControllerConfig", (1010,)),
    Command("updateControllerConfig", (1009,)),
    Command("electMaster", (1002,)),
    Command("cleanBrokerMetadata", (1011,)),
    Command("dumpCompactionLog", (), "reads files of compacted topics, which do not exist here"),
    Command("getColdDataFlowCtrInfo", (2003,)),
    Command("updateColdDataFlowCtrGroupConfig", (2001,)),
    Command("removeColdDataFlowCtrGroupConfig", (2002,)),
    Command("setCommitLogReadAheadMode", (2004,)),
    Command("createUser", (3001,)),
    Command("updateUser", (3002,)),
    Command("deleteUser", (3003,)),
    Command("getUser", (3004,)),
    Command("listUser", (3005,)),
    Command("copyUser", (), "a broker answers no passwords that could be copied; see Security"),
    Command("createAcl", (3006,)),
    Command("updateAcl", (3007,)),
    Command("deleteAcl", (3008,)),
    Command("getAcl", (3009,)),
    Command("listAcl", (3010,)),
    Command("copyAcl", (3006, 3009)),
    Command("rocksDBConfigToJson", (355,)),
    Command("checkRocksdbCqWriteProgress", (354,)),
)  # fmt: skip


#: ProducerNetwork hands the first to the transactions and the second to the requests that wait.
SERVED_BY_PRODUCERS: Final = {
    RequestCode.CHECK_TRANSACTION_STATE,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
}


def served() -> dict[int, list[str]]:
    """Return which of our programs serve each code."""
    found: dict[int, list[str]] = {}
    servers = (
        ("broker", set(BROKER_REQUESTS)),
        ("name server", set(NAME_SERVER_REQUESTS)),
        ("consumer", set(SERVED_BY_CLIENTS)),
        ("producer", SERVED_BY_PRODUCERS),
    )
    for who, codes in servers:
        for code in codes:
            found.setdefault(int(code), []).append(who)
    return found


def code_rows() -> list[tuple[str, ...]]:
    """Return a row for each of Apache's request codes."""
    by = served()
    rows: list[tuple[str, ...]] = []
    for code, name in CODES.items():
        who = by.get(code)
        standing = ", ".join(who) if who else "refused"
        rows.append((str(code), f"`{name}`", standing, "" if who else REASONS[code]))
    return rows


def libra_commands() -> frozenset[str]:
    """Return the names of the commands that `libra admin` has."""
    return frozenset(typer.main.get_group(admin).commands)


def command_rows() -> list[tuple[str, ...]]:
    """Return a row for each of mqadmin's commands."""
    by, ours = served(), libra_commands()
    rows: list[tuple[str, ...]] = []
    for command in COMMANDS:
        missing = [code for code in command.codes if code not in by]
        works = "works" if command.codes else "not here"
        standing = f"refused: {REASONS[missing[0]]}" if missing else works
        own = "yes" if command.name in ours else ""
        rows.append((f"`{command.name}`", ", ".join(map(str, command.codes)), standing, own, command.note))
    return rows


__all__ = ["CODES", "COMMANDS", "REASONS", "code_rows", "command_rows", "libra_commands", "served"]
