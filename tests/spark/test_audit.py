"""Spark reads a secured broker's audit as a permitted user: each event is a row of JSON."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from libramq.client import Credentials
from libramq.errors import NoPermission
from libramq.message import Message
from libramq.message.names import AUDIT_TOPIC
from libramq.sync import Admin, Producer
from tests.interop.cluster import Cluster
from tests.interop.libra import LibraServers
from tests.interop.process import PATIENCE_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ROOT = Credentials("root", "r00t-secret")


def test_spark_reads_the_audit(spark: "SparkSession", tmp_path: Path) -> None:
    settings = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "initAuthenticationUser": '{"username":"root","password":"r00t-secret"}',
        "innerClientAuthenticationCredentials": '{"accessKey":"brokers","secretKey":"theirs"}',
    }
    servers = LibraServers(tmp_path, "a", settings=settings)
    options = {
        "namesrv": servers.namesrv,
        "rocketmq.accessKey": ROOT.access_key,
        "rocketmq.secretKey": ROOT.secret_key,
    }
    try:
        with Admin(namesrv=servers.namesrv, credentials=ROOT) as admin:
            admin.create_topic("orders", queues=2)
        with (
            Producer(namesrv=servers.namesrv, credentials=Credentials("eve", "guessed")) as stranger,
            pytest.raises(NoPermission),
        ):
            stranger.send(Message("orders", b"x"))

        def kinds() -> dict[str, str]:
            table = spark.read.format("rocketmq").options(subscribe=AUDIT_TOPIC, **options).load()
            fields = (
                "kind STRING, user STRING, host STRING, request STRING, resources ARRAY<STRING>, count INT"
            )
            events = table.selectExpr(f"from_json(CAST(body AS STRING), '{fields}') AS event").select(
                "event.*"
            )
            return {row.kind: f"{row.user} {row.request} {row.resources}" for row in events.collect()}

        Cluster.wait_until(lambda: "refused" in kinds(), "a refusal is recorded", within_s=PATIENCE_S)
        found = kinds()
        assert found["created"] == "root UPDATE_AND_CREATE_TOPIC ['Topic:orders']"
        assert found["signedIn"] == "root RocketMQ []"
        assert found["refused"].startswith("eve SEND_MESSAGE_V2")
    finally:
        servers.stop()
