"""What tables and the step view of a large job need, stored: the facade's part about that.

Another process explains the job and stores it (``server/background.py``); the server then reads
what a question needs, and never holds an explained job in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from stepscope.session.shelves import STEPS, TABLES, Shelves
from stepscope.trace.arrays import NotWholeError
from stepscope.trace.cache import Cache
from stepscope.trace.errors import StorageError

if TYPE_CHECKING:
    from stepscope.session import Session
    from stepscope.timeline.panels import Panels as Panels  # noqa: PLC0414 - for the server
    from stepscope.timeline.stepview.steps import StepView as StepView  # noqa: PLC0414 - for the server

__all__ = ["STEPS", "TABLES", "Prepared", "store"]


class Prepared:
    """Tables and steps of a job, stored ones where the job is explained elsewhere.

    Args:
        session: the opened job.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._cache = Cache(session.cache_folder)  # holds what it gives as long as this
        self._shelves = Shelves(
            session.job.members, self._cache, session.paths, session.choice.text
        )
        self._steps: StepView[Any] | None = None

    def panels(self) -> Panels | None:
        """Tables and flame graphs; None where tables are to be stored, and are not yet."""
        panels = self._session.panels
        if self._session.explains_elsewhere and not panels.is_stored:
            from stepscope.timeline.stored_tables import StoredTables

            try:
                panels.use(StoredTables(self._shelves.place(TABLES), self._shelves.identity))
            except (NotWholeError, StorageError, OSError):
                return None
        return panels

    def steps(self) -> StepView[Any] | None:
        """The step view; None where it is to be stored, and is not yet."""
        if self._steps is None:
            if not self._session.explains_elsewhere:
                self._steps = self._session.aligned
            else:
                from stepscope.timeline.stepview.stored import open_steps, stored_view

                timeline = self._session.timeline
                ranks = [member.rank for member in timeline.members]
                with suppress(NotWholeError, StorageError, OSError):
                    file = open_steps(self._shelves.place(STEPS), self._shelves.identity)
                    self._steps = stored_view(file, ranks, timeline.offsets_ns)
        return self._steps


def store(session: Session, stored: Callable[[str], None]) -> None:
    """Store what tables and the step view need, where that is not done yet.

    Args:
        session: the opened job.
        stored: is told the name of each file that is there.

    Raises:
        InputError: a trace holds no GPU work.
        StorageError: the cache cannot be written.
    """
    from stepscope.jobs.view import JobView
    from stepscope.timeline.panels import Panels
    from stepscope.timeline.stepview.stored import open_steps, store_steps
    from stepscope.timeline.stored_tables import StoredTables

    shelves = Shelves(
        session.job.members, Cache(session.cache_folder), session.paths, session.choice.text
    )
    if not shelves.holds(STEPS, open_steps):
        shelves.write(STEPS, lambda path, who: store_steps(path, who, session.aligned))
    stored(STEPS)
    if not shelves.holds(TABLES, StoredTables):
        # not the session's own panels, which would keep all columns while it diagnoses
        panels = Panels(session.timeline, lambda: JobView(session.devices))
        shelves.write(TABLES, panels.store)
    stored(TABLES)
