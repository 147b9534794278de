"""``stepscope ceilings``."""

from __future__ import annotations

import click

from stepscope.cli import options, registry


@registry.command(
    "Capture",
    order=4,
    examples={
        "stepscope ceilings -o h200.json": "measure, and keep for the option --ceilings",
    },
)
@click.option("--device", default=0, show_default=True, help="Number of the GPU.", metavar="N")
@click.option(
    "--output",
    "-o",
    type=click.Path(),
    help="Write the measured peaks to this file, for the option --ceilings.",
    metavar="FILE",
)
@options.formats(*options.TABLE_FORMATS)
def command(device: int, output: str | None, format_: str) -> None:
    """Measure the peak rates of this machine's GPU, for rooflines.

    Bandwidth of DRAM (streams of loads, and of loads and stores) and of L2; multiply-adds in FP32
    and FP64; GEMMs of every type that its tensor cores support, with cuBLASLt. Each is the best of
    five batches after a warm-up, on random numbers, since zeros draw less power. It takes some ten
    seconds and up to 3 GiB of GPU memory; nothing else should use the GPU meanwhile. The
    datasheet's value is printed next to each.

    Only --output stores the result; without --ceilings a diagnosis uses the datasheet, so that
    everyone gets the same one.
    """
    import msgspec

    from stepscope.api.recording import measure_ceilings

    found = measure_ceilings(device, _say)
    text = msgspec.json.format(msgspec.json.encode(found)).decode() + "\n"
    if output:
        options.write_to(text, output)
        _say(f"written: {output}; give it to kernels --roofline or diagnose as --ceilings")
    if format_ == "json":
        options.write(text)
    else:
        from stepscope.api.inputs import ceilings_beside_data_sheet

        options.write_table(ceilings_beside_data_sheet(text.encode()), format_, "")
    for warning in found["warnings"]:
        _say(warning)


def _say(text: str) -> None:
    click.echo(f"stepscope: {options.plain(text)}", err=True)
