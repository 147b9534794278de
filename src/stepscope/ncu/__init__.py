"""Inside one kernel: Nsight Compute reports read and explained.

``reading`` gives launches with their metrics, ``limiters`` names what holds a launch back,
``roofline`` and ``explain`` say by how much, ``report_diff`` compares two reports.
"""
