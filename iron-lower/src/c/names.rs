//! The one namer of the C-family texts.
//!
//! Guarantee: every name it gives is a valid identifier, differs from every other name of the
//! kernel, from the language's keywords, types and functions, from the helper functions of the
//! text, and from what the C++ standard reserves (a leading underscore, two in a row).

use std::collections::HashSet;
use std::sync::LazyLock;

/// Words of C++ and macros of its headers, which no dialect allows as names.
const WORDS: &[&str] = &[
    "alignas",
    "alignof",
    "and",
    "and_eq",
    "asm",
    "assert",
    "auto",
    "bitand",
    "bitor",
    "bool",
    "break",
    "case",
    "catch",
    "char",
    "char16_t",
    "char32_t",
    "char8_t",
    "class",
    "co_await",
    "co_return",
    "co_yield",
    "compl",
    "concept",
    "const",
    "const_cast",
    "consteval",
    "constexpr",
    "constinit",
    "continue",
    "decltype",
    "default",
    "delete",
    "do",
    "double",
    "dynamic_cast",
    "else",
    "enum",
    "errno",
    "explicit",
    "export",
    "extern",
    "false",
    "float",
    "for",
    "friend",
    "goto",
    "if",
    "inline",
    "int",
    "linux",
    "long",
    "main",
    "mutable",
    "namespace",
    "new",
    "noexcept",
    "not",
    "not_eq",
    "nullptr",
    "operator",
    "or",
    "or_eq",
    "private",
    "protected",
    "public",
    "register",
    "reinterpret_cast",
    "requires",
    "restrict",
    "return",
    "short",
    "signed",
    "sizeof",
    "static",
    "static_assert",
    "static_cast",
    "std",
    "struct",
    "switch",
    "template",
    "this",
    "thread_local",
    "throw",
    "true",
    "try",
    "typedef",
    "typeid",
    "typename",
    "typeof",
    "union",
    "unix",
    "unsigned",
    "using",
    "virtual",
    "void",
    "volatile",
    "wchar_t",
    "while",
    "xor",
    "xor_eq",
    "NULL",
    "EOF",
    "INFINITY",
    "NAN",
    "HUGE_VAL",
    "HUGE_VALF",
    "FLT_MAX",
    "FLT_MIN",
    "FLT_EPSILON",
    "DBL_MAX",
    "DBL_MIN",
    "INT_MAX",
    "INT_MIN",
    "UINT_MAX",
    "CHAR_BIT",
    "M_PI",
    "M_PI_F",
    "M_E_F",
    "I",
    "warpSize",
];

/// Types of the languages and of their headers.
const TYPES: &[&str] = &[
    "size_t",
    "ptrdiff_t",
    "int8_t",
    "int16_t",
    "int32_t",
    "int64_t",
    "uint8_t",
    "uint16_t",
    "uint32_t",
    "uint64_t",
    "uchar",
    "ushort",
    "uint",
    "ulong",
    "half",
    "bfloat",
    "longlong",
    "ulonglong",
    "dim3",
    "intptr_t",
    "uintptr_t",
];

/// Functions that texts call: a variable of that name would hide them.
const CALLED: &[&str] = &[
    "abs", "ceil", "cos", "erf", "exp", "exp2", "fabs", "floor", "fma", "fmax", "fmin", "isfinite",
    "isnan", "log", "log2", "max", "memcpy", "min", "pow", "rint", "rsqrt", "signbit", "sin",
    "sqrt", "tanh", "trunc", "popcount", "clz", "ctz", "mulhi", "select",
];

/// Further functions of the libraries, which only an entry point would clash with.
const LIBRARY: &[&str] = &[
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "cbrt",
    "copysign",
    "cosh",
    "cospi",
    "div",
    "erfc",
    "exp10",
    "expm1",
    "fdim",
    "fmod",
    "frexp",
    "gamma",
    "hypot",
    "ilogb",
    "index",
    "isinf",
    "isnormal",
    "j0",
    "j1",
    "jn",
    "ldexp",
    "lgamma",
    "log10",
    "log1p",
    "logb",
    "memcmp",
    "memmove",
    "memset",
    "modf",
    "nan",
    "nearbyint",
    "nextafter",
    "norm",
    "printf",
    "remainder",
    "remquo",
    "round",
    "sincos",
    "sincospi",
    "sinh",
    "sinpi",
    "tan",
    "tanpi",
    "tgamma",
    "y0",
    "y1",
    "yn",
    "malloc",
    "free",
    "exit",
    "abort",
    "rand",
    "clock",
    "time",
    "labs",
    "llabs",
    "umin",
    "umax",
    "scalbn",
    "lround",
    "lrint",
    "all",
    "any",
    "clamp",
    "cross",
    "dot",
    "fract",
    "length",
    "mix",
    "normalize",
    "powr",
    "rotate",
    "saturate",
    "sign",
    "smoothstep",
    "step",
];

/// Names that the printer itself gives.
const OURS: &[&str] = &[
    "parameters",
    "Parameters",
    "error_word",
    "shared_memory",
    "subgroup_mask",
    "bit_cast",
    "half_to_float",
    "float_to_half",
    "bfloat_to_float",
    "float_to_bfloat",
    "min_number",
    "max_number",
    "min_nan",
    "max_nan",
    "wrapping_abs",
    "check_index",
    "barrier_device",
    "grid_barrier",
    "grid_arrivals",
    "arrivals_now",
    "copy_chunk",
    "copy_ahead",
    "end_batch",
    "wait_batches",
    "fragment_fill",
    "fragment_store",
    "fragment_load",
    "fragment_of_lines",
    "fragment_across_lines",
    "fragment_part",
    "fragment_half",
    "fragment_halves",
    "fragment_sums",
    "fragment_product_f16_lines_lines",
    "fragment_product_f16_lines_columns",
    "fragment_product_f16_columns_lines",
    "fragment_product_f16_columns_columns",
    "fragment_product_bf16_lines_lines",
    "fragment_product_bf16_lines_columns",
    "fragment_product_bf16_columns_lines",
    "fragment_product_bf16_columns_columns",
    "round_to_odd",
    "total_divide",
    "total_remainder",
    "lane_at",
    "group_id",
    "group_count",
    "local_id",
    "local_index",
    "global_id",
    "subgroup_id",
    "subgroup_count",
    "subgroup_lane",
    "subgroup_size",
];

