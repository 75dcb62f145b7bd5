"""Integers of a width, and floats of a format, in exact arithmetic.

An integer is Python's; a float is a sign and a fraction, or `nan`, or a sign and `inf`, and is
rounded once where it is written as bits.
"""

from fractions import Fraction
from math import isqrt

INTEGERS = {"i8": 8, "i16": 16, "i32": 32, "i64": 64, "u8": 8, "u16": 16, "u32": 32, "u64": 64}
# Name: bits, exponent bits, mantissa bits, has infinity.
FLOATS = {
    "f16": (16, 5, 10, True),
    "bf16": (16, 8, 7, True),
    "f32": (32, 8, 23, True),
    "f64": (64, 11, 52, True),
    "f8e4m3": (8, 4, 3, False),
    "f8e5m2": (8, 5, 2, True),
}
ARITHMETIC = ["f32", "f16", "bf16", "f64"]
NAN, INF = "nan", "inf"


def limits(ty):
    bits = INTEGERS[ty]
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if ty[0] == "i" else (0, (1 << bits) - 1)


def wrap(ty, value):
    bits = INTEGERS[ty]
    value &= (1 << bits) - 1
    return value - (1 << bits) if ty[0] == "i" and value >> bits - 1 else value


def pattern(ty, value):
    return value & (1 << INTEGERS[ty]) - 1


def truncated(a, b):
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def integer_binary(name, ty, a, b):
    bits = INTEGERS[ty]
    count = pattern(ty, b) % bits
    if name in ("div", "rem", "div_rem") and b == 0:
        return {"div": wrap(ty, -1), "rem": a, "div_rem": a}[name]
    return wrap(
        ty,
        {
            "add": lambda: a + b,
            "sub": lambda: a - b,
            "mul": lambda: a * b,
            "div": lambda: truncated(a, b),
            "rem": lambda: a - b * truncated(a, b),
            "div_rem": lambda: a,
            "and": lambda: a & b,
            "or": lambda: a | b,
            "xor": lambda: a ^ b,
            "shl": lambda: a << count,
            "shr": lambda: a >> count,
            "min": lambda: min(a, b),
            "max": lambda: max(a, b),
            "mul_high": lambda: a * b >> bits,
        }[name](),
    )


def integer_unary(name, ty, a):
    bits = INTEGERS[ty]
    word = pattern(ty, a)
    digits = format(word, f"0{bits}b")
    return {
        "neg": lambda: wrap(ty, -a),
        "not": lambda: wrap(ty, ~a),
        "abs": lambda: wrap(ty, abs(a)),
        "count_ones": lambda: digits.count("1"),
        "leading_zeros": lambda: len(digits) - len(digits.lstrip("0")),
        "trailing_zeros": lambda: len(digits) - len(digits.rstrip("0")),
        "reverse_bits": lambda: wrap(ty, int(digits[::-1], 2)),
    }[name]()


COMPARISONS = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


def show_integer(ty, value):
    low, high = limits(ty)
    if value == high:
        return "MAX"
    if value == low and low:
        return "MIN"
    return str(value) if abs(value) < 1 << 20 else hex(pattern(ty, value))


def shape(ty):
    bits, exponent, mantissa, infinite = FLOATS[ty]
    bias = (1 << exponent - 1) - 1
    return bits, exponent, mantissa, infinite, bias


def decode(ty, word):
    bits, exponent, mantissa, infinite, bias = shape(ty)
    sign = -1 if word >> bits - 1 else 1
    field = word >> mantissa & (1 << exponent) - 1
    fraction = word & (1 << mantissa) - 1
    if field == (1 << exponent) - 1:
        if infinite:
            return NAN if fraction else (sign, INF)
        if fraction == (1 << mantissa) - 1:
            return NAN
    scale = max(field, 1) - bias - mantissa
    whole = fraction + ((1 << mantissa) if field else 0)
    return (sign, Fraction(whole) * Fraction(2) ** scale)


def encode(ty, number):
    """The bits of the nearest value, ties to even."""
    bits, exponent, mantissa, infinite, bias = shape(ty)
    ones = (1 << exponent) - 1 << mantissa
    quiet = ones | (1 << mantissa - 1 if infinite else (1 << mantissa) - 1)
    if number == NAN:
        return quiet
    sign, magnitude = number
    top = (1 << bits - 1) if sign < 0 else 0
    overflow = ones if infinite else quiet
    if magnitude == INF:
        return top | overflow
    if magnitude == 0:
        return top
    power = 0
    while Fraction(2) ** power > magnitude:
        power -= 1
    while Fraction(2) ** (power + 1) <= magnitude:
        power += 1
    power = max(power, 1 - bias)
    steps = magnitude / Fraction(2) ** (power - mantissa)
    whole, rest = divmod(steps.numerator, steps.denominator)
    twice = 2 * rest - steps.denominator
    if twice > 0 or twice == 0 and whole & 1:
        whole += 1
    # A carry out of the mantissa is one more in the exponent field.
    word = (power - 1 + bias << mantissa) + whole
    # Where there is no infinity, the code of all ones is NaN, and so is what rounds past it.
    return top | min(word, overflow)


