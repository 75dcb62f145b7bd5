#!/usr/bin/env python3
"""Writes the rows of `data`: each operation with each type that it takes, at its corners.

    python3 tests/semantics/generate.py            # needs mpmath for the functions alone

The answers are computed here in exact arithmetic: integers as Python's, floats as fractions that
are rounded once to the format, functions by mpmath with 60 digits. Nothing of Iron takes part.
The tests read the files and need neither this script nor Python.
"""

import pathlib
from fractions import Fraction

from exact import (
    ARITHMETIC, COMPARISONS, FLOATS, INF, INTEGERS, NAN, add, decode, divide, encode, from_text,
    integer_binary, integer_unary, limits, multiply, negated, pick, root, rounded, show_float,
    show_integer, show_result, signed, to_whole, wrap,
)

HERE = pathlib.Path(__file__).parent


def integer_rows(out):
    for ty, bits in INTEGERS.items():
        low, high = limits(ty)
        signed = low < 0
        third, half = high // 3, 1 << bits // 2
        minus = lambda n: wrap(ty, -n)
        pairs = {
            "add": [(high, 1), (low, minus(1)), (third, third), (high, high), (7, minus(3))],
            "sub": [(low, 1), (0, 1), (3, 7), (high, minus(1)), (third, low)],
            "mul": [(half, half), (high, high), (low, minus(1)), (third, 7), (minus(3), minus(5))],
            "div": [(low, minus(1)), (7, 3), (minus(7), 3), (7, minus(3)), (minus(7), minus(3)),
                    (high, 0), (0, 0), (minus(1), 0), (high, 7), (low, 2)],
            "rem": [(low, minus(1)), (7, 3), (minus(7), 3), (7, minus(3)), (minus(7), minus(3)),
                    (high, 0), (low, 0), (high, 7), (5, 5)],
            "div_rem": [(low, minus(1)), (minus(7), 3), (high, 0), (low, 3)],
            "and": [(high, third), (minus(1), low), (half, half - 1)],
            "or": [(third, half), (low, 1), (0, 0)],
            "xor": [(minus(1), third), (high, high), (low, minus(1))],
            "shl": [(1, bits - 1), (1, bits), (3, bits + 1), (minus(1), bits - 1), (1, minus(1)),
                    (third, half // 2 if half // 2 < bits else 4)],
            "shr": [(low, bits - 1), (minus(8), 1), (minus(1), bits), (high, bits - 1),
                    (high, minus(1)), (minus(3), bits + 1)],
            "min": [(low, high), (minus(1), 1), (0, 0)],
            "max": [(low, high), (minus(1), 1), (5, 5)],
            "mul_high": [(high, high), (low, low), (minus(1), 1), (half, half), (low, high)],
        }
        for name, operands in pairs.items():
            for a, b in operands:
                result = integer_binary(name, ty, a, b)
                out.row(name, ty, ty, [show_integer(ty, a), show_integer(ty, b)],
                        show_integer(ty, result))
        for name in ["neg", "not", "abs", "reverse_bits"]:
            for a in [low, high, 1, minus(1), third]:
                result = integer_unary(name, ty, a)
                out.row(name, ty, ty, [show_integer(ty, a)], show_integer(ty, result))
        for name in ["count_ones", "leading_zeros", "trailing_zeros"]:
            for a in [0, 1, low, high, minus(1), half]:
                result = integer_unary(name, ty, a)
                out.row(name, ty, "u32", [show_integer(ty, a)], str(result))
        for name, holds in COMPARISONS.items():
            for a, b in [(low, high), (minus(1), 1), (third, third)]:
                out.row(name, ty, "bool", [show_integer(ty, a), show_integer(ty, b)],
                        str(holds(a, b)).lower())
        for condition in ("true", "false"):
            out.row("select", ty, ty, [condition, show_integer(ty, low), show_integer(ty, high)],
                    show_integer(ty, low if condition == "true" else high))
    for name, table in {"and": [0, 0, 0, 1], "or": [0, 1, 1, 1], "xor": [0, 1, 1, 0],
                        "eq": [1, 0, 0, 1], "ne": [0, 1, 1, 0]}.items():
        for index, result in enumerate(table):
            operands = [str(bool(index >> i & 1)).lower() for i in (1, 0)]
            out.row(name, "bool", "bool", operands, str(bool(result)).lower())
    for value in (False, True):
        out.row("not", "bool", "bool", [str(value).lower()], str(not value).lower())
        out.row("select", "bool", "bool", [str(value).lower(), "true", "false"],
                str(value).lower())


CORNERS = {
    "f32": ["0.0", "-0.0", "1.0", "-1.0", "0x3f800001", "MAX", "0x00800000", "1e-45", "inf",
            "-inf", "nan", "0.1", "16777216.0"],
    "f64": ["0.0", "-0.0", "1.0", "-1.0", "0x3ff0000000000001", "MAX", "0x0010000000000000",
            "0x0000000000000001", "inf", "-inf", "nan", "0.1", "9007199254740992.0"],
    "f16": ["0.0", "-0.0", "1.0", "-1.0", "0x3c01", "MAX", "0x0400", "0x0001", "inf", "-inf",
            "nan", "0.1", "2048.0"],
    "bf16": ["0.0", "-0.0", "1.0", "-1.0", "0x3f81", "MAX", "0x0080", "0x0001", "inf", "-inf",
             "nan", "0.1", "256.0"],
}


def float_rows(out):
    for ty in ARITHMETIC:
        corner = {text: from_text(ty, text) for text in CORNERS[ty]}
        (zero, minus_zero, one, minus_one, next_one, greatest, least_normal, least, inf, minus_inf,
         nan, tenth, even) = corner.values()
        half = encode(ty, (1, Fraction(1, 2)))
        three = encode(ty, (1, Fraction(3)))
        pairs = {
            "add": [(even, one), (greatest, greatest), (inf, minus_inf), (minus_zero, minus_zero),
                    (minus_zero, zero), (least, least), (tenth, tenth), (nan, one),
                    (one, next_one), (greatest, least)],
            "sub": [(one, one), (next_one, one), (least_normal, least), (inf, inf), (even, tenth),
                    (minus_zero, zero), (zero, minus_zero), (one, nan), (minus_inf, inf)],
            "mul": [(greatest, greatest), (least, half), (least_normal, half), (zero, inf),
                    (minus_one, zero), (tenth, tenth), (next_one, next_one), (nan, zero),
                    (minus_inf, minus_one)],
            "div": [(one, three), (one, zero), (minus_one, zero), (zero, zero), (inf, inf),
                    (one, inf), (least, three), (greatest, half), (one, minus_zero),
                    (tenth, three), (nan, inf)],
        }
        actions = {
            "add": add,
            "sub": lambda x, y: add(x, negated(y)),
            "mul": multiply,
            "div": divide,
        }
        for name, operands in pairs.items():
            for a, b in operands:
                exact = actions[name](decode(ty, a), decode(ty, b))
                out.row(name, ty, ty, [show_float(ty, a), show_float(ty, b)],
                        show_result(ty, rounded(ty, exact)))
        ordered = [(zero, minus_zero), (minus_zero, zero), (nan, one), (one, nan), (nan, nan),
                   (minus_inf, inf), (least, zero), (greatest, inf), (minus_one, tenth)]
        for name, larger, passes in [("min", False, False), ("max", True, False),
                                     ("min_nan", False, True), ("max_nan", True, True)]:
            for a, b in ordered:
                chosen = pick(decode(ty, a), decode(ty, b), larger, passes)
                answer = "nan" if chosen is None else show_float(ty, (a, b)[chosen])
                out.row(name, ty, ty, [show_float(ty, a), show_float(ty, b)], answer)
        for name, holds in COMPARISONS.items():
            for a, b in [(zero, minus_zero), (nan, nan), (one, nan), (minus_inf, inf),
                         (one, next_one), (least, zero)]:
                x, y = decode(ty, a), decode(ty, b)
                if NAN in (x, y):
                    truth = name == "ne"
                else:
                    number = lambda n: (Fraction(1 << 2000) if n[1] == INF else n[1]) * n[0]
                    truth = holds(number(x), number(y))
                out.row(name, ty, "bool", [show_float(ty, a), show_float(ty, b)],
                        str(truth).lower())
        sign = 1 << FLOATS[ty][0] - 1
        for a in [zero, minus_zero, one, least, greatest, inf, minus_inf, tenth]:
            out.row("neg", ty, ty, [show_float(ty, a)], show_float(ty, a ^ sign))
            out.row("abs", ty, ty, [show_float(ty, a)], show_float(ty, a & ~sign))
        for a in corner.values():
            number = decode(ty, a)
            out.row("is_nan", ty, "bool", [show_float(ty, a)], str(number == NAN).lower())
            finite = number != NAN and number[1] != INF
            out.row("is_finite", ty, "bool", [show_float(ty, a)], str(finite).lower())
        for a in [zero, minus_zero, one, minus_one, next_one, greatest, least_normal, least, inf,
                  tenth, three, even]:
            result = rounded(ty, root(decode(ty, a)))
            out.row("sqrt", ty, ty, [show_float(ty, a)],
                    "nan" if decode(ty, result) == NAN else show_float(ty, result))
        for text in ["0.5", "1.5", "2.5", "-0.5", "-1.5", "-2.5", "-0.0", "0.1", "-0.1", "MAX",
                     "inf", "-inf", "3.0"]:
            a = from_text(ty, text)
            for name in ["floor", "ceil", "trunc", "round_even"]:
                result = encode(ty, to_whole(name, decode(ty, a)))
                out.row(name, ty, ty, [show_float(ty, a)], show_float(ty, result))
        triples = [(tenth, encode(ty, (1, Fraction(10))), minus_one), (next_one, next_one, minus_one),
                   (greatest, encode(ty, (1, Fraction(2))), greatest | sign), (inf, zero, one),
                   (one, zero, minus_zero), (minus_one, zero, minus_zero), (least, half, least),
                   (greatest, greatest, minus_inf), (nan, one, one), (three, three, one),
                   (even, even, one), (least_normal, half, zero)]
        for a, b, c in triples:
            x, y, z = (decode(ty, v) for v in (a, b, c))
            fused = rounded(ty, add(multiply(x, y), z))
            product = decode(ty, rounded(ty, multiply(x, y)))
            shown = [show_float(ty, v) for v in (a, b, c)]
            out.row("fma", ty, ty, shown, show_result(ty, fused))
            out.row("mul_add", ty, ty, shown, show_result(ty, rounded(ty, add(product, z))))
        for condition in ("true", "false"):
            out.row("select", ty, ty, [condition, "0.1", "-0.0"],
                    "0.1" if condition == "true" else "-0.0")
        for a in corner.values():
            shown = show_float(ty, a)
            out.row("literal", ty, ty, [shown], shown)


# Conversions.


def conversion_rows(out):
    kinds = list(INTEGERS) + ARITHMETIC
    for source, bits in INTEGERS.items():
        low, high = limits(source)
        values = {low, high, 0, 1, high // 3, wrap(source, -1), wrap(source, -high // 5)}
        # Ties of the narrower floats, and their neighbours.
        for tie in (257, 259, 2049, 2051, 16777217, 16777219, 65519, 65520):
            values |= {v for v in (tie, -tie) if low <= v <= high}
        for target in kinds:
            if target == source:
                continue
            for value in sorted(values):
                if target in INTEGERS:
                    if abs(value) in (257, 259, 2049, 2051, 16777219, 65519):
                        continue
                    answer = show_integer(target, wrap(target, value))
                else:
                    answer = show_float(target, encode(target, signed(Fraction(value))))
                out.row("convert", source, target, [show_integer(source, value)], answer)
    for source in ARITHMETIC:
        for target in kinds:
            if target == source:
                continue
            if target in INTEGERS:
                low, high = limits(target)
                texts = ["1.9", "-1.9", "-0.0", "nan", "inf", "-inf", "MAX", "-MAX", "0.5"]
                edges = [Fraction(high), Fraction(high + 1), Fraction(low), Fraction(low - 1)]
                words = [from_text(source, t) for t in texts]
                words += [encode(source, signed(e)) for e in edges]
                for word in dict.fromkeys(words):
                    number = decode(source, word)
                    if number == NAN:
                        value = 0
                    elif number[1] == INF:
                        value = high if number[0] > 0 else low
                    else:
                        whole = number[1].numerator // number[1].denominator
                        value = max(low, min(high, number[0] * whole))
                    out.row("convert", source, target, [show_float(source, word)],
                            show_integer(target, value))
            else:
                float_conversion(out, source, target, CORNERS[source])
        for target in ("f8e4m3", "f8e5m2"):
            texts = ["0.0", "-0.0", "1.0", "-1.5", "448.0", "449.0", "464.0", "465.0", "-464.0",
                     "1e6", "-1e6", "57344.0", "61439.0", "61440.0", "nan", "inf", "-inf",
                     "0.001953125", "0.0009765625", "0.0029296875", "0.01", "17.0", "18.0", "19.0"]
            float_conversion(out, source, target, texts)
    for source in ("f8e4m3", "f8e5m2"):
        for target in ARITHMETIC:
            for word in (0x00, 0x80, 0x01, 0x07, 0x08, 0x38, 0x3c, 0x7b, 0x7c, 0x7e, 0x7f, 0xfe, 0xff):
                answer = encode(target, decode(source, word))
                shown = "nan" if decode(target, answer) == NAN else show_float(target, answer)
                out.row("convert", source, target, [f"0x{word:02x}"], shown)
    for target in ARITHMETIC:
        for word in (0, 1, 2, 126, 127, 128, 200, 254, 255):
            number = NAN if word == 255 else (1, Fraction(2) ** (word - 127))
            answer = encode(target, number)
            shown = "nan" if decode(target, answer) == NAN else show_float(target, answer)
            out.row("convert", "e8m0", target, [f"0x{word:02x}"], shown)
        small = [0, Fraction(1, 2), 1, Fraction(3, 2), 2, 3, 4, 6]
        for word in (0x00, 0x80, 0x21, 0x43, 0x65, 0xf7, 0x98, 0xba, 0xdc, 0xfe):
            lanes = [(-1 if n & 8 else 1, Fraction(small[n & 7])) for n in (word & 15, word >> 4)]
            shown = " ".join(show_float(target, encode(target, lane)) for lane in lanes)
            out.row("convert", "f4e2m1x2", target, [f"0x{word:02x}"], shown)
    for target in list(INTEGERS) + ARITHMETIC:
        for word in (0x00000000, 0x76543210, 0xfedcba98, 0x8f7f0180, 0xffffffff):
            nibbles = [word >> 4 * i & 15 for i in range(8)]
            lanes = [n - 16 if n & 8 else n for n in nibbles]
            if target in INTEGERS:
                shown = " ".join(show_integer(target, wrap(target, n)) for n in lanes)
            else:
                shown = " ".join(show_float(target, encode(target, signed(Fraction(n)))) for n in lanes)
            out.row("convert", "int4x8", target, [f"0x{word:08x}"], shown)
        for value in (0, 1):
            answer = str(value) if target in INTEGERS else f"{value}.0"
            out.row("convert", "bool", target, [str(bool(value)).lower()], answer)
    sizes = {}
    for ty, bits in INTEGERS.items():
        sizes.setdefault(bits, []).append(ty)
    for ty in FLOATS:
        sizes.setdefault(FLOATS[ty][0], []).append(ty)
    sizes[8].append("e8m0")
    sizes[8].append("f4e2m1x2")
    sizes[32].append("int4x8")
    for bits, types in sizes.items():
        words = [0, 1, 1 << bits - 1, (1 << bits - 1) - 1 ^ 0x40 << bits - 8, 0x5a5a5a5a5a5a5a5a & (1 << bits) - 1]
        for source in types:
            for target in types:
                if source == target:
                    continue
                for word in words:
                    # The payload of a NaN is unspecified, so no row has one.
                    if any(t in FLOATS and decode(t, word) == NAN for t in (source, target)):
                        continue
                    text = f"0x{word:0{bits // 4}x}"
                    out.row("bitcast", source, target, [text], text)


def float_conversion(out, source, target, texts):
    for word in dict.fromkeys(from_text(source, t) for t in texts):
        number = decode(source, word)
        answer = encode(target, number)
        shown = "nan" if decode(target, answer) == NAN else show_float(target, answer)
        out.row("convert", source, target, [show_float(source, word)], shown)


# Functions, within the bounds of `functions.txt`.


def function_rows(out):
    import mpmath

    mpmath.mp.dps = 60
    bounds = {}
    for line in (HERE / "functions.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, bound = line.split()[:2]  # a target's own bound may follow
            bounds[name] = bound
    actions = {
        "rsqrt": lambda x: 1 / mpmath.sqrt(x),
        "exp": mpmath.exp,
        "exp2": lambda x: mpmath.power(2, x),
        "log": mpmath.log,
        "log2": lambda x: mpmath.log(x, 2),
        "sin": mpmath.sin,
        "cos": mpmath.cos,
        "tanh": mpmath.tanh,
        "erf": mpmath.erf,
    }
    arguments = {
        "rsqrt": ["0.25", "2.0", "3.0", "0.1", "1e30", "1e-30", "65504.0"],
        "exp": ["1.0", "-1.0", "0.1", "-20.0", "10.5", "88.0", "-80.0"],
        "exp2": ["0.5", "-0.5", "1.5", "-10.25", "15.75", "100.0", "-100.0"],
        "log": ["2.0", "0.5", "10.0", "0.9999", "1.0001", "1e30", "1e-30"],
        "log2": ["3.0", "0.1", "10.0", "0.75", "1.5", "1e30", "1e-30"],
        "sin": ["0.5", "1.0", "3.0", "-2.0", "100.0", "10000.0", "1e-10"],
        "cos": ["0.5", "1.0", "3.0", "-2.0", "100.0", "10000.0", "1e-10"],
        "tanh": ["0.1", "0.5", "-1.0", "3.0", "20.0", "-0.001", "1e-10"],
        "erf": ["0.1", "0.5", "-1.0", "2.0", "4.0", "-0.001", "1e-10"],
    }
    for name, action in actions.items():
        for ty in ("f32", "f16", "bf16"):
            for text in arguments[name]:
                word = from_text(ty, text)
                number = decode(ty, word)
                if number[1] in (0, INF):
                    continue
                x = mpmath.mpf(number[1].numerator) / number[1].denominator * number[0]
                sign, mantissa, exponent, _ = mpmath.mpf(action(x))._mpf_
                exact = Fraction(mantissa) * Fraction(2) ** exponent
                result = encode(ty, signed(-exact if sign else exact))
                bound = bounds[name] if ty == "f32" else "1"
                out.row(name, ty, ty, [show_float(ty, word)],
                        f"{show_float(ty, result)} ~{bound}")
    for name, operand, answer in [
        ("rsqrt", "inf", "0.0"), ("rsqrt", "-1.0", "nan"), ("exp", "inf", "inf"),
        ("exp", "-inf", "0.0"), ("exp", "0.0", "1.0"), ("exp2", "-inf", "0.0"),
        ("exp2", "3.0", "8.0 ~2"), ("exp2", "inf", "inf"), ("log", "0.0", "-inf"),
        ("log", "-1.0", "nan"), ("log", "inf", "inf"), ("log2", "0.0", "-inf"),
        ("log2", "-1.0", "nan"), ("log2", "inf", "inf"), ("sin", "inf", "nan"),
        ("cos", "-inf", "nan"), ("cos", "0.0", "1.0"), ("tanh", "inf", "1.0"),
        ("tanh", "-inf", "-1.0"), ("erf", "inf", "1.0"), ("erf", "-inf", "-1.0"),
    ] + [(name, "nan", "nan") for name in actions]:
        for ty in ("f32", "f16", "bf16"):
            out.row(name, ty, ty, [operand], answer)


# What threads do together, with the value of every thread.


def together_rows(out):
    operators = {
        "sum": (lambda a, b: a + b),
        "product": (lambda a, b: a * b),
        "min": min,
        "max": max,
        "and": (lambda a, b: a & b),
        "or": (lambda a, b: a | b),
    }
    identity = {"sum": lambda ty: 0, "product": lambda ty: 1, "min": lambda ty: limits(ty)[1],
                "max": lambda ty: limits(ty)[0], "and": lambda ty: wrap(ty, -1), "or": lambda ty: 0}
    for ty in INTEGERS:
        low, high = limits(ty)
        lists = [[high, 1, 2], [low, wrap(ty, -1), 3, 7], [5], [1, 2, 4, 8, 16, 32, 64]]
        for op, action in operators.items():
            for values in lists:
                total = values[0]
                for value in values[1:]:
                    total = wrap(ty, action(total, value))
                out.together("reduce." + op, ty, ty, values, [total] * len(values))
            for values in lists[:2]:
                running, inclusive = identity[op](ty), []
                for value in values:
                    running = wrap(ty, action(running, value))
                    inclusive.append(running)
                out.scan(op, ty, values, inclusive, [identity[op](ty)] + inclusive[:-1])
    for op, truth in (("and", all), ("or", any)):
        for values in ([True, True], [True, False, True], [False], [False, False]):
            result = [truth(values)] * len(values)
            out.together_text("reduce." + op, "bool", "bool", values, result)
    for ty in ARITHMETIC:
        # The adjacent-pair tree, not left to right: the small ones meet first.
        precision = FLOATS[ty][2]
        tiny = Fraction(1, 2 ** (precision + 1))
        lists = [[1, tiny, tiny, tiny], [1, tiny, tiny, tiny, tiny], [3, -5, Fraction(1, 2)], [7]]
        for values in lists:
            for op in ("sum", "product", "min", "max", "min_nan", "max_nan"):
                words = [encode(ty, signed(Fraction(v))) for v in values]
                out.float_tree(op, ty, words)
        nan, inf = encode(ty, NAN), encode(ty, (1, INF))
        eight, six = encode(ty, (1, Fraction(8))), encode(ty, (1, Fraction(6)))
        zero, minus_zero = encode(ty, (1, Fraction(0))), encode(ty, (-1, Fraction(0)))
        for words in ([nan, six, eight], [six, nan, eight], [nan, nan], [minus_zero, zero],
                      [zero, minus_zero], [inf, six]):
            for op in ("min", "max", "min_nan", "max_nan"):
                out.float_tree(op, ty, words)
    for ty in ("u32", "i32", "u64", "i64", "u8", "i16"):
        high = limits(ty)[1]
        values = [10, 11, high, 13]
        for kind, argument, source in [
            ("shuffle_xor", 1, lambda i: i ^ 1), ("shuffle_xor", 2, lambda i: i ^ 2),
            ("shuffle_up", 1, lambda i: i - 1), ("shuffle_up", 3, lambda i: i - 3),
            ("shuffle_down", 1, lambda i: i + 1), ("shuffle_down", 2, lambda i: i + 2),
            ("shuffle_up", 64, lambda i: -1), ("shuffle_down", 4294967295, lambda i: 99),
            ("shuffle_xor", 64, lambda i: 99),
            ("shuffle", 2, lambda i: 2), ("broadcast", 3, lambda i: 3), ("broadcast", 0, lambda i: 0),
        ]:
            result = [values[source(i)] if 0 <= source(i) < 4 else values[i] for i in range(4)]
            out.exchange(kind, ty, argument, values, result)
        for thread in (0, 3):
            out.line(f"group broadcast {ty}, {thread}: "
                     f"{', '.join(show_integer(ty, v) for v in values)} = "
                     f"{' '.join([show_integer(ty, values[thread])] * 4)}")
    for values in ([1, 0, 1, 1], [0, 0], [1, 1, 1, 1], [1]):
        shown = ", ".join(str(bool(v)).lower() for v in values)
        mask = sum(v << i for i, v in enumerate(values))
        n = len(values)
        out.line(f"subgroup ballot bool to u64: {shown} = {' '.join([str(mask)] * n)}")
        out.line(f"subgroup any bool: {shown} = {' '.join([str(any(values)).lower()] * n)}")
        out.line(f"subgroup all bool: {shown} = {' '.join([str(all(values)).lower()] * n)}")
    for ty in ("u32", "i32", "u64", "i64"):
        low, high = limits(ty)
        cases = [(5, 3), (high, 1), (low, wrap(ty, -1)), (0, high)]
        for op, action in [("add", lambda a, b: a + b), ("min", min), ("max", max),
                           ("and", lambda a, b: a & b), ("or", lambda a, b: a | b),
                           ("xor", lambda a, b: a ^ b), ("exchange", lambda a, b: b)]:
            for cell, operand in cases:
                new = wrap(ty, action(cell, operand))
                out.line(f"atomic {op} {ty}: {show_integer(ty, cell)}, {show_integer(ty, operand)}"
                         f" = {show_integer(ty, cell)} {show_integer(ty, new)}")
        for cell, new, expected in [(5, 9, 5), (5, 9, 6), (low, high, low), (high, 0, low)]:
            after = new if cell == expected else cell
            out.line(f"atomic compare_exchange {ty}: {show_integer(ty, cell)}, "
                     f"{show_integer(ty, new)}, {show_integer(ty, expected)} = "
                     f"{show_integer(ty, cell)} {show_integer(ty, after)}")
        for cell in (0, high, low):
            shown = show_integer(ty, cell)
            out.line(f"atomic load {ty}: {shown} = {shown} {shown}")
    for cell, operand in [("1.0", "0.1"), ("16777216.0", "1.0"), ("inf", "-inf"), ("-0.0", "0.0"),
                          ("MAX", "MAX")]:
        a, b = from_text("f32", cell), from_text("f32", operand)
        total = encode("f32", add(decode("f32", a), decode("f32", b)))
        out.line(f"atomic add f32: {cell}, {operand} = {show_float('f32', a)} {show_float('f32', total)}")
        out.line(f"atomic exchange f32: {cell}, {operand} = {show_float('f32', a)} {show_float('f32', b)}")


class File:
    def __init__(self, name, doc, known):
        self.path, self.known, self.lines = HERE / "data" / name, known, [f"# {line}" for line in doc]
        self.rows = 0

    def line(self, line):
        key = line.split("=")[0].strip()
        if key in self.known:
            return
        self.known.add(key)
        self.lines.append(line)
        self.rows += 1

    def row(self, name, ty, to, operands, answer):
        named = {"convert", "bitcast"}
        head = f"{name} {ty} to {to}" if name in named else f"{name} {ty}"
        self.line(f"{head}: {', '.join(operands)} = {answer}")

    def together(self, name, ty, to, values, results):
        show = lambda kind, n: show_integer(kind, n)
        for kind in ("group", "subgroup"):
            if kind == "subgroup" and len(values) > 4:
                # Wider than the narrowest subgroup.
                continue
            self.line(f"{kind} {name} {ty}: {', '.join(show(ty, v) for v in values)} = "
                      f"{' '.join(show(to, v) for v in results)}")

    def together_text(self, name, ty, to, values, results):
        text = lambda v: str(v).lower()
        for kind in ("group", "subgroup"):
            self.line(f"{kind} {name} {ty}: {', '.join(map(text, values))} = "
                      f"{' '.join(map(text, results))}")

    def scan(self, op, ty, values, inclusive, exclusive):
        shown = ", ".join(show_integer(ty, v) for v in values)
        for name, results in (("scan_inclusive", inclusive), ("scan_exclusive", exclusive)):
            self.line(f"group {name}.{op} {ty}: {shown} = "
                      f"{' '.join(show_integer(ty, v) for v in results)}")

    def exchange(self, kind, ty, argument, values, results):
        self.line(f"subgroup {kind} {ty}, {argument}: "
                  f"{', '.join(show_integer(ty, v) for v in values)} = "
                  f"{' '.join(show_integer(ty, v) for v in results)}")

    def float_tree(self, op, ty, words):
        def combine(a, b):
            x, y = decode(ty, a), decode(ty, b)
            if op == "sum":
                return rounded(ty, add(x, y))
            if op == "product":
                return rounded(ty, multiply(x, y))
            chosen = pick(x, y, "max" in op, "nan" in op)
            return encode(ty, NAN) if chosen is None else (a, b)[chosen]

        elements = list(words)
        distance = 1
        while distance < len(elements):
            for i in range(0, len(elements), 2 * distance):
                # An absent element is the identity, which changes nothing.
                if i + distance < len(elements):
                    elements[i] = combine(elements[i], elements[i + distance])
            distance *= 2
        result = "nan" if decode(ty, elements[0]) == NAN else show_float(ty, elements[0])
        shown = ", ".join(show_float(ty, w) for w in words)
        for kind in ("group", "subgroup"):
            if kind == "subgroup" and len(words) > 4:
                continue
            self.line(f"{kind} reduce.{op} {ty}: {shown} = {' '.join([result] * len(words))}")

    def write(self):
        self.path.write_text("\n".join(self.lines) + "\n")
        print(f"{self.path.name}: {self.rows} rows")


def main():
    known = set()
    for name in ("integers.txt", "floats.txt", "conversions.txt"):
        for line in (HERE / name).read_text().splitlines():
            known.add(line.split("#")[0].split("=")[0].strip())
    written_by = "Written by generate.py; the answers are exact arithmetic, rounded once."
    for name, doc, rows in [
        ("every_integer.txt", "Every integer and truth operation with every type.", integer_rows),
        ("every_float.txt", "Every float operation with every type.", float_rows),
        ("every_conversion.txt", "Every conversion and bit cast of scalars.", conversion_rows),
        ("every_function.txt", "Every function with every type, within its bound.", function_rows),
        ("together.txt", "Collectives, subgroup operations and atomics; see the README.", together_rows),
    ]:
        out = File(name, [doc, written_by], known)
        rows(out)
        out.write()


main()
