//! Fragments of subgroups ([`iron_ir::machine`]) as calls of a few helper functions, whose texts
//! are each language's own.

use iron_ir::Handle;
use iron_ir::machine::{MachineOp, MachineStmt};
use iron_ir::types::Scalar;

use super::dialect::{Dialect, MachineNames};
use super::helpers::Helpers;

/// How a language spells what can be done with fragments.
pub(crate) trait FragmentHelpers {
    /// Cells of an array of sums that one fragment takes.
    fn cells(&self) -> u32;
    /// `fragment_fill<cells>(sums, value)`.
    fn fill(&self) -> String;
    /// `fragment_store(sums, first, pitch)`.
    fn store(&self) -> String;
    /// `fragment_load(sums, first, pitch)`.
    fn load(&self) -> String;
    /// Adds `name<rows, columns>(sums, a, a_pitch, a_skip, b, b_pitch, b_skip)` of elements of
    /// that type, and what it needs; each flag says that lines of memory run along `k`.
    fn product(&self, helpers: &mut Helpers, name: &str, scalar: Scalar, by_k: [bool; 2]);
}

/// One statement about fragments.
pub(crate) fn statement(
    dialect: &dyn Dialect,
    texts: &dyn FragmentHelpers,
    helpers: &mut Helpers,
    stmt: &MachineStmt,
    names: &MachineNames<'_>,
) -> Result<String, String> {
    let missing = || format!("`{}` without its parts", stmt.op.name());
    let array = |n: usize| names.arrays.get(n).copied().ok_or_else(missing);
    let operand = |n: usize| names.operands.get(n).ok_or_else(missing);
    let number = |n: usize| stmt.numbers.get(n).copied().ok_or_else(missing);
    let place = |n: usize, at: usize| Ok::<_, String>(format!("&{}[{}]", array(n)?, operand(at)?));
    let cells = texts.cells();
    let fragment = || {
        Ok::<_, String>(match number(0)? * cells {
            0 => array(0)?.to_owned(),
            first => format!("{} + {first}", array(0)?),
        })
    };
    Ok(match stmt.op {
        MachineOp::FragmentFill => {
            helpers.require("fragment_fill", || texts.fill());
            let value = match number(1)? {
                0 => "0.0f".to_owned(),
                bits => dialect.float_bits(bits).text,
            };
            format!(
                "fragment_fill<{}u>({}, {value});",
                number(0)? * cells,
                array(0)?
            )
        }
        MachineOp::FragmentStore => {
            helpers.require("fragment_store", || texts.store());
            let place = place(1, 0)?;
            format!("fragment_store({}, {place}, {}u);", fragment()?, number(1)?)
        }
        MachineOp::FragmentLoad => {
            helpers.require("fragment_load", || texts.load());
            let place = place(1, 0)?;
            format!("fragment_load({}, {place}, {}u);", fragment()?, number(1)?)
        }
        MachineOp::FragmentProduct => {
            let (scalar, ty) = match number(2)? {
                1 => (Scalar::BF16, "bf16"),
                _ => (Scalar::F16, "f16"),
            };
            let by_k = [number(5)? == 1, number(8)? == 1];
            let [a, b] = by_k.map(|by_k| if by_k { "lines" } else { "columns" });
            let name = format!("fragment_product_{ty}_{a}_{b}");
            texts.product(helpers, &name, scalar, by_k);
            format!(
                "{name}<{}u, {}u>({}, {}, {}u, {}u, {}, {}u, {}u);",
                number(0)?,
                number(1)?,
                array(0)?,
                place(1, 0)?,
                number(3)?,
                number(4)?,
                place(2, 1)?,
                number(6)?,
                number(7)?
            )
        }
        other => return Err(format!("the machine operation `{}`", other.name())),
    })
}

/// [`MachineOp::IsAligned`]: the tensor's bit of the block's word.
pub(crate) fn is_aligned(stmt: &MachineStmt, names: &MachineNames<'_>) -> Result<String, String> {
    let bit = stmt.source.map(Handle::index);
    match (names.aligned.as_deref(), bit) {
        (Some(word), Some(bit)) => Ok(format!("({word} >> {bit}u & 1u) != 0u")),
        _ => Err(format!("`{}` without its parts", stmt.op.name())),
    }
}

/// The helper of CUDA C++ and HIP C++ that [`FragmentHelpers::product`] names: fragments of `a` held
/// in parts of that type, read as elements of the other, and for each fragment of sums the lines of
/// `step` for `left[i]` and `right`.
pub(crate) fn product_of_grids(
    name: &str,
    by_k: [bool; 2],
    [part, element]: [&str; 2],
    step: &str,
) -> String {
    let [a, b] = by_k.map(|by_k| match by_k {
        true => "fragment_of_lines",
        false => "fragment_across_lines",
    });
    format!(
        "// Adds a grid of fragments times a grid of fragments, 16 steps; `skip` from one to the next.\n\
         template <unsigned int rows, unsigned int columns>\n\
         __device__ inline void {name}(\n    \
         float* sums, const void* a, unsigned int a_pitch, unsigned int a_skip,\n    \
         const void* b, unsigned int b_pitch, unsigned int b_skip\n) {{\n    \
         {part} left[rows];\n\
         #pragma unroll\n    \
         for (unsigned int i = 0u; i < rows; i++) {{\n        \
         left[i] = {a}((const {element}*)a + i * a_skip, a_pitch);\n    }}\n\
         #pragma unroll\n    \
         for (unsigned int j = 0u; j < columns; j++) {{\n        \
         const {part} right = {b}((const {element}*)b + j * b_skip, b_pitch);\n\
         #pragma unroll\n        \
         for (unsigned int i = 0u; i < rows; i++) {{\n\
         {step}        }}\n    }}\n}}"
    )
}
