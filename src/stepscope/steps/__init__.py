"""The loop's steps: what marks them, what they are, where they begin and end, what they cover.

:func:`.detection.find_steps` decides what a step is; :mod:`.kinds` says what kind of step it is and
what repeats inside; :mod:`.model` cuts the device's time at the steps and accounts for it.
"""
