"""The upkeep feature: writing tables, removing old files of the log, and closing all files last."""

from libramq.broker.features.feature import Base, Feature
from libramq.broker.files.files import retention
from libramq.broker.files.old_files import OldFiles
from libramq.broker.files.persistence import Persistence
from libramq.broker.processor.administration.cleaning import CleaningRequests
from libramq.kernel.engine import Hooks


class UpkeepFeature(Feature):
    """Keeps the files of all features, and is closed last."""

    def __init__(self, base: Base) -> None:
        self._base = base
        self.old_files = OldFiles(base.store, retention(base.config), base.kernel)
        persistence = Persistence(base.files, base.kernel)
        requests = CleaningRequests(base.files, base.offsets, self.old_files, base.responder.answer)
        self.services = [requests]
        # What a slave has to write depends on other brokers, too.
        settle = [persistence.look] if base.config.is_slave else []
        self.hooks = Hooks(settle=settle, ticked=[persistence.look, self.old_files.look])

    def close(self) -> None:
        """Write everything, and close the store."""
        try:
            if self._base.store.lost is None:
                self._base.offsets.write()
        finally:
            self._base.files.close()
