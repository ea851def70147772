"""Runs services with `libra`, then a command until it succeeds with all of them, then ends them.

python services.py PLAN.json        {"services": {name: arguments}, "addresses": […], "then": arguments}
"""

import fcntl
import json
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

#: linux/sockios.h: an address for a label of the loopback.
_SIOCSIFADDR: Final = 0x8916
#: How long a command may fail until the services know each other.
_PATIENCE_S: Final = 240.0


def add_address(number: int, address: str) -> None:
    """Give the loopback one more address."""
    name = f"lo:{number}".encode()
    request = struct.pack("16sHH4s8x", name, socket.AF_INET, 0, socket.inet_aton(address))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFADDR, request)


def main(plan_file: Path) -> int:
    plan = json.loads(plan_file.read_text())
    for number, address in enumerate(plan["addresses"]):
        add_address(number, address)
    libra = [sys.executable, "-m", "libramq"]
    running = []
    try:
        for name, arguments in plan["services"].items():
            with plan_file.with_name(f"{name}.log").open("w") as log:
                running.append(subprocess.Popen([*libra, *arguments], stdout=log, stderr=log))
        brokers = sum(arguments[0] == "broker" for arguments in plan["services"].values())
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            for process, name in zip(running, plan["services"], strict=True):
                if process.poll() is not None:
                    sys.stderr.write(f"{name} ended:\n{plan_file.with_name(f'{name}.log').read_text()}")
                    return 1
            done = subprocess.run([*libra, *plan["then"]], capture_output=True, text=True, check=False)
            if done.returncode == 0 and (not brokers or len(json.loads(done.stdout)) >= brokers):
                sys.stdout.write(done.stdout)
                return 0
        sys.stderr.write(done.stdout + done.stderr)
        return 1
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(30)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
