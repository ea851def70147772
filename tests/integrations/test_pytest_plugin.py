"""The fixtures that other people's tests use: each test here runs pytest on a small suite."""

from importlib.metadata import entry_points

import pytest

pytest_plugins = ["pytester"]
PLUGIN = "libramq.integrations.pytest_plugin"


def run(pytester: pytest.Pytester, source: str) -> pytest.RunResult:
    """Run a suite in a process of its own, which finds the plugin as users' do: by its entry point."""
    pytester.makepyfile(source)
    is_installed = bool(entry_points(group="pytest11", name="libramq"))  # Else it is another checkout's.
    named = () if is_installed else ("-p", PLUGIN)
    return pytester.runpytest_subprocess(*named, "-p", "no:asyncio", "-p", "no:cacheprovider", "-W", "error")


def test_clients_find_the_tests_own_broker(pytester: pytest.Pytester):
    result = run(
        pytester,
        """
        from libramq import Message, Producer
        from libramq.sync import Producer as BlockingProducer
        import asyncio

        def test_blocking(libramq_broker):
            with BlockingProducer() as producer:
                assert producer.send(Message("Orders", b"one")).queue_offset == 0

        def test_asyncio_with_another_broker(libramq_broker):
            async def main():
                async with Producer() as producer:
                    return await producer.send(Message("Orders", b"one"))
            assert asyncio.run(main()).queue_offset == 0
        """,
    )

    result.assert_outcomes(passed=2)


def test_the_mark_has_the_brokers_options(pytester: pytest.Pytester):
    result = run(
        pytester,
        """
        import pytest
        from libramq import LibraError, Message
        from libramq.sync import Admin, Producer

        @pytest.mark.libramq(brokers=3, default_topic_queue_nums=2)
        def test_three_brokers(libramq_broker):
            with Producer() as producer:
                names = {producer.send(Message("Orders", b"one")).queue.broker_name for _ in range(30)}
            assert names <= {"broker-a", "broker-b", "broker-c"}

        @pytest.mark.libramq(auto_create_topic_enable=False)
        def test_no_topic(libramq_broker):
            with Producer() as producer, pytest.raises(LibraError, match="Orders"):
                producer.send(Message("Orders", b"one"))

        @pytest.mark.libramq(brokers=0)
        def test_wrong(libramq_broker):
            pass
        """,
    )

    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*brokers=0; 1 to 26 are allowed"])


def test_pytest_starts_without_loading_a_broker(pytester: pytest.Pytester):
    """Every run of pytest would pay for it, whether or not a test uses the fixture."""
    result = run(
        pytester,
        """
        import sys

        def test_nothing_is_loaded():
            assert not [name for name in sys.modules if name.startswith(("libramq.broker", "libramq.client"))]
        """,
    )

    result.assert_outcomes(passed=1)
