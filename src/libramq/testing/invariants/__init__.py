"""The invariants that must hold in every simulation, one module per subject."""

from libramq.testing.invariants import (
    clocks,
    consumption,
    delays,
    kafka_groups,
    messages,
    offsets,
    ownership,
    pops,
    rebalances,
    slaves,
)
from libramq.testing.invariants.invariant import Invariant

#: All invariants, in the order in which they are checked.
INVARIANTS: tuple[type[Invariant], ...] = (
    messages.AcknowledgedMessageSurvives,
    messages.OneMessageAnOffset,
    offsets.CommitIsKept,
    offsets.CommitWithinDurable,
    offsets.DoneWhenDurable,
    ownership.OneReaderAQueue,
    ownership.OwnersGoForward,
    ownership.NoHandlerAfterTheSession,
    consumption.OrderWithinOwner,
    consumption.OneAtATimeInOrder,
    consumption.DuplicatesAreExplained,
    ownership.HandoversAreShort,
    ownership.ReadersKeepTheirQueues,
    ownership.EveryQueueOwned,
    rebalances.HistoryAgreesWithFences,
    messages.RetriesAreExact,
    consumption.ConsumedAtLeastOnce,
    consumption.BroadcastReachesEverybody,
    clocks.ClocksChangeNothing,
    slaves.SlavesOnlyRead,
    slaves.SlavesHaveTheLog,
    slaves.PromotionsLoseNothing,
    delays.DelayedMessagesArrive,
    delays.DelayedMessagesComeOnce,
    messages.RolledBackStaysHidden,
    pops.PoppedAtLeastOnce,
    pops.AttemptsComeOnce,
    pops.AcknowledgedStaysDone,
    pops.DeadLettersWereSeen,
    pops.ResetsReplay,
)

#: The invariants of Kafka's groups, checked only if there are any.
KAFKA_INVARIANTS: tuple[type[Invariant], ...] = (
    kafka_groups.OneKafkaOwner,
    kafka_groups.KafkaEpochsGoForward,
    kafka_groups.KafkaMovesHaveCauses,
    kafka_groups.KafkaCommitsAreKept,
    kafka_groups.KafkaPartitionsOwned,
    kafka_groups.KafkaConsumedAtLeastOnce,
)

__all__ = ["INVARIANTS", "KAFKA_INVARIANTS", "Invariant"]