def arithmetic(ty):
    """The type in which operations of `ty` are computed before one more rounding."""
    return ty if ty in ("f32", "f64") else "f32"


def rounded(ty, number):
    return encode(ty, decode(arithmetic(ty), encode(arithmetic(ty), number)))


def signed(value, sign_of_zero=1):
    if value == 0:
        return (sign_of_zero, Fraction(0))
    return (1 if value > 0 else -1, abs(value))


def add(x, y):
    if NAN in (x, y):
        return NAN
    if x[1] == INF or y[1] == INF:
        if x[1] == y[1] == INF and x[0] != y[0]:
            return NAN
        return x if x[1] == INF else y
    # An exact zero is positive unless both are negative zeros.
    both = -1 if x[0] == y[0] == -1 else 1
    return signed(x[0] * x[1] + y[0] * y[1], both)


def negated(x):
    return NAN if x == NAN else (-x[0], x[1])


def multiply(x, y):
    if NAN in (x, y):
        return NAN
    sign = x[0] * y[0]
    if INF in (x[1], y[1]):
        return NAN if 0 in (x[1], y[1]) else (sign, INF)
    return (sign, x[1] * y[1])


def divide(x, y):
    if NAN in (x, y):
        return NAN
    sign = x[0] * y[0]
    if x[1] == INF:
        return NAN if y[1] == INF else (sign, INF)
    if y[1] == INF:
        return (sign, Fraction(0))
    if y[1] == 0:
        return NAN if x[1] == 0 else (sign, INF)
    return (sign, x[1] / y[1])


def root(x, digits=700):
    if x == NAN or x[0] < 0 and x[1] != 0:
        return NAN
    if x[1] in (0, INF):
        return x
    # Cut far below every format's half unit; a sticky bit keeps what is not a square off a tie.
    scaled = x[1] * Fraction(4) ** digits
    whole = isqrt(scaled.numerator // scaled.denominator)
    exact = Fraction(whole * whole) == scaled
    return (1, (Fraction(whole) + (0 if exact else Fraction(1, 2))) / Fraction(2) ** digits)


def to_whole(name, x):
    if x == NAN or x[1] == INF:
        return x
    value = x[0] * x[1]
    floor = value.numerator // value.denominator
    rest = value - floor
    whole = {
        "floor": floor,
        "ceil": floor + (rest > 0),
        "trunc": floor + (rest > 0 and value < 0),
        "round_even": floor + (rest > Fraction(1, 2) or rest == Fraction(1, 2) and floor % 2 == 1),
    }[name]
    return signed(Fraction(whole), x[0])


def pick(x, y, larger, passes_nan):
    """Which of two is chosen: 0 or 1, or None for NaN."""
    if NAN in (x, y):
        if passes_nan or x == y:
            return None
        return 1 if x == NAN else 0

    def key(n):
        return (Fraction(1 << 2000) if n[1] == INF else n[1]) * n[0], n[0]

    if larger:
        return 0 if key(x) >= key(y) else 1
    return 0 if key(x) <= key(y) else 1


def from_text(ty, text):
    if text in ("nan", "-nan"):
        return encode(ty, NAN)
    sign = -1 if text.startswith("-") else 1
    text = text.lstrip("-")
    if text == "inf":
        return encode(ty, (sign, INF))
    if text == "MAX":
        bits, exponent, mantissa, infinite, _ = shape(ty)
        top = encode(ty, (1, INF)) - 1 if infinite else encode(ty, NAN) - 1
        return top | (1 << bits - 1 if sign < 0 else 0)
    if text.startswith("0x"):
        return int(text, 16)
    return encode(ty, (sign, Fraction(text)))


def show_float(ty, word):
    """The shortest decimal that gives the bits, or the bits."""
    number = decode(ty, word)
    digits = FLOATS[ty][0] // 4
    if ty.startswith("f8"):
        return f"0x{word:0{digits}x}"
    if number == NAN:
        return "nan" if word == encode(ty, NAN) else f"0x{word:0{digits}x}"
    sign, magnitude = number
    mark = "-" if sign < 0 else ""
    if magnitude == INF:
        return mark + "inf"
    if word in (from_text(ty, "MAX"), from_text(ty, "-MAX")):
        return mark + "MAX"
    for precision in range(1, 8):
        text = f"{float(magnitude):.{precision}g}"
        if "e" not in text and "." not in text:
            text += ".0"
        if encode(ty, (sign, Fraction(text))) == word:
            return mark + text
    return f"0x{word:0{digits}x}"


def show_result(ty, word):
    return "quiet" if decode(ty, word) == NAN else show_float(ty, word)
