"""What each rank sends to each other."""

from __future__ import annotations

from stepscope.collectives.kinds import DTYPE_BYTES
from stepscope.jobs.recipes.recipe import IDENTITY, Chart, Figure, Output, Recipe
from stepscope.reports.needs import Need

_COLLECTIVES = Need(
    "collectives with their ranks and sizes",
    "collective",
    "torch.profiler (stepscope run --backend torch)",
    "collective WHERE group_ranks IS NOT NULL AND in_elements IS NOT NULL",
)
_ELEMENT = (
    "CASE lower(dtype) "
    + " ".join(f"WHEN '{name}' THEN {size}" for name, size in DTYPE_BYTES.items())
    + " ELSE NULL END"
)
# what goes from one rank to one other of n, for each byte that a rank gives
_EACH = """CASE
    WHEN operation LIKE '%allreduce%' THEN 2.0 / n
    WHEN operation LIKE '%gather%' THEN 1.0
    WHEN operation LIKE '%reducescatter%' OR operation LIKE '%all%to%all%' THEN 1.0 / n
    ELSE 1.0 / (n - 1) END"""
_SQL = f"""
SELECT operation, members, n, count(*)::BIGINT, sum(given)::BIGINT,
    sum({_EACH} * given)::DOUBLE, sum(op.end_ns - op.start_ns)::BIGINT
FROM (
    SELECT process_id, correlation_id, replace(lower(name), '_', '') AS operation,
        in_elements * {_ELEMENT} AS given,
        array_to_string(regexp_extract_all(group_ranks, '[0-9]+'), ' ') AS members,
        len(regexp_extract_all(group_ranks, '[0-9]+'))::BIGINT AS n
    FROM collective WHERE group_ranks IS NOT NULL AND in_elements IS NOT NULL
) AS one JOIN gpu_op AS op USING (process_id, correlation_id)
WHERE n > 1 AND op.kind = 'kernel' GROUP BY operation, members, n
"""

RECIPE = Recipe(
    "comm_matrix",
    "Communication Matrix",
    "Bytes that each rank must send to each other for the collectives of the capture: 2/n of a "
    "message for an all-reduce of n ranks, all of it for an all-gather, 1/n for a reduce-scatter "
    "or an all-to-all, and a share each of the others for the rest. Which neighbours a ring or a "
    "tree really takes is not recorded, so a group's bytes are spread evenly over its ranks.",
    _SQL,
    (
        Output(
            "matrix",
            "One pair of ranks.",
            {
                "rank": "rank that sends",
                "peer": "rank that receives",
                "collectives": "collectives that both take part in",
                "sent_bytes": "sum over them, bytes",
            },
            "SELECT rank, peer, sum(collectives)::BIGINT AS collectives, "
            "sum(peer_bytes)::BIGINT AS sent_bytes FROM ("
            "SELECT *, unnest(string_split(members, ' '))::BIGINT AS peer FROM part) "
            "WHERE peer <> rank GROUP BY rank, peer ORDER BY rank, peer",
            ("rank", "peer"),
        ),
        Output(
            "operations",
            "Collectives of one kind in one group, on one rank.",
            {
                **IDENTITY,
                "kind": "kind, as the source calls it",
                "members": "ranks of the group",
                "group_size": "how many",
                "collectives": "how many kernels",
                "given_bytes": "bytes that the rank gave, sum",
                "kernel_ns": "time of the kernels, waiting for other ranks included, ns",
            },
            "SELECT rank, capture, kind, members, group_size, collectives, given_bytes, kernel_ns "
            "FROM part ORDER BY rank, kernel_ns DESC, kind, members",
            ("rank", "kind", "members"),
        ),
    ),
    columns=(
        *("kind", "members", "group_size", "collectives", "given_bytes", "peer_bytes"),
        "kernel_ns",
    ),
    charts=(
        Chart(
            "heat",
            "matrix",
            "Bytes from rank (down) to rank (across)",
            "sent_bytes",
            x="peer",
            y="rank",
            unit="bytes",
        ),
        Chart(
            "bar",
            "operations",
            "Time in communication kernels by rank and kind",
            "kernel_ns",
            y="rank",
            group="kind",
            unit="ns",
        ),
    ),
    figures=(
        Figure("sent", "sent by all ranks", "bytes", "SELECT sum(sent_bytes) FROM matrix"),
        Figure("pairs", "pairs of ranks", "count", "SELECT count(*) FROM matrix"),
        Figure(
            "kernel_time",
            "time in communication kernels",
            "ns",
            "SELECT sum(kernel_ns) FROM operations",
        ),
    ),
    needs=(_COLLECTIVES,),
)
