"""The glossary, and the page about threads, calls, errors and tools: from the knowledge base."""

from __future__ import annotations

from stepscope.knowledge.entry import KINDS, Entry, entries
from stepscope.knowledge.goal import goals
from stepscope.knowledge.guidance import Machine, advise
from tools.docs.markdown import code, page, prose

GLOSSARY = "docs/glossary.md"

_HEADINGS = {
    "thread": "Threads and processes of a training job",
    "call": "Calls of CUDA, NCCL and the C library",
    "error": "Messages of profilers and frameworks",
    "tool": "Tools, and when each is the right one",
}


def glossary_page() -> str:
    """All terms, in the order of the alphabet."""
    parts = [
        "# Glossary",
        "The terms of this field, as Stepscope uses them in its output, its tables and these "
        "pages. `stepscope explain TERM` prints them in the terminal.",
    ]
    parts += [
        f"### {entry.title}\n{prose(entry.meaning)}"
        for entry in entries().values()
        if entry.kind == "term"
    ]
    return page(parts)


def knowledge_page() -> str:
    """Everything else that is known, by kind."""
    parts = [
        "# Threads, calls, errors and tools",
        "What stands in captures and in the output of profilers, and what it means. "
        "`stepscope explain NAME` prints an entry, found by any name that a capture or a terminal "
        "shows; it also explains causes, levers, reports, rules, columns, limiters, stall reasons, "
        "kernel categories and import problems.",
    ]
    for kind in KINDS:
        if kind == "term":
            continue
        parts.append(f"## {_HEADINGS[kind]}")
        for entry in entries().values():
            if entry.kind == kind:
                parts += _entry(entry)
    return page(parts)


def goals_page() -> str:
    """Every goal of ``stepscope guide``, with its ways."""
    parts = [
        "# Which tool when",
        "What `stepscope guide` knows. There it also says what the machine at hand lacks, holds "
        "your program (`stepscope guide --goal scaling -- torchrun train.py`), and begins with "
        "what a capture that you have answers (`--capture PATH`). How it is meant: "
        "[the guide](../guides/guide.md). Here `python train.py` stands for the program, `run1` "
        "for its capture.",
    ]
    for goal in goals().values():
        parts += [f"## {goal.title}", prose(goal.meaning)]
        for number, route in enumerate(advise(goal, Machine()).routes, 1):
            needs = ", ".join(map(code, goal.ways[number - 1].needs))
            parts.append(f"**{number}. {route.title}**: {prose(route.when)}")
            parts.append("```sh\n" + "\n".join([*route.record, *route.read]) + "\n```")
            overhead = prose(route.overhead) + (f" ({route.source})" if route.source else "")
            parts.append(
                f"- Look for: {prose(route.look_for)}\n- Overhead: {overhead}\n"
                f"- Needs of `stepscope doctor`: {needs}\n- Next: {prose(route.next)}"
            )
        parts.append(f"`stepscope guide --goal {goal.id}`; see {', '.join(map(code, goal.see))}.")
    return page(parts)


def _entry(entry: Entry) -> list[str]:
    parts = [f"### {entry.title}", prose(f"{entry.meaning} {entry.reading}")]
    if entry.remedies:
        parts.append("\n".join(f"- {prose(remedy)}" for remedy in entry.remedies))
    if entry.overhead:
        measured = f" ({prose(entry.reference)})" if entry.reference else ""
        parts.append(f"Overhead: {prose(entry.overhead)}{measured}.")
    closing = [f"`stepscope explain {entry.id}`"]
    if entry.see:
        closing.append(f"see also {', '.join(map(code, entry.see))}")
    if entry.reference and not entry.overhead:
        closing.append(f"from {prose(entry.reference)}")
    parts.append("; ".join(closing) + ".")
    return parts
