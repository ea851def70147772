"""Worker code: LibraMQ as a zip file, for the workers of a cluster.

Workers need the driver's version, so our sessions send their own package. Compiled packages cannot be sent
this way: workers must have `msgspec`, `numpy`, `pyarrow` and `structlog`, or receive them in an archive
(docs/clusters.md).

`python -m libramq.spark.worker_code libramq.zip` writes the file for `spark-submit --py-files`.
"""

import atexit
import os
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Final
from zipfile import ZIP_DEFLATED, ZipFile

from libramq.errors import ConfigError

PACKAGES: Final = ("libramq", "pyspark_rocketmq")


@cache
def package_zip() -> Path:
    """Return this process's zip file; it is removed when the process ends."""
    import libramq

    directory = Path(tempfile.mkdtemp(prefix="libramq-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    path = directory / f"libramq-{libramq.__version__}.zip"
    write_package(path)
    return path


def write_package(path: Path) -> None:
    """Write the file atomically: a concurrent reader sees either the old file or the new one."""
    import libramq

    if path.suffix != ".zip":
        raise ConfigError(f"{path}: name it .zip; Spark imports from no other files")
    root = Path(libramq.__file__).parent.parent
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with ZipFile(draft, "w", ZIP_DEFLATED) as archive:
        for package in PACKAGES:
            for file in sorted((root / package).rglob("*.py")):
                archive.write(file, file.relative_to(root))
    draft.replace(path)


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python -m libramq.spark.worker_code FILE.zip", file=sys.stderr)
        return 2
    try:
        write_package(Path(sys.argv[1]))
    except (ConfigError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
