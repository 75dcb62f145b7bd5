//! The one namer of the C-family texts.
//!
//! Guarantee: every name it gives is a valid identifier, differs from every other name of the
//! kernel, from the language's keywords, types and functions, from the helper functions of the
//! text, and from what the C++ standard reserves (a leading underscore, two in a row).

use std::collections::HashSet;

/// Words of C and C++ that every dialect reserves, with the macros of its headers.
const COMMON: &[&str] = &[
    "alignas", "alignof", "and", "and_eq", "asm", "assert", "atomic_cancel", "auto", "bitand",
    "bitor", "bool", "break", "case", "catch", "char", "char16_t", "char32_t", "char8_t", "class",
    "co_await", "co_return", "co_yield", "compl", "concept", "const", "const_cast", "consteval",
    "constexpr", "constinit", "continue", "decltype", "default", "delete", "do", "double",
    "dynamic_cast", "else", "enum", "errno", "explicit", "export", "extern", "false", "float",
    "for", "friend", "goto", "if", "inline", "int", "linux", "long", "main", "mutable",
    "namespace", "new", "noexcept", "not", "not_eq", "nullptr", "operator", "or", "or_eq",
    "private", "protected", "public", "register", "reinterpret_cast", "requires", "restrict",
    "return", "short", "signed", "sizeof", "static", "static_assert", "static_cast", "std",
    "struct", "switch", "template", "this", "thread_local", "throw", "true", "try", "typedef",
    "typeid", "typename", "typeof", "union", "unix", "unsigned", "using", "virtual", "void",
    "volatile", "wchar_t", "while", "xor", "xor_eq",
    // Types that headers declare.
    "size_t", "ptrdiff_t", "int8_t", "int16_t", "int32_t", "int64_t", "uint8_t", "uint16_t",
    "uint32_t", "uint64_t", "uchar", "ushort", "uint", "ulong", "half", "bfloat", "longlong",
    "ulonglong", "dim3", "complex", "intptr_t", "uintptr_t",
    // Macros and functions of the mathematics and string headers.
    "NULL", "EOF", "INFINITY", "NAN", "HUGE_VAL", "HUGE_VALF", "FLT_MAX", "FLT_MIN",
    "FLT_EPSILON", "DBL_MAX", "DBL_MIN", "INT_MAX", "INT_MIN", "UINT_MAX", "CHAR_BIT", "M_PI",
    "M_PI_F", "M_E_F", "I", "abs", "acos", "acosh", "all", "any", "asin", "asinh", "atan",
    "atan2", "atanh", "cbrt", "ceil", "clamp", "copysign", "cos", "cosh", "cross", "div", "dot",
    "erf", "erfc", "exp", "exp10", "exp2", "expm1", "fabs", "fdim", "floor", "fma", "fmax",
    "fmin", "fmod", "fract", "frexp", "gamma", "hypot", "ilogb", "index", "isfinite", "isinf",
    "isnan", "isnormal", "j0", "j1", "jn", "ldexp", "length", "lgamma", "log", "log10", "log1p",
    "log2", "logb", "mad", "max", "memcmp", "memcpy", "memmove", "memset", "min", "mix", "modf",
    "nan", "nearbyint", "nextafter", "norm", "normalize", "pow", "powr", "printf", "remainder",
    "remquo", "rint", "round", "rsqrt", "select", "sign", "signbit", "sin", "sincos", "sinh",
    "sinpi", "cospi", "sqrt", "step", "tan", "tanh", "tanpi", "tgamma", "trunc", "y0", "y1",
    "yn", "malloc", "free", "exit", "abort", "rand", "clock", "time", "warpSize", "labs", "llabs",
    "rotate", "popcount", "popc", "clz", "ctz", "mulhi", "umulhi", "saturate", "smoothstep",
];

/// Names that the printer itself gives.
const OURS: &[&str] = &[
    "parameters", "Parameters", "error_word", "shared_memory", "subgroup_mask", "bit_cast",
    "half_to_float", "float_to_half", "bfloat_to_float", "float_to_bfloat", "min_number",
    "max_number", "min_nan", "max_nan", "wrapping_abs", "check_index", "grid_barrier",
    "grid_arrivals", "round_to_odd", "error_function", "lane", "group_id", "group_count",
    "local_id", "local_index", "global_id", "subgroup_id", "subgroup_count", "subgroup_lane",
    "subgroup_size",
];

