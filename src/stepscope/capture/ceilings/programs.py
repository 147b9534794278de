"""Kernels as PTX text: streams of loads and stores, and chains of multiply-adds."""

from __future__ import annotations

from typing import Final

_HEAD: Final = ".version 6.0\n.target sm_60\n.address_size 64\n"
_INDEX: Final = """
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r4, %r1, %r2, %r3;
    mov.u32 %r5, %nctaid.x;
    mul.lo.u32 %r6, %r5, %r2;
"""
"""%r4: number of the thread in the grid; %r6: threads of the grid."""

UNROLLED = 4
"""Loads of 16 bytes that a thread has in flight: with full SMs more than any device
needs to hide the latency of its memory (Little's law: bandwidth times some 800 ns)."""

CHAINS = 8
"""Independent chains of a thread: more than the four cycles that a multiply-add takes."""

STEPS = 64
"""Multiply-adds of a chain between two tests of the loop's end."""

UNIT = 16
"""Bytes of one access."""


def stream(name: str, *, store: bool) -> str:
    """A kernel ``name(from, to, count, rounds)`` that reads, and with ``store`` copies.

    ``count`` is the number of 16-byte units that a round moves, a multiple of the threads of the
    grid times ``UNROLLED``. Loads go past L1 (``.cg``). What a reading kernel adds up is written
    for each thread at ``to``, so that no load can be left out.
    """
    loads, uses, stores = [], [], []
    for n in range(UNROLLED):
        values = ", ".join(f"%f{4 * n + k + 8}" for k in range(4))
        loads.append(f"    ld.global.cg.v4.f32 {{{values}}}, [%rd{10 + n}];")
        stores.append(f"    st.global.cs.v4.f32 [%rd{20 + n}], {{{values}}};")
        uses += [f"    add.f32 %f{k + 1}, %f{k + 1}, %f{4 * n + k + 8};" for k in range(4)]
    steps = [
        f"    add.u64 %rd{at + n}, %rd{at + n - 1}, %rd7;"
        for at in (10, 20)
        for n in range(1, UNROLLED)
    ]
    lines = "\n".join
    return f"""{_HEAD}
.visible .entry {name}(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u32 p3)
{{
    .reg .pred %p<4>;
    .reg .b32 %r<16>;
    .reg .b64 %rd<32>;
    .reg .f32 %f<{8 + 4 * UNROLLED}>;
    ld.param.u64 %rd1, [p0];
    ld.param.u64 %rd2, [p1];
    ld.param.u64 %rd3, [p2];
    ld.param.u32 %r10, [p3];
    cvta.to.global.u64 %rd1, %rd1;
    cvta.to.global.u64 %rd2, %rd2;
{_INDEX}
    mov.f32 %f1, 0f00000000;
    mov.f32 %f2, 0f00000000;
    mov.f32 %f3, 0f00000000;
    mov.f32 %f4, 0f00000000;
    cvt.u64.u32 %rd4, %r4;
    cvt.u64.u32 %rd5, %r6;
    shl.b64 %rd7, %rd5, 4;
    mul.lo.u64 %rd6, %rd5, {UNROLLED};
ROUND:
    mov.u64 %rd8, %rd4;
LOOP:
    shl.b64 %rd9, %rd8, 4;
    add.u64 %rd10, %rd1, %rd9;
    add.u64 %rd20, %rd2, %rd9;
{lines(steps)}
{lines(loads)}
{lines(stores if store else uses)}
    add.u64 %rd8, %rd8, %rd6;
    setp.lt.u64 %p1, %rd8, %rd3;
    @%p1 bra LOOP;
    sub.u32 %r10, %r10, 1;
    setp.gt.s32 %p2, %r10, 0;
    @%p2 bra ROUND;
{"" if store else _write_sum()}
    ret;
}}
"""


def _write_sum() -> str:
    return """    add.f32 %f1, %f1, %f2;
    add.f32 %f3, %f3, %f4;
    add.f32 %f1, %f1, %f3;
    shl.b64 %rd9, %rd4, 2;
    add.u64 %rd9, %rd2, %rd9;
    st.global.f32 [%rd9], %f1;"""


def chain(name: str, width: int) -> str:
    """A kernel ``name(to, rounds)`` of multiply-adds in registers.

    Each thread does ``CHAINS * STEPS`` of them a round, and writes their sum at ``to``.

    Args:
        name: of the kernel.
        width: bits of a number: 32 or 64.
    """
    kind, zero, small = {
        32: ("f32", "0f00000000", "0f33D6BF95"),  # 1e-7
        64: ("f64", "0d0000000000000000", "0d3E7AD7F29ABCAF48"),  # 1e-7
    }[width]
    chains = range(1, CHAINS + 1)
    body = [f"    fma.rn.{kind} %x{n}, %x{n}, %x20, %x{n};" for _ in range(STEPS) for n in chains]
    start = [f"    add.{kind} %x{n}, %x21, {_number(n, width)};" for n in chains]
    total = [f"    add.{kind} %x22, %x22, %x{n};" for n in chains]
    lines = "\n".join
    return f"""{_HEAD}
.visible .entry {name}(.param .u64 p0, .param .u32 p1)
{{
    .reg .pred %p<2>;
    .reg .b32 %r<16>;
    .reg .b64 %rd<8>;
    .reg .{kind} %x<24>;
    ld.param.u64 %rd1, [p0];
    ld.param.u32 %r10, [p1];
    cvta.to.global.u64 %rd1, %rd1;
{_INDEX}
    cvt.rn.{kind}.u32 %x21, %r4;
    mov.{kind} %x20, {small};
    mov.{kind} %x22, {zero};
{lines(start)}
LOOP:
{lines(body)}
    sub.u32 %r10, %r10, 1;
    setp.gt.s32 %p1, %r10, 0;
    @%p1 bra LOOP;
{lines(total)}
    mul.wide.u32 %rd2, %r4, {width // 8};
    add.u64 %rd2, %rd1, %rd2;
    st.global.{kind} [%rd2], %x22;
    ret;
}}
"""


def _number(value: int, width: int) -> str:
    import struct

    form, mark = (">f", "0f") if width == 32 else (">d", "0d")
    return mark + struct.pack(form, float(value)).hex().upper()