/// Stems that, with lanes after them, are vector types: `float4`.
const VECTOR_STEMS: &[&str] = &[
    "bool",
    "char",
    "uchar",
    "short",
    "ushort",
    "int",
    "uint",
    "long",
    "ulong",
    "longlong",
    "ulonglong",
    "float",
    "double",
    "half",
    "bfloat",
    "f16x",
    "bf16x",
    "boolx",
    "packed_float",
    "packed_half",
    "packed_int",
    "packed_uint",
    "simd_float",
    "uint8_t",
    "float2x",
    "float3x",
    "float4x",
    "half2x",
    "half3x",
    "half4x",
];

/// Prefixes of helper functions, builtin functions and macros of the vendors.
const PREFIXES: &[&str] = &[
    "lanes_",
    "make_",
    "saturate_",
    "subgroup_",
    "atomic",
    "simd_",
    "quad_",
    "hip",
    "HIP",
    "cuda",
    "CUDA",
    "NV_",
    "nv",
    "threadgroup_",
    "mem_flags",
    "memory_order",
    "metal",
    "rocm",
    "as_type",
];

/// The words that no dialect allows, all of them.
static RESERVED: LazyLock<HashSet<&str>> = LazyLock::new(|| {
    let lists = [WORDS, TYPES, CALLED, OURS];
    lists.into_iter().flatten().copied().collect()
});

/// Gives names. A name given in a block is free again after it, so that two loops may both
/// count with `i`; no name hides another.
pub(crate) struct Namer {
    reserved: &'static [&'static str],
    used: HashSet<String>,
    given: Vec<String>,
}

impl Namer {
    /// A namer of a dialect with these further reserved words.
    pub fn new(reserved: &'static [&'static str]) -> Namer {
        Namer {
            reserved,
            used: HashSet::new(),
            given: Vec::new(),
        }
    }

    /// A name like `wanted` that nothing in scope has.
    pub fn name(&mut self, wanted: &str) -> String {
        let name = self.unused(legal(wanted, self.reserved));
        self.used.insert(name.clone());
        self.given.push(name.clone());
        name
    }

    /// The name of an entry point, which is no function of a library either.
    pub fn entry_point(&mut self, wanted: &str) -> String {
        let name = legal_entry_point(wanted, self.reserved);
        self.used.insert(name.clone());
        name
    }

    /// Opens a block.
    pub fn open(&self) -> usize {
        self.given.len()
    }

    /// Closes the block that [`Namer::open`] returned.
    pub fn close(&mut self, block: usize) {
        for name in self.given.drain(block..) {
            self.used.remove(&name);
        }
    }

    fn unused(&self, base: String) -> String {
        if !self.used.contains(&base) {
            return base;
        }
        let stem = base.trim_end_matches('_');
        // `lanes_2` would have a reserved prefix whatever the number.
        let lead = if has_reserved_prefix(&format!("{stem}_")) {
            "k_"
        } else {
            ""
        };
        (2u64..)
            .map(|n| format!("{lead}{stem}_{n}"))
            .find(|name| !is_reserved(name, self.reserved) && !self.used.contains(name))
            .unwrap_or(base)
    }
}

/// The name of an entry point made legal.
pub(crate) fn legal_entry_point(wanted: &str, reserved: &[&str]) -> String {
    let name = legal(wanted, reserved);
    let is_taken = LIBRARY.contains(&name.as_str())
        || name
            .strip_suffix(['f', 'l'])
            .is_some_and(|stem| LIBRARY.contains(&stem));
    if is_taken { format!("{name}_") } else { name }
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
        let led = if has_reserved_prefix(name) {
            format!("k_{name}")
        } else {
            name.to_owned()
        };
        return format!("{led}_");
    }
    name
}

fn is_reserved(name: &str, reserved: &[&str]) -> bool {
    RESERVED.contains(name)
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
    name.strip_suffix(['f', 'l'])
        .is_some_and(|stem| CALLED.contains(&stem))
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
            ("lanes", "lanes"),
            ("lanes", "k_lanes_2"),
        ] {
            assert_eq!(namer.name(wanted), expected, "wanted `{wanted}`");
        }
    }

    #[test]
    fn blocks_give_their_names_back() {
        let mut namer = Namer::new(&[]);
        let outer = namer.name("sum");
        let block = namer.open();
        assert_eq!(
            [outer, namer.name("i"), namer.name("sum")],
            ["sum", "i", "sum_2"]
        );
        namer.close(block);
        assert_eq!([namer.name("i"), namer.name("sum")], ["i", "sum_2"]);
    }

    #[test]
    fn entry_points_are_no_library_function() {
        assert_eq!(legal_entry_point("index", &[]), "index_");
        assert_eq!(legal_entry_point("roundf", &[]), "roundf_");
        assert_eq!(legal_entry_point("softmax", &[]), "softmax");
    }

    #[test]
    fn a_fixed_name_is_never_given_twice() {
        let mut namer = Namer::new(&[]);
        assert_eq!(namer.name("x_2"), "x_2");
        assert_eq!(namer.name("x"), "x");
        assert_eq!(namer.name("x"), "x_3");
    }
}
