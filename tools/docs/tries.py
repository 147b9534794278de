"""The reference of the fixes that ``run --try`` knows."""

from __future__ import annotations

from stepscope.capture.tries import declared
from stepscope.compare import tried
from tools.docs.markdown import code, constants, prose, table


def tries_page() -> list[str]:
    """What there is to try: from the declarations that the command and the hook read, too."""
    found = declared().values()
    rows = [
        (
            code(one.shown),
            ", ".join([*map(code, one.repairs), *(f"{code(c)} (further)" for c in one.further)])
            or "-",
            ", ".join(map(code, one.eases)) or "-",
            "-" if one.automatic is None else "yes",
        )
        for one in found
    ]
    parts = [
        "# Fixes to try",
        "What [`run --try`](../guides/try.md) can apply to a program from outside. The "
        "prediction that is judged is that of a finding or lever in the second column; `--try auto`"
        " takes a fix for those of the third, too, where the last column says so.",
        table(("name", "repairs", "may ease", "auto"), rows),
    ]
    for one in found:
        numbers = (
            "It may change the rounding of numbers."
            if one.rounding
            else "It leaves the numbers as they are."
        )
        warmup = f" {one.warmup} steps at least are let pass." if one.warmup else ""
        parts += [
            f"## {one.name}",
            f"{prose(one.summary[0].upper() + one.summary[1:])}. {numbers}{warmup}",
            f"- To write: {code(one.lines)}\n- {prose(one.refused)}\n",
        ]
    figures = [
        (code(name), code(f"{value:g}"), prose(doc))
        for name, (value, doc) in constants(tried).items()
        if isinstance(value, float)
    ]
    method = (tried.__doc__ or "").partition("\n\n")[2]
    parts += ["## Judged by", prose(method), table(("constant", "value", "meaning"), figures)]
    return parts
