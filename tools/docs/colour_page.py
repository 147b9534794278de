"""The reference page about colours: the one legend of all views."""

from __future__ import annotations

from stepscope.timeline.classes import CLASSES
from stepscope.timeline.colours import COLOURS, NAMED, OF_CAUSE, meaning
from tools.docs.markdown import code, table


def colours_page() -> list[str]:
    """Parts of the page on colours."""
    parts = [
        "# Colours",
        "Each colour has one meaning in all views: the timeline, the steps side by side, two runs "
        "side by side, and drawn reports. Work of a GPU is cool (blue, green, purple); what waits, "
        "and what holds it up, is warm. A call has the colour of the idle time that it causes. "
        "Where idle time stands in one row with work, it is hatched besides. Colours of one row "
        "can be told apart with the common kinds of colour blindness, and stand out from the light "
        "and the dark page. The page lists them under *Colours*, and every box says in words what "
        "it is.",
    ]
    shared: dict[str, list[str]] = {}
    for key in CLASSES:
        shared.setdefault(meaning(key), []).append(code(key))
    for cause, key in OF_CAUSE.items():
        shared.setdefault(key, []).append(f"cause {code(cause)}")
    for section in dict.fromkeys(colour.section for colour in COLOURS.values()):
        rows = [
            (code(colour.css), colour.message, ", ".join(shared.get(key, [])))
            for key, colour in COLOURS.items()
            if colour.section == section
        ]
        parts += [f"## {section}", table(("colour", "means", "classes and causes"), rows)]
    parts += [
        "## Names",
        "Ranges, operators and functions have one of eight pale colours, chosen by the name "
        "without its digits. They mean nothing else: " + ", ".join(map(code, NAMED)) + ".",
    ]
    return parts
