"""The pages of ``docs/reference``, each made from a registry."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import ModuleType

import click

import stepscope
from stepscope.activity import host
from stepscope.breakdown import outliers
from stepscope.cli import main as command_line
from stepscope.cli import registry
from stepscope.cli.options import WithActions
from stepscope.derived import derived_tables
from stepscope.diagnosis import lever, predictions
from stepscope.diagnosis.cause import Cause, causes
from stepscope.gaps import gil, profiler_overhead, stalls
from stepscope.gaps import idle as gaps
from stepscope.gaps import untraced_cpu as untraced_cpu_
from stepscope.importers.registry import importers
from stepscope.jobs import digest
from stepscope.simulation import overlap, program, setting, waits, without_causes
from stepscope.simulation import settings as setting_package
from stepscope.simulation.settings import base as setting_base
from stepscope.trace.meta import MissingTable
from stepscope.trace.problems import DECLARED, ProblemKind
from stepscope.trace.schema import SCHEMA_VERSION, TABLES
from tools.docs.agents_page import agents_page
from tools.docs.answers import reports_page, rules_page
from tools.docs.colour_page import colours_page
from tools.docs.comparison import comparison_parts
from tools.docs.contracts import CONTRACTS, json_page, json_schema
from tools.docs.kernel_pages import kernels_page
from tools.docs.knowledge_pages import goals_page, knowledge_page
from tools.docs.markdown import (
    attributes,
    code,
    constants,
    first_sentence,
    page,
    prose,
    summary,
    table,
    text_constants,
)
from tools.docs.ncu_pages import limiters_page
from tools.docs.predictions_page import predictions_page
from tools.docs.rawformat import raw_format_page
from tools.docs.recipe_pages import recipes_page
from tools.docs.snippets import demo_job
from tools.docs.tries import tries_page

PACKAGE = Path(stepscope.__file__).parent

ENVIRONMENT = {
    "STEPSCOPE_CACHE_DIR": (
        "folder of the cache of imported captures; the platform's user cache by default "
        "(`$XDG_CACHE_HOME/stepscope` or `~/.cache/stepscope`, on macOS "
        "`~/Library/Caches/stepscope`)"
    ),
    "STEPSCOPE_CACHE_MAX_BYTES": "size bound of that cache, a whole number of bytes; 20 GB",
    "STEPSCOPE_DATA_DIR": (
        "folder of notes about captures beside which nothing can be written; by default "
        "`$XDG_DATA_HOME/stepscope` or `~/.local/share/stepscope`, on macOS "
        "`~/Library/Application Support/stepscope`"
    ),
    "STEPSCOPE_NSYS": (
        "the `nsys` that reads `.nsys-rep` files; the one on `PATH`, else the newest in the usual "
        "folders"
    ),
    "STEPSCOPE_REPORT_PATH": "folders with own reports, separated as in `PATH`",
    "STEPSCOPE_HISTORY": "the run history that `stepscope history` uses without `--file`",
    "STEPSCOPE_MCP_TOKEN": "the secret part of the address of `stepscope mcp --http`, so that it "
    "stays the same from one start to the next; 16 to 128 letters, digits, hyphens, underscores",
    "STEPSCOPE_QUERY_TIMEOUT": (
        "seconds that SQL may take, of `query`, `verify`, own reports and evidence; 300"
    ),
    "STEPSCOPE_QUERY_MEMORY": (
        "memory that SQL may take, such as `4GB`; by default half of what the machine or container "
        "has. Nothing is spilled to disk"
    ),
    "STEPSCOPE_CUPTI": "the `libcupti` that the collector shall use; the program's own by default",
    "STEPSCOPE_CUBLASLT": (
        "the `libcublasLt` that `stepscope ceilings` shall use; that of PyTorch's packages or of "
        "the CUDA toolkit by default"
    ),
    "STEPSCOPE_CAPTURE": (
        "set by `stepscope run` for the program: the collector's configuration. Not for users"
    ),
    "STEPSCOPE_TRY": (
        "set by `stepscope run --try` for the program: the fixes that it runs with, `before` "
        "without any, `recorded` in the recorded run"
    ),
    "STEPSCOPE_TRY_PARENT": (
        "set by `stepscope run --try` in the program, for the processes that it starts. Not for "
        "users"
    ),
    "STEPSCOPE_DEBUG": "set to anything: a bug shows its traceback instead of one line",
}
"""What the environment variables do; they have no registry, so the scan below guards this one."""


def digest_page() -> str:
    """Columns of digests."""
    parts = [
        "# Digests",
        "What `stepscope digest` writes: a Parquet file with one row for each device of a rank, "
        f"layout version {digest.VERSION}. `stepscope job` reads it; so does any Parquet reader, "
        'as in `duckdb -c "SELECT rank, unnest(steps, recursive := true) FROM '
        "'digests/*.parquet'\"`. A reader refuses a newer version; within a version columns are "
        "only added. A digest holds the first "
        f"{digest.MOST_STEPS} steady steps, at most {digest.MOST_CALLS} collectives of them, and "
        f"the {digest.MOST_KERNELS} kernels of most time.",
        "## Columns",
        table(
            ("column", "type", "meaning"),
            [(code(c.name), code(c.type), prose(c.doc)) for c in digest.FACTS],
        ),
    ]
    for spec in digest.LISTS.values():
        rows = [(code(c.name), code(c.type), prose(c.doc)) for c in spec.columns]
        parts += [
            f"## {spec.name}",
            f"A list of structs. {prose(spec.doc)}",
            table(("field", "type", "meaning"), rows),
        ]
    return page(parts)


def tables_page() -> str:
    """Canonical and analysis tables."""
    parts = [
        "# Tables",
        "What `stepscope query` sees, and what a stored trace holds (layout version "
        f"{SCHEMA_VERSION}). Times are integer nanoseconds since the capture's origin. In SQL "
        "every table has a further first column `rank`. A table that the capture does not fill is "
        "there without rows. A column marked *null* may be empty.",
        "## Canonical tables",
    ]
    for spec in TABLES.values():
        order = f" Sorted by `{spec.sort}`." if spec.sort else ""
        rows = [
            (code(c.name), c.type + (", null" if c.nullable else ""), prose(c.doc))
            for c in spec.columns
        ]
        parts += [f"### {spec.name}", f"{prose(spec.doc)}{order}"]
        parts.append(table(("column", "type", "meaning"), rows))
    parts.append("## Analysis tables")
    derived = {name: (found.doc, found.columns) for name, found in derived_tables().items()}
    derived["prediction"] = (predictions.DOC, predictions.COLUMNS)
    derived["kernel_lever"] = (lever.TABLE_DOC, lever.TABLE_COLUMNS)
    with demo_job() as job:
        for name, (doc, columns) in derived.items():
            schema = job.query(f"SELECT * FROM {name} LIMIT 0").schema
            if schema.names != list(columns):
                raise ValueError(f"{name} has other columns than it declares")
            rows = [
                (code(n), _sql_type(str(schema.field(n).type)), prose(columns[n])) for n in columns
            ]
            parts += [f"### {name}", prose(doc)]
            parts.append(table(("column", "type", "meaning"), rows))
    return page(parts)


def problems_page() -> str:
    """Import problems."""
    severities = attributes(ProblemKind)["severity"]
    parts = [
        "# Import problems",
        "What an import may notice and count. `stepscope info` and `stepscope diagnose` show it. "
        f"Severities: {prose(severities)}",
    ]
    texts = text_constants(PACKAGE, "|".join(map(re.escape, DECLARED)))
    for kind in DECLARED.values():
        files = texts.get(kind.id, set()) - {"trace/problems.py"}
        by = sorted({file.split("/")[1] for file in files if file.startswith("importers/")})
        if any(file.startswith("trace/") for file in files):
            by = ["every importer"]
        parts += [
            f"## {kind.id}",
            f"*{kind.severity}.* {prose(kind.message)}.",
            f"**Do:** {prose(kind.remedy)}.",
            f"Counted by: {', '.join(by) or 'no importer so far'}.",
        ]
    return page(parts)


def causes_page() -> str:
    """Causes, one section each."""
    parts = [
        "# Causes",
        "What a diagnosis can name. A cause is reported from the given share of the mean steady "
        "step on. [How it works](../how-it-works.md) explains how time is charged to causes.",
        table(
            ("cause", "title", "reported from"),
            [(f"[`{c.id}`](#{c.id})", c.title, _threshold(c)) for c in causes().values()],
        ),
    ]
    for cause in causes().values():
        idle = cause.id in gaps.CAUSES
        parts += [
            f"## {cause.id}",
            f"**{cause.title}.** {prose(cause.definition)}",
            f"- Detected by: {first_sentence(cause.detect)}\n"
            f"- Differential: {prose(cause.differential)}\n"
            f"- Prediction: {prose(cause.prediction)}\n"
            f"- What helps: {'; '.join(map(prose, cause.remedies))}\n"
            f"- Reported from: {_threshold(cause)}\n"
            f"- Idle time is charged to it: {'yes' if idle else 'no'}\n"
            + ("" if cause.of_program else f"- {prose(attributes(Cause)['of_program'])}\n")
            + f"- Reference: {prose(cause.reference)}\n",
        ]
    return page(parts)


def levers_page() -> str:
    """Levers, one section each."""
    known = lever.levers()
    parts = [
        "# Levers",
        "What a diagnosis names as left to gain in the kernels of a step, in the order in which "
        "levers take their kernels. A lever is named where its gain is above the noise: two "
        "standard errors of the mean step, and at least "
        f"{100 * lever.NOISE_SHARE:.0f} % of it. It gains at most the time of its kernels, and "
        "changes none that a [finding](causes.md) changes, unless it is the repair of that finding "
        "for all such kernels: then it says so.",
        table(
            ("lever", "title", "not where this is found"),
            [
                (
                    f"[`{one.id}`](#{one.id})",
                    one.title,
                    ", ".join(f"[`{cause}`](causes.md#{cause})" for cause in one.instead),
                )
                for one in known.values()
            ],
        ),
    ]
    for one in known.values():
        parts += [
            f"## {one.id}",
            f"**{one.title}.** {prose(one.definition)}",
            f"- Found by: {first_sentence(one.find)}\n"
            f"- How to tell it apart: {prose(one.differential)}\n"
            f"- Prediction: {prose(one.prediction)}\n"
            f"- Reference: {prose(one.reference)}\n",
        ]
    return page(parts)


def commands_page() -> str:
    """Commands and their options."""
    exits = first_sentence(command_line.main).partition(": ")[2]
    parts = [
        "# Commands",
        f"Exit codes: {exits}",
    ]
    for heading, members in registry.by_group().items():
        listed = [(f"[`{name}`](#{name})", registry.summary(one)) for name, one in members.items()]
        parts += [f"**{heading}**", table(("command", "what it does"), listed)]
    group = command_line.cli
    above = click.Context(group, info_name="stepscope", **group.context_settings)
    for name in registry.commands():
        command = group.get_command(above, name)
        assert command is not None
        context = click.Context(command, info_name=name, parent=above)
        usage = " ".join(("stepscope", name, *command.collect_usage_pieces(context)))
        usage = usage.replace("[[", "[").replace("]]", "]")  # as older versions of click write it
        paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
        rows = [
            _option(p)
            for p in command.get_params(context)
            if isinstance(p, click.Option) and not p.hidden
        ]
        parts += [f"## {name}", f"```text\n{usage}\n```", *map(prose, paragraphs)]
        if isinstance(command, WithActions):
            actions = [(code(action), prose(does)) for action, does in command.actions.items()]
            parts.append(table(("action", "meaning"), actions))
        parts.append(table(("option", "values", "default", "meaning"), rows))
        if isinstance(command, registry.Command):
            lines = registry.example_lines(command.examples, 100)
            parts.append("Examples:\n\n```sh\n" + "\n".join(lines) + "\n```")
    return page(parts)


def idle_page() -> str:
    """What idle time is charged to, by what evidence, and the thresholds."""
    labels = host.LABELS
    parts = [
        "# Idle time",
        "Every idle nanosecond of the steady steps is charged to one of these "
        "(column `cause` of [`idle_gap`](tables.md#idle_gap)).",
        table(
            ("charged to", "meaning"),
            [
                (
                    f"[`{c}`](causes.md#{c})" if c in causes() else code(c),
                    prose(causes()[c].title) if c in causes() else "no rule explains it",
                )
                for c in gaps.CAUSES
            ],
        ),
        "## Evidence for long untraced CPU time",
        f"{prose(summary(untraced_cpu_).partition(chr(10) * 2)[2])} It stands in column `evidence` "
        "of [`idle_gap`](tables.md#idle_gap).",
        table(("number", "evidence"), [(str(i), t) for i, t in enumerate(untraced_cpu_.EVIDENCE)]),
        "## Evidence for events",
        "Events that own the host's time; the text stands in column `evidence` of "
        "[`host_event`](tables.md#host_event).",
        table(
            ("cause", "evidence"),
            [("`checkpoint_stall`", text) for text in stalls.STALL_EVIDENCE]
            + [("`gil_contention`", text) for text in gil.GIL_EVIDENCE],
        ),
        "## Labels of the host's timeline",
        f"{prose(constants(host)['LABELS'][1])}",
        ", ".join(map(code, labels)),
        "## Thresholds",
    ]
    for module in (gaps, host, untraced_cpu_, stalls, gil, outliers, profiler_overhead):
        rows = [
            (code(name), f"{value:,}" if isinstance(value, int) else str(value), prose(doc))
            for name, (value, doc) in constants(module).items()
            if isinstance(value, int | float) and doc
        ]
        parts.append(table(("constant", "value", "meaning"), rows))
    parts += [
        "## Cost of recording",
        prose(summary(profiler_overhead).partition("\n\n")[2]),
        table(
            ("event", "ns"),
            [
                (code(name.removesuffix("_NS").lower()), f"{value:,}")
                for name, (value, _) in constants(profiler_overhead).items()
                if isinstance(value, int) and name.endswith("_NS")
            ],
        ),
    ]
    return page(parts)


def simulation_page() -> str:
    """The constants of the simulator, and the settings that it can try."""
    parts = [
        "# Simulator",
        "What the simulator assumes where a capture does not show it. "
        "[How it works](../how-it-works.md#simulation) explains the rest.",
        _constants_of((program, waits, without_causes, overlap)),
        "## Settings",
        "What `stepscope whatif --set NAME=VALUE` and `Job.whatif` can set. Every prediction says "
        "how it is known:",
        table(("validity", "meaning"), [(code(n), t) for n, t in setting.VALIDITIES.items()]),
    ]
    for one in setting_base.settings().values():
        parts += [
            f"### {one.name}",
            f"**{one.title}**: {prose(one.help)}. Written `{one.name}={one.values}`, as in "
            f"`--set {one.name}={one.example}`.",
            f"- Model: {prose(one.model)}\n"
            f"- Assumes: {prose(one.assumes)}\n"
            f"- Checked: {prose(one.checked)}\n"
            f"- Refused: {prose(one.refuses)}\n",
        ]
    modules = [
        importlib.import_module(f"{setting_package.__name__}.{module.name}")
        for module in pkgutil.iter_modules(setting_package.__path__)
    ]
    parts += ["## Constants of settings", _constants_of(modules)]
    return page(parts)


def _constants_of(modules: Iterable[ModuleType]) -> str:
    """The documented constants of some modules."""
    rows = [
        (code(name), f"{value:,}", prose(doc))
        for module in modules
        for name, (value, doc) in constants(module).items()
        if isinstance(value, int | float) and doc
    ]
    return table(("constant", "value", "meaning"), rows)


def importers_page() -> str:
    """Importers, and what each may lack."""
    parts = [
        "# Importers",
        "A capture is recognised by its content, never by its name.",
        table(
            ("name", "reads", "revision"),
            [(f"[`{i.name}`](#{i.name})", i.title, str(i.revision)) for i in importers()],
        ),
    ]
    for importer in importers():
        module = importlib.import_module(importer.read.__module__)
        parts += [
            f"## {importer.name}",
            " ".join(prose(p) for p in summary(module).split("\n\n")),
            "What a capture may lack, and what records it:",
            table(
                ("table", "reason", "get it with"),
                [(code(a.table), prose(a.reason), code(a.flag)) for a in _missing(importer.name)],
            ),
        ]
    return page(parts)


def environment_page() -> str:
    """Environment variables."""
    read = set(text_constants(PACKAGE, "STEPSCOPE_[A-Z_]+"))
    if read != set(ENVIRONMENT):
        raise ValueError(f"ENVIRONMENT differs from what is read: {read ^ set(ENVIRONMENT)}")
    rows = [(code(name), text) for name, text in ENVIRONMENT.items()]
    return page(["# Environment variables", table(("variable", "meaning"), rows)])


PAGES: dict[str, Callable[[], str]] = {
    "commands.md": commands_page,
    "causes.md": causes_page,
    "levers.md": levers_page,
    "colours.md": lambda: page(colours_page()),
    "idle-time.md": idle_page,
    "kernels.md": lambda: page(kernels_page()),
    "limiters.md": lambda: page(limiters_page()),
    **{f"{stem}-json.md": partial(json_page, stem) for stem in CONTRACTS},
    **{f"{stem}.schema.json": partial(json_schema, stem) for stem in CONTRACTS},
    "tables.md": tables_page,
    "digest.md": digest_page,
    "simulation.md": simulation_page,
    "comparison.md": lambda: page(comparison_parts()),
    "reports.md": lambda: page(reports_page()),
    "rules.md": lambda: page(rules_page()),
    "recipes.md": lambda: page(recipes_page()),
    "tries.md": lambda: page(tries_page()),
    "problems.md": problems_page,
    "importers.md": importers_page,
    "knowledge.md": knowledge_page,
    "goals.md": goals_page,
    "environment.md": environment_page,
    "raw-format.md": lambda: page(raw_format_page()),
    "predictions.md": lambda: page(predictions_page()),
    "agents.md": lambda: page(agents_page()),
}
"""File in ``docs/reference`` -> what makes it."""


def _threshold(cause: Cause) -> str:
    if not 0 < cause.min_share < 1:
        return "verdict when nothing else is found" if cause.min_share else "always when it applies"
    return f"{100 * cause.min_share:.0f} % of the step"


def _option(option: click.Option) -> tuple[str, str, str, str]:
    choices = option.type.choices if isinstance(option.type, click.Choice) else ()
    default = option.default if isinstance(option.default, str) else ""
    names = [*option.opts, *option.secondary_opts]
    names.sort(key=lambda name: (not name.startswith("--"), name))  # click's order may vary
    values = ", ".join(code(str(choice)) for choice in choices)
    return ", ".join(map(code, names)), values, code(default), prose(option.help or "")


def _sql_type(arrow: str) -> str:
    return {"string": "text", "double": "float64"}.get(arrow, arrow)


def _missing(importer: str) -> list[MissingTable]:
    """Everything that a capture of this source may lack."""
    if importer == "nsys":
        from stepscope.importers.nsys.about import missing_tables as nsys

        return nsys({}, set())
    if importer == "stepscope":
        from stepscope.importers.stepscope.about import missing_tables as own

        return own({})
    if importer == "kineto":
        from stepscope.importers.kineto.about import missing_tables as kineto

        nothing = dict.fromkeys(
            ("shapes", "calls", "python", "memory", "sync", "distributed", "collectives"), False
        )
        part = nothing | {"distributed": True}
        found = [
            *kineto(operators=False, gpu=False, **nothing),
            *kineto(operators=True, gpu=True, **part),
        ]
        return list(dict.fromkeys(found))
    return []
