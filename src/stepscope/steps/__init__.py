"""The loop's steps: what marks them, what they are, where they begin and end, what they cover.

:func:`.find.find_steps` decides what a step is; :mod:`.windows` cuts the device's time at the
steps; :mod:`.kinds` says what kind of step it is and what repeats inside; :mod:`.coverage` says
which share of the capture lies in the steps.
"""
