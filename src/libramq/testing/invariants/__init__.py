"""The invariants: what must hold in every simulation, whatever happens. One module per subject."""

from libramq.testing.invariants.clocks import ClocksChangeNothing
from libramq.testing.invariants.consumption import (
    BroadcastReachesEverybody,
    ConsumedAtLeastOnce,
    DuplicatesAreExplained,
    OneAtATimeInOrder,
    OrderWithinOwner,
)
from libramq.testing.invariants.delays import DelayedMessagesArrive, DelayedMessagesComeOnce
from libramq.testing.invariants.invariant import Invariant
from libramq.testing.invariants.kafka_groups import (
    KafkaCommitsAreKept,
    KafkaConsumedAtLeastOnce,
    KafkaEpochsGoForward,
    KafkaMovesHaveCauses,
    KafkaPartitionsOwned,
    OneKafkaOwner,
)
from libramq.testing.invariants.messages import (
    AcknowledgedMessageSurvives,
    OneMessageAnOffset,
    RetriesAreExact,
    RolledBackStaysHidden,
)
from libramq.testing.invariants.offsets import CommitIsKept, CommitWithinDurable, DoneWhenDurable
from libramq.testing.invariants.ownership import (
    EveryQueueOwned,
    HandoversAreShort,
    NoHandlerAfterTheSession,
    OneReaderAQueue,
    OwnersGoForward,
    ReadersKeepTheirQueues,
)
from libramq.testing.invariants.pops import (
    AcknowledgedStaysDone,
    AttemptsComeOnce,
    DeadLettersWereSeen,
    PoppedAtLeastOnce,
    ResetsReplay,
)
from libramq.testing.invariants.rebalances import HistoryAgreesWithFences
from libramq.testing.invariants.slaves import PromotionsLoseNothing, SlavesHaveTheLog, SlavesOnlyRead

#: All invariants, in the order in which they are checked.
INVARIANTS: tuple[type[Invariant], ...] = (
    AcknowledgedMessageSurvives,
    OneMessageAnOffset,
    CommitIsKept,
    CommitWithinDurable,
    DoneWhenDurable,
    OneReaderAQueue,
    OwnersGoForward,
    NoHandlerAfterTheSession,
    OrderWithinOwner,
    OneAtATimeInOrder,
    DuplicatesAreExplained,
    HandoversAreShort,
    ReadersKeepTheirQueues,
    EveryQueueOwned,
    HistoryAgreesWithFences,
    RetriesAreExact,
    ConsumedAtLeastOnce,
    BroadcastReachesEverybody,
    ClocksChangeNothing,
    SlavesOnlyRead,
    SlavesHaveTheLog,
    PromotionsLoseNothing,
    DelayedMessagesArrive,
    DelayedMessagesComeOnce,
    RolledBackStaysHidden,
    PoppedAtLeastOnce,
    AttemptsComeOnce,
    AcknowledgedStaysDone,
    DeadLettersWereSeen,
    ResetsReplay,
)

#: Those of Kafka's groups, where there are any.
KAFKA_INVARIANTS: tuple[type[Invariant], ...] = (
    OneKafkaOwner,
    KafkaEpochsGoForward,
    KafkaMovesHaveCauses,
    KafkaCommitsAreKept,
    KafkaPartitionsOwned,
    KafkaConsumedAtLeastOnce,
)

__all__ = ["INVARIANTS", "KAFKA_INVARIANTS", "Invariant"]
