#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""reference.py - the reduction tree of docs/collectives.md, in exact arithmetic and without its C code.

reference.py random SEED COUNT  prints COUNT reductions: TYPE OP LEAF..., in hexadecimal, with
                                LEAF*FACTOR for premulsum
reference.py check              reads lines TYPE OP LEAF... = RESULT, and says which it disagrees with

A number is (sign, magnitude), its magnitude a Fraction or INF; None is NaN.
"""
import random
import sys
from fractions import Fraction

INF = float("inf")
INTEGERS = {"int8": (8, 1), "uint8": (8, 0), "int32": (32, 1), "uint32": (32, 0), "int64": (64, 1), "uint64": (64, 0)}
# Bits of exponent and mantissa, and whether results saturate. e4m3 has one NaN and no infinity.
FLOATS = {"f16": (5, 10, 0), "bf16": (8, 7, 0), "f32": (8, 23, 0), "f64": (11, 52, 0), "e4m3": (4, 3, 1), "e5m2": (5, 2, 1)}
OPS = ("sum", "prod", "min", "max", "avg", "premulsum")


def bits_of(kind):
    return INTEGERS[kind][0] if kind in INTEGERS else 1 + sum(FLOATS[kind][:2])


def decode(u, kind):
    e, m, _ = FLOATS[kind]
    sign, exponent, mantissa = u >> (e + m), u >> m & ((1 << e) - 1), u & ((1 << m) - 1)
    bias = (1 << (e - 1)) - 1
    if kind == "e4m3" and u & 0x7F == 0x7F or kind != "e4m3" and exponent == (1 << e) - 1 and mantissa:
        return None
    if kind != "e4m3" and exponent == (1 << e) - 1:
        return sign, INF
    mantissa, exponent = (mantissa | 1 << m, exponent) if exponent else (mantissa, 1)
    return sign, mantissa * Fraction(2) ** (exponent - bias - m)


def encode(x, kind):
    """The bits of x rounded to the nearest, ties to even."""
    e, m, saturates = FLOATS[kind]
    bias = (1 << (e - 1)) - 1
    infinity = ((1 << e) - 1) << m
    most = 0x7E if kind == "e4m3" else infinity - 1
    if x is None:
        return (1 << (e + m)) - 1
    sign, mag = x
    u = infinity
    if mag == 0:
        u = 0
    elif mag != INF:
        exponent = mag.numerator.bit_length() - mag.denominator.bit_length()
        exponent -= mag < Fraction(2) ** exponent
        exponent = max(exponent, 1 - bias)
        # round() takes ties to even; a carry out of the mantissa is one into the exponent.
        u = round(mag / Fraction(2) ** (exponent - m)) + ((exponent + bias - 1) << m)
    if u > most:
        u = most if saturates else infinity
    return sign << (e + m) | u


def add(x, y):
    if x is None or y is None or x[1] == y[1] == INF and x[0] != y[0]:
        return None
    if INF in (x[1], y[1]):
        return x if x[1] == INF else y
    total = (-x[1] if x[0] else x[1]) + (-y[1] if y[0] else y[1])
    return (x[0] if x[0] == y[0] else int(total < 0)), abs(total)


def mul(x, y):
    if x is None or y is None or {0, INF} == {x[1], y[1]}:
        return None
    return x[0] ^ y[0], INF if INF in (x[1], y[1]) else x[1] * y[1]


def order(x):
    return (-x[1], 0) if x[0] else (x[1], 1)


def combine(op, x, y):
    if op in ("min", "max"):
        if x is None or y is None:
            return y if x is None else x
        return (min if op == "min" else max)(x, y, key=order)
    return mul(x, y) if op == "prod" else add(x, y)


def tree(leaves, node):
    """The value of the node over all leaves: it splits at the largest power of two below their number."""
    if len(leaves) == 1:
        return leaves[0]
    half = 1 << (len(leaves) - 1).bit_length() - 1
    return node(tree(leaves[:half], node), tree(leaves[half:], node))


def integers(kind, op, leaves, factors):
    width, signed = INTEGERS[kind]

    def wrap(v):
        v &= (1 << width) - 1
        return v - (1 << width) if signed and v >> (width - 1) else v

    leaves = [wrap(wrap(v) * wrap(f)) for v, f in zip(leaves, factors)] if factors else [wrap(v) for v in leaves]
    ops = {"prod": lambda a, b: wrap(a * b), "min": min, "max": max}
    v = tree(leaves, ops.get(op, lambda a, b: wrap(a + b)))
    if op == "avg":
        v = abs(v) // len(leaves) * (-1 if v < 0 else 1)
    return v & ((1 << width) - 1)


def floats(kind, op, leaves, factors):
    inner = "f64" if kind == "f64" else "f32"

    def rounded(x):
        return decode(encode(x, inner), inner)

    leaves = [decode(u, kind) for u in leaves]
    if factors:
        leaves = [rounded(mul(x, decode(f, kind))) for x, f in zip(leaves, factors)]
    x = tree(leaves, lambda a, b: rounded(combine(op, a, b)))
    if op == "avg" and x is not None and x[1] != INF:
        x = rounded((x[0], x[1] / len(leaves)))
    return encode(x, kind)


def reduce(kind, op, leaves, factors):
    return (integers if kind in INTEGERS else floats)(kind, op, leaves, factors)


def some_bits(rng, kind):
    """Any bits, or such as meet a border: small integers, extremes, neighbours of special values."""
    n = bits_of(kind)
    if kind in INTEGERS:
        return rng.choice((rng.getrandbits(n), rng.randrange(8), -rng.randrange(1, 8) & (1 << n) - 1, 1 << n - 1))
    e, m, _ = FLOATS[kind]
    near = rng.choice((0, 1 << m, ((1 << e) - 1) << m, ((1 << e - 1) - 1) << m, (1 << e - 1) << m))
    near = max(0, min((1 << n - 1) - 1, near + rng.randrange(-3, 4)))
    middle = ((1 << e - 1) - 1 + rng.randrange(-3, 4)) << m | rng.getrandbits(m)
    return rng.choice((rng.getrandbits(n), near, middle, middle)) | rng.getrandbits(1) << n - 1


def print_random(seed, count):
    rng = random.Random(seed)
    for _ in range(count):
        kind, op = rng.choice([*INTEGERS, *FLOATS]), rng.choice(OPS)
        words = []
        for _ in range(rng.choice((1, 2, 2, 3, 4, 5, 6, 7, 8, 11, 13, 16))):
            pair = [some_bits(rng, kind) for _ in range(1 + (op == "premulsum"))]
            words.append("*".join(f"{u:0{bits_of(kind) // 4}x}" for u in pair))
        print(kind, op, *words)


def check(lines):
    seen = wrong = 0
    for line in lines:
        left, _, result = line.partition("=")
        kind, op, *words = left.split()
        pairs = [[int(u, 16) for u in word.split("*")] for word in words]
        want = reduce(kind, op, [p[0] for p in pairs], [p[1] for p in pairs if len(p) > 1])
        seen += 1
        if result.strip() != f"{want:0{bits_of(kind) // 4}x}":
            wrong += 1
            print(f"{line.strip()}: the reference has {want:0{bits_of(kind) // 4}x}")
    print(f"{seen} reductions, {wrong} differ")
    return wrong or not seen


if __name__ == "__main__":
    if sys.argv[1] == "random":
        print_random(int(sys.argv[2]), int(sys.argv[3]))
    else:
        sys.exit(1 if check(sys.stdin) else 0)
