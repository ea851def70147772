"""The kinds of synthetic histories, by name."""

from collections.abc import Callable, Mapping
from random import Random
from types import MappingProxyType
from typing import Final

from libramq.lab.crew import Crew, Size
from libramq.lab.histories.autoscaling import autoscaling
from libramq.lab.histories.flapping import flapping
from libramq.lab.histories.rolling_deploy import rolling_deploy
from libramq.lab.histories.subscriptions import subscriptions
from libramq.lab.histories.zone_loss import zone_loss
from libramq.lab.history import History

KINDS: Final[Mapping[str, Callable[[str, Crew], History]]] = MappingProxyType(
    {
        "rolling_deploy": rolling_deploy,
        "autoscaling": autoscaling,
        "flapping": flapping,
        "zone_loss": zone_loss,
        "subscriptions": subscriptions,
    }
)


def synthetic(kind: str, group: str, size: Size, seed: int) -> History:
    """The history of a group: the same for the same arguments, on any machine."""
    return KINDS[kind](group, Crew(size, Random(f"{seed} {group} {kind}")))