/// Stems that, with lanes after them, are vector types: `float4`.
const VECTOR_STEMS: &[&str] = &[
    "bool", "char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "longlong",
    "ulonglong", "float", "double", "half", "bfloat", "f16x", "bf16x", "boolx", "packed_float",
    "packed_half", "packed_int", "packed_uint", "simd_float", "uint8_t", "float2x", "float3x",
    "float4x", "half2x", "half3x", "half4x",
];

/// Prefixes of helper functions, builtin functions and macros of the vendors.
const PREFIXES: &[&str] = &[
    "lanes_", "make_", "saturate_", "subgroup_", "atomic", "simd_", "quad_", "hip", "HIP", "cuda",
    "CUDA", "NV_", "nv", "threadgroup_", "mem_flags", "memory_order", "metal", "rocm", "as_type",
];

/// Gives names.
pub(crate) struct Namer {
    reserved: &'static [&'static str],
    used: HashSet<String>,
}

impl Namer {
    /// A namer of a dialect with these further reserved words.
    pub fn new(reserved: &'static [&'static str]) -> Namer {
        Namer { reserved, used: HashSet::new() }
    }

    /// A name like `wanted` that nothing else has.
    pub fn name(&mut self, wanted: &str) -> String {
        let base = legal(wanted, self.reserved);
        if self.used.insert(base.clone()) {
            return base;
        }
        let stem = base.trim_end_matches('_');
        for n in 2u64.. {
            let candidate = format!("{stem}_{n}");
            if !is_reserved(&candidate, self.reserved) && self.used.insert(candidate.clone()) {
                return candidate;
            }
        }
        base
    }
}

/// The wanted name made legal: the same where it is, and the same answer in every run.
pub(crate) fn legal(wanted: &str, reserved: &[&str]) -> String {
    let wanted = wanted.strip_prefix("r#").unwrap_or(wanted);
    let mut name = String::with_capacity(wanted.len() + 1);
    for c in wanted.chars() {
        if c.is_ascii_alphanumeric() {
            name.push(c);
        } else if c == '_' {
            if !name.is_empty() && !name.ends_with('_') {
                name.push('_');
            }
        } else {
            name.push_str(&format!("u{:x}", u32::from(c)));
        }
    }
    if name.is_empty() {
        name.push('v');
    }
    if name.starts_with(|c: char| c.is_ascii_digit()) {
        name.insert(0, 'v');
    }
    if is_reserved(&name, reserved) {
        let name = name.trim_end_matches('_');
        // A prefix stays reserved whatever follows it.
        let led = if has_reserved_prefix(name) { format!("k_{name}") } else { name.to_owned() };
        return format!("{led}_");
    }
    name
}

fn is_reserved(name: &str, reserved: &[&str]) -> bool {
    COMMON.contains(&name)
        || OURS.contains(&name)
        || reserved.contains(&name)
        || has_reserved_prefix(name)
        || is_vector_type(name)
        || is_float_variant(name)
}

fn has_reserved_prefix(name: &str) -> bool {
    PREFIXES.iter().any(|p| name.starts_with(p))
}

/// `float4`, `uchar16`, `half2x4`.
fn is_vector_type(name: &str) -> bool {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    stem.len() < name.len() && VECTOR_STEMS.contains(&stem)
}

/// `sinf`, `fmaxl`: the C library's variants of a reserved function.
fn is_float_variant(name: &str) -> bool {
    name.strip_suffix(['f', 'l']).is_some_and(|stem| COMMON.contains(&stem))
}

#[cfg(test)]
mod tests {
    use super::*;

    // K20
    #[test]
    fn names_are_legal_and_unique() {
        let mut namer = Namer::new(&["kernel", "thread", "device"]);
        for (wanted, expected) in [
            ("kernel", "kernel_"),
            ("thread", "thread_"),
            ("new", "new_"),
            ("and", "and_"),
            ("assert", "assert_"),
            ("min", "min_"),
            ("float4", "float4_"),
            ("main", "main_"),
            ("__x", "x"),
            ("a__b", "a_b"),
            ("a_b", "a_b_2"),
            ("r#type", "type"),
            ("sinf", "sinf_"),
            ("x", "x_2"),
            ("x", "x_3"),
            ("größe", "gruf6udfe"),
            ("_", "v"),
            ("atomic_sum", "k_atomic_sum_"),
            ("row", "row"),
        ] {
            assert_eq!(namer.name(wanted), expected, "wanted `{wanted}`");
        }
    }

    #[test]
    fn a_fixed_name_is_never_given_twice() {
        let mut namer = Namer::new(&[]);
        assert_eq!(namer.name("x_2"), "x_2");
        assert_eq!(namer.name("x"), "x");
        assert_eq!(namer.name("x"), "x_3");
    }
}
