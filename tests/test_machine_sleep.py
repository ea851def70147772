"""After a machine's sleep, durations include the time asleep: sessions and leases have expired."""

import shutil
import subprocess
import sys

import pytest

SLEPT_S = 86_400
LEASE_S = 10
#: In a namespace whose boot clock is a day ahead of the monotonic one: as after a day of sleep.
SLEPT = ["unshare", "--time", "--boottime", str(SLEPT_S), "--fork", sys.executable, "-c"]
AWAKE = [sys.executable, "-c"]
NOW = "from libramq.clock import SystemClock; print(SystemClock().monotonic_ms())"


def now_ms(command: list[str]) -> int:
    return int(
        subprocess.run([*command, NOW], capture_output=True, check=True, text=True, timeout=150).stdout
    )


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such clock")
def test_time_asleep_counts():
    """A lease of 10 s that was renewed before the machine slept has expired afterwards."""
    has_unshare = shutil.which("unshare") is not None
    if not has_unshare or subprocess.run([*SLEPT, "pass"], check=False, capture_output=True).returncode:
        pytest.skip("time namespaces are not allowed here")
    before_ms = now_ms(AWAKE)
    assert now_ms(SLEPT) - before_ms > LEASE_S * 1_000
    assert now_ms(SLEPT) - before_ms >= SLEPT_S * 1_000
