"""A soak's measurements of processes and stores, and the test that a series of them is flat."""

import itertools
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.interop.process import descendants

MIB: Final = 1 << 20
#: Ours: by then caches have filled and the first files have expired.
WARM_UP_MINUTES: Final = 20
#: Ours: the steepest slope of a flat series, as a share of its median an hour.
SLOPE_MAX: Final = 0.05
#: Ours: fewer rows do not allow a statement about an hour.
ROWS_MIN: Final = 10


class Quantity(NamedTuple):
    """A kind of measurement. floor: a slope an hour that counts as noise even for a small median."""

    name: str
    unit: str
    floor: float


MEMORY: Final = Quantity("memory", "MiB", 2.0)
DESCRIPTORS: Final = Quantity("descriptors", "", 2.0)
JOURNALS: Final = Quantity("journals", "MiB", 0.25)
STORE: Final = Quantity("store", "MiB", 8.0)  # One file of the commit log.


def of_process(pid: int) -> tuple[float, int]:
    """Return the memory, without pages of files, and the descriptors of a process and its children.

    Raises OSError if the process itself has ended.
    """
    memory, descriptors = 0.0, 0
    for each in descendants(pid):
        try:
            descriptors += len(os.listdir(f"/proc/{each}/fd"))
            for line in Path(f"/proc/{each}/status").read_text().splitlines():
                if line.startswith("RssAnon:"):
                    memory += int(line.split()[1]) / 1024
        except OSError:  # A child may have ended meanwhile.
            if each == pid:
                raise
    return memory, descriptors


def store_mib(store: Path) -> tuple[float, float]:
    """Return the size of a store's journals and the disk usage of all its files."""
    journals = blocks = 0
    for directory, _, names in os.walk(store):
        for name in names:
            try:
                seen = os.stat(os.path.join(directory, name))
            except FileNotFoundError:  # Deleted meanwhile.
                continue
            blocks += seen.st_blocks
            journals += seen.st_size * ("journal" in name)
    return journals / MIB, blocks * 512 / MIB


def slope_an_hour(rows: Sequence[tuple[float, float]]) -> float:
    """Return the median slope an hour between all pairs of rows (minute, value).

    A sawtooth and a few outliers hardly change it.
    """
    slopes = [
        (later - earlier) / (after - before) * 60
        for (before, earlier), (after, later) in itertools.combinations(rows, 2)
    ]
    return statistics.median(slopes)


class Verdict(NamedTuple):
    """The verdict on a series: flat or not; None if it has too few rows."""

    text: str
    is_flat: bool | None


def judge(what: str, quantity: Quantity, rows: Sequence[tuple[float, float]]) -> Verdict:
    """Judge a series of (minute, value)."""
    kept = [row for row in rows if row[0] >= WARM_UP_MINUTES]
    label = f"{what}: {quantity.name}"
    if len(kept) < ROWS_MIN:
        return Verdict(f"{label} not judged: {len(kept)} rows after minute {WARM_UP_MINUTES}", None)
    median, slope = statistics.median(value for _, value in kept), slope_an_hour(kept)
    bound = max(SLOPE_MAX * median, quantity.floor)
    is_flat = slope <= bound
    unit = f" {quantity.unit}" if quantity.unit else ""
    verdict = "flat" if is_flat else "GROWS"
    return Verdict(
        f"{label} {verdict}: median {median:.1f}{unit}, {slope:+.2f} an hour (at most {bound:.2f})", is_flat
    )
