"""The recorder: keeps what the earlier LibraMQ wrote to its disk and its connections as test data.

    python -m tests.compat.record       # writes tests/vectors/libramq-ddc5400c.json, -frames.json and .tar.xz

The broker whose directory is kept is killed while members are connected, so that recovery has work to do.
"""

import io
import json
import lzma
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from tests.compat.release import OLD_COMMIT, environment, extract, old_release

VECTORS = Path(__file__).parent.parent / "vectors"
NAME = f"libramq-{OLD_COMMIT[:8]}"
DIRECTORY = VECTORS / f"{NAME}.tar.xz"
CONTENT = VECTORS / f"{NAME}.json"
FRAMES = VECTORS / f"{NAME}-frames.json"
PROVENANCE = {
    "program": "LibraMQ: broker, name server and clients in one process",
    "commit": OLD_COMMIT,
    "command": "python -m tests.compat.record",
}
TIMEOUT_S = 90


def play(scene: str, site: Path, data: Path, *, kills: bool = False) -> dict[str, Any]:
    """Let a version play a scene of tests.compat.scenes; return its output.

    `kills` ends it with SIGKILL; otherwise its broker stops cleanly.
    """
    command = [sys.executable, "-m", "tests.compat.scenes", scene, json.dumps({"data": str(data)})]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command,
            env=environment(site),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as child,
    ):
        assert child.stdout is not None
        line = child.stdout.readline()
        if kills:
            child.kill()
        child.communicate(timeout=TIMEOUT_S)
        errors.seek(0)
        assert line, errors.read()
    found: dict[str, Any] = json.loads(line)
    return found


def pack(directory: Path) -> bytes:
    """Return a directory as a compressed archive; equal files give equal bytes."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(directory.rglob("*")):
            member = tar.gettarinfo(path, arcname=str(path.relative_to(directory)))
            member.mtime = member.uid = member.gid = 0
            member.uname = member.gname = ""
            if path.is_file():
                with path.open("rb") as file:
                    tar.addfile(member, file)
            else:
                tar.addfile(member)
    return lzma.compress(archive.getvalue(), preset=9 | lzma.PRESET_EXTREME)


def unpack(directory: Path) -> None:
    """Extract the recorded directory."""
    with tarfile.open(DIRECTORY) as tar:
        extract(tar, directory)


def main() -> None:
    site = old_release()
    with tempfile.TemporaryDirectory() as home:
        data = Path(home) / "data"
        content = play("directory", site, data, kills=True)
        DIRECTORY.write_bytes(pack(data))
        CONTENT.write_text(json.dumps(PROVENANCE | content, indent=1) + "\n")
        frames = play("frames", site, Path(home) / "frames")
        FRAMES.write_text(json.dumps(PROVENANCE | frames, indent=1) + "\n")
    for path in (DIRECTORY, CONTENT, FRAMES):
        print(path, path.stat().st_size)


if __name__ == "__main__":
    main()
