"""Sentences with figures: every number in one is an evidence value."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from stepscope.diagnosis.result import Evidence
from stepscope.trace.units import shown

_COUNTED = re.compile(
    r"\{(\w+)\}( (?:kernels|launches|pauses|steps|times(?! as| the)|workers|micro-batches)\b)?"
)
"""A place and what it counts, which is one where the figure is 1: "1 pause", not "1 pauses"."""
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
"""A figure in a sentence."""
_OF_A_STEP = re.compile(r"\bof (?:each|a) step\b(?!')")
_PER_STEP = re.compile(r"\b(?:per step|a step|in each step)\b(?!')")


def filled(template: str, evidence: Iterable[Evidence], texts: Mapping[str, str]) -> str:
    """The sentence of a template.

    Args:
        template: text with ``{name}`` for a figure or a text.
        evidence: the figures.
        texts: the texts; a text wins over a figure of the same name.

    Raises:
        KeyError: a name is neither.
    """
    values = {item.figure: shown(item.value, item.unit) for item in evidence} | dict(texts)

    def place(match: re.Match[str]) -> str:
        value, noun = values[match[1]], match[2] or ""
        return value + (_singular(noun) if value == "1" else noun)

    return _COUNTED.sub(place, template)


def by_step(template: str, kind: str) -> str:
    """A template whose times and counts are those of a step; of the capture where none was found.

    Args:
        template: the template.
        kind: what a step is.
    """
    if kind != "whole_capture":
        return template
    template = template.replace("of each {step_ns} step", "of the {step_ns} capture")
    template = template.replace("the step takes {", "the capture takes {")
    return _PER_STEP.sub("in the capture", _OF_A_STEP.sub("of the capture", template))


def costing(title: str) -> str:
    """The verb after the title of a cause: "Small kernels cost", "Step jitter costs"."""
    return "cost" if title.endswith("kernels") else "costs"


def _singular(noun: str) -> str:
    return noun.removesuffix("es") if noun.endswith("ches") else noun.removesuffix("s")


def unsupported(sentence: str, evidence: Iterable[Evidence], names: Iterable[str]) -> list[str]:
    """Figures of a sentence that no evidence value shows.

    Args:
        sentence: the sentence.
        evidence: the figures that it may show.
        names: names in it (of ranges, kernels, files), whose digits are no figures.
    """
    for name in sorted(filter(None, names), key=len, reverse=True):
        sentence = sentence.replace(name, "")
    known = {n for item in evidence for n in NUMBER.findall(shown(item.value, item.unit))}
    return [number for number in NUMBER.findall(sentence) if number not in known]
