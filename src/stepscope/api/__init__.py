"""The one facade: everything that front doors, notebooks and scripts call.

:func:`open` gives a :class:`~stepscope.api.job.Job`. It is composed of parts that are made when
they are first asked for:

* :mod:`~stepscope.api.inputs`: which files a path stands for; the bundled capture; ceilings.
* :mod:`~stepscope.api.explained`: steps, accounting and gaps of every device, the job's replay and
  its causes.
* :mod:`~stepscope.api.tables`: SQL over the job's tables.
* :mod:`~stepscope.api.reports`: reports and rules.
* :mod:`~stepscope.api.views`: the timeline, what the page asks of it, files for other viewers.
* :mod:`~stepscope.api.answers`, :mod:`~stepscope.api.stored`: what took long to find, kept.

Without an opened job: :mod:`~stepscope.api.runs` compares and judges several runs,
:mod:`~stepscope.api.history` keeps them, :mod:`~stepscope.api.ncu` reads what Nsight Compute wrote,
:mod:`~stepscope.api.recording` records a program.
"""

from __future__ import annotations

from stepscope.api.job import Job, OpenOptions

__all__ = ["Job", "OpenOptions", "open"]

open = Job
"""Open captures as one job; see :class:`~stepscope.api.job.Job`."""
