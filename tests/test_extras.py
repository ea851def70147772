"""A feature whose library is not installed names the command that installs it."""

import subprocess
import sys

import pytest

USES = {
    "pyspark": ("spark", "from libramq.spark import session; session()"),
    "pyspark.sql": ("spark", "from libramq.spark import RocketMQSource"),
    "opentelemetry": ("opentelemetry", "import libramq.integrations.opentelemetry"),
    "faststream": ("faststream", "import libramq.integrations.faststream"),
    "pyarrow": (
        "arrow",
        "from libramq.client.consuming.pulling.pulled_records import schema_of; schema_of(None)",
    ),
    "redis": (
        "redis",
        "from libramq.client.idempotence import RedisStore; RedisStore('redis://127.0.0.1')",
    ),
    "fastavro": ("formats", "from libramq.spark.bodies.avro_bodies import AvroBodies; AvroBodies('{}')"),
    "deltalake": ("delta", "from libramq.spark import DeltaTable; DeltaTable('x')"),
}


@pytest.mark.parametrize("library", USES)
def test_a_missing_library_is_one_kind_of_error_with_the_command(library: str) -> None:
    """It is also an ImportError, so a program's `except ImportError` around an optional part catches it."""
    extra, use = USES[library]
    program = (
        f"import sys; sys.modules[{library!r}] = None\n"
        "from libramq import ConfigError, MissingExtra\n"
        f"try:\n    {use}\n"
        "except MissingExtra as error:\n"
        "    assert isinstance(error, ConfigError) and isinstance(error, ImportError)\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f" needs {library.partition('.')[0]}: pip install 'libramq[{extra}]'\n")
