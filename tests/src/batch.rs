//! Rows of one operation and type as one kernel, in several forms.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use iron_ir::launch::{Argument, AsTensorArg};
use iron_ir::parse::parse;
use iron_ir::print::{canonical, print};
use iron_ir::{Kernel, Scalar};
use iron_runtime::{DeviceError, Tensor, launch_by_name, launch_kernel};

use crate::backends::Target;
use crate::by_macro;
use crate::flush::{self, Flush, Judgement};
use crate::rows::{Row, is_nan};

/// How operands reach the operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// As constants of the kernel, which compilers fold.
    Constant,
    /// Loaded from memory, one row a thread.
    Loaded,
    /// Loaded from memory, four rows a thread in the lanes of a vector.
    Vector,
    /// The operand of this index loaded, the others constants, which compilers simplify by.
    OneLoaded(usize),
}

impl Form {
    /// The forms in which rows of an operation and type can be run.
    pub fn of(row: &Row) -> Vec<Form> {
        let mut forms = vec![Form::Constant];
        if row.operation.name == "literal" {
            return forms;
        }
        forms.push(Form::Loaded);
        if row.operation.takes_vectors(row.from) {
            forms.push(Form::Vector);
        }
        let operands = row.operation.operands;
        if operands > 1 && row.operation.name != "offset" {
            forms.extend((0..operands).map(Form::OneLoaded));
        }
        forms
    }

    /// Whether the operand of that index comes from memory.
    fn loads(self, operand: usize) -> bool {
        match self {
            Form::Constant => false,
            Form::Loaded | Form::Vector => true,
            Form::OneLoaded(one) => one == operand,
        }
    }

    /// Each row is written out, with constants of its own.
    fn is_written_out(self) -> bool {
        matches!(self, Form::Constant | Form::OneLoaded(_))
    }
}

/// Rows a thread of the vector form.
const VECTOR: usize = 4;
/// Threads of a workgroup.
const THREADS: usize = 64;

/// Runs rows of one operation and type; the answer's lanes for each.
pub fn run_batch(target: &Target, rows: &[&Row], form: Form) -> Result<Vec<Vec<u64>>, DeviceError> {
    let first = rows[0];
    if target.is_host() && form != Form::Loaded {
        return Err(unsupported(first, "it runs rows that are loaded"));
    }
    let columns: Vec<Vec<u64>> = (0..first.operation.operands)
        .map(|i| rows.iter().map(|row| row.operands[i]).collect())
        .collect();
    let answers = if target.is_host() {
        run_kernel(target, None, first, &columns, form)?
    } else {
        let kernel = round_trip(&kernel_text(rows, form))?;
        run_kernel(target, Some(&kernel), first, &columns, form)?
    };
    Ok(answers
        .chunks_exact(first.lanes())
        .map(<[u64]>::to_vec)
        .collect())
}

/// As [`run_batch`] in the loaded form, for many operands of one operation of one operand: the
/// lanes of all answers in order. `like` gives operation and types.
pub fn run_many(target: &Target, like: &Row, operands: &[u64]) -> Result<Vec<u64>, DeviceError> {
    let kernel = round_trip(&kernel_text(&[like], Form::Loaded))?;
    let kernel = (!target.is_host()).then_some(&kernel);
    let mut columns = vec![operands.to_vec()];
    columns.truncate(like.operation.operands);
    run_kernel(target, kernel, like, &columns, Form::Loaded)
}

/// As [`run_batch`] by the kernel of [`by_macro`] that computes such rows, on any backend.
pub fn run_by_macro(target: &Target, rows: &[&Row]) -> Result<Vec<Vec<u64>>, DeviceError> {
    let first = rows[0];
    let columns: Vec<Vec<u64>> = (0..first.operation.operands)
        .map(|i| rows.iter().map(|row| row.operands[i]).collect())
        .collect();
    let answers = run_kernel(target, None, first, &columns, Form::Loaded)?;
    let lanes = answers.chunks_exact(first.lanes());
    Ok(lanes.map(<[u64]>::to_vec).collect())
}

fn unsupported(row: &Row, reason: &str) -> DeviceError {
    DeviceError::Unsupported {
        kernel: row.operation.name.into(),
        backend: "host",
        reason: reason.into(),
    }
}

/// The kernel of a text, printed and parsed once more on the way.
fn round_trip(text: &str) -> Result<Kernel, DeviceError> {
    let wrong = |message: String| DeviceError::Compile {
        kernel: text.lines().next().unwrap_or_default().into(),
        backend: "textual IR",
        message,
    };
    let parse = |text: &str| parse(text).map_err(|error| wrong(format!("{error}\n{text}")));
    let kernel = parse(text)?;
    let printed = print(&kernel);
    let again = parse(&printed)?;
    if again == canonical(&kernel) {
        Ok(again)
    } else {
        Err(wrong(format!(
            "the text form does not round-trip\n{text}\n{printed}"
        )))
    }
}

/// Runs a kernel of rows, or where there is none the one of the kernel language.
fn run_kernel(
    target: &Target,
    kernel: Option<&Kernel>,
    first: &Row,
    columns: &[Vec<u64>],
    form: Form,
) -> Result<Vec<u64>, DeviceError> {
    let lanes = first.lanes();
    let rows = columns[0].len();
    let count = match form {
        Form::Vector => rows.next_multiple_of(VECTOR),
        Form::Constant | Form::Loaded | Form::OneLoaded(_) => rows,
    };
    let mut tensors = Vec::new();
    for (index, column) in columns.iter().enumerate() {
        if form.loads(index) {
            let scalar = first.operation.operand_type(first.from, index);
            let size = scalar.bytes() as usize;
            let mut bytes = Vec::with_capacity(count * size);
            for i in 0..count {
                bytes.extend_from_slice(&column[i.min(rows - 1)].to_le_bytes()[..size]);
            }
            tensors.push(Tensor::from_bytes(
                &target.device,
                scalar,
                &[count as u64],
                &bytes,
            )?);
        }
    }
    let size = first.to.bytes() as usize;
    // The sentinel is no right answer, so an output that nothing wrote cannot pass.
    let sentinel = vec![0xa5; count * lanes * size];
    let shape = [(count * lanes) as u64];
    let output = Tensor::from_bytes(&target.device, first.to, &shape, &sentinel)?;
    tensors.push(output.clone());
    let mut arguments: Vec<Argument> = tensors
        .iter()
        .map(|t| Argument::Tensor(t.tensor_arg()))
        .collect();
    match kernel {
        Some(kernel) => launch_kernel(&target.device, kernel, arguments)?,
        None => {
            let choice = by_macro::choice(first)
                .ok_or_else(|| unsupported(first, "no kernel of the language has the operation"))?;
            arguments.extend(choice.op.map(Argument::Scalar));
            launch_by_name(
                &target.device,
                choice.kernel,
                Some("iron_tests::by_macro"),
                &choice.instance,
                arguments,
            )?;
        }
    }
    target.device.synchronize()?;
    let bytes = output.to_bytes()?;
    Ok(bytes
        .chunks_exact(size)
        .take(rows * lanes)
        .map(|chunk| {
            let mut word = [0u8; 8];
            word[..size].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        })
        .collect())
}

/// The kernel of a batch in the textual IR.
pub fn kernel_text(rows: &[&Row], form: Form) -> String {
    let first = rows[0];
    let (operation, from, to) = (first.operation, first.from, first.to);
    let lanes = first.lanes();
    let vector = if form == Form::Vector { VECTOR } else { 1 };
    let typed = |scalar: Scalar, lanes: usize| match lanes {
        1 => scalar.to_string(),
        n => format!("{scalar}x{n}"),
    };
    let mut text = String::new();
    let _ = write!(text, "kernel @{} ", operation.name);
    let grid = match form {
        Form::Constant | Form::OneLoaded(_) => "1".into(),
        Form::Loaded | Form::Vector => format!("ceil_div(#n, {})", THREADS * vector),
    };
    let threads = if form.is_written_out() { 1 } else { THREADS };
    let _ = writeln!(text, "grid({grid}, 1, 1) workgroup({threads}, 1, 1) {{");
    let _ = writeln!(text, "  dim #n");
    let names = ["a", "b", "c"];
    for (i, name) in names.iter().enumerate().take(operation.operands) {
        if form.loads(i) {
            let scalar = operation.operand_type(from, i);
            let _ = writeln!(
                text,
                "  param @{name}: tensor<{scalar}, [#n], read, align {vector}>"
            );
        }
    }
    // A named extent of its own where the result has lanes: dimensions are bound by a tensor.
    let extent = match (form, lanes) {
        (Form::Constant | Form::OneLoaded(_), _) | (_, 1) => "#n".to_string(),
        (_, lanes) => format!("#n * {lanes}"),
    };
    let align = vector * lanes;
    let _ = writeln!(
        text,
        "  param @y: tensor<{to}, [{extent}], read_write, align {align}>"
    );
    if form.is_written_out() {
        for (row_index, row) in rows.iter().enumerate() {
            let prefix = format!("r{row_index}");
            let mut operands = Vec::new();
            for (i, bits) in row.operands.iter().enumerate() {
                let scalar = operation.operand_type(from, i);
                if form.loads(i) {
                    let (operand, name) = (format!("%{prefix}operand"), names[i]);
                    let _ = writeln!(text, "  {operand}: {scalar} = load @{name}[{row_index}u32]");
                    operands.push(operand);
                } else {
                    operands.push(format!("{scalar}:0x{bits:x}"));
                }
            }
            let result = emit(
                &mut text,
                row,
                &operands,
                &prefix,
                &typed(to, lanes),
                from,
                1,
            );
            let _ = writeln!(text, "  store @y[{}u32] = {result}", row_index * lanes);
        }
    } else {
        let _ = writeln!(text, "  %at: u32 = mul global_id.0, {vector}u32");
        let _ = writeln!(text, "  %inside: bool = lt %at, #n");
        let _ = writeln!(text, "  if %inside {{");
        for (i, name) in names.iter().enumerate().take(operation.operands) {
            let ty = typed(operation.operand_type(from, i), vector);
            let _ = writeln!(text, "  %{name}: {ty} = load @{name}[%at]");
        }
        let operands: Vec<String> = names.iter().map(|n| format!("%{n}")).collect();
        let operands = &operands[..operation.operands];
        let ty = typed(to, lanes * vector);
        let result = emit(&mut text, first, operands, "r", &ty, from, vector);
        let _ = writeln!(text, "  %to: u32 = mul %at, {lanes}u32");
        let _ = writeln!(text, "  store @y[%to] = {result}");
        let _ = writeln!(text, "  }}");
    }
    text.push_str("}\n");
    text
}

/// Writes the statements of one row and gives the name of the result.
fn emit(
    text: &mut String,
    row: &Row,
    operands: &[String],
    prefix: &str,
    to: &str,
    from: Scalar,
    lanes: usize,
) -> String {
    let ty = match lanes {
        1 => from.to_string(),
        n => format!("{from}x{n}"),
    };
    let mut define = |name: &str, ty: &str, what: String| {
        let _ = writeln!(text, "  %{prefix}{name}: {ty} = {what}");
        format!("%{prefix}{name}")
    };
    let (a, b, c) = (
        operands[0].as_str(),
        operands.get(1).map_or("", String::as_str),
        operands.get(2).map_or("", String::as_str),
    );
    match row.operation.name {
        "mul_add" => {
            let product = define("product", &ty, format!("mul {a}, {b}"));
            define("sum", &ty, format!("add {product}, {c}"))
        }
        "div_rem" => {
            let quotient = define("quotient", &ty, format!("div {a}, {b}"));
            let product = define("product", &ty, format!("mul {quotient}, {b}"));
            let rest = define("rest", &ty, format!("rem {a}, {b}"));
            define("sum", &ty, format!("add {product}, {rest}"))
        }
        "offset" => {
            let row = define("row", "u32", format!("convert {a}"));
            let column = define("column", "u32", format!("convert {c}"));
            let wide = define("wide", "u64", format!("convert {row}"));
            let start = define("start", "u64", format!("mul {wide}, {b}"));
            let column = define("wide_column", "u64", format!("convert {column}"));
            let element = define("element", "u64", format!("add {start}, {column}"));
            define("byte", "u64", format!("mul {element}, 4u64"))
        }
        "literal" => operands[0].clone(),
        name => define("", to, format!("{name} {}", operands.join(", "))),
    }
}

/// A fault of one driver in one row and form, and its answer; `docs/driver-faults.md` has them.
fn known_fault(target: &Target, row: &Row, form: Form) -> Option<(&'static str, u64)> {
    let nvidia = target.name() == "vulkan" && target.device.name().contains("NVIDIA");
    let of_zeros = row.operands == [0, 0x8000] && row.from == Scalar::F16;
    (nvidia && of_zeros && row.operation.name == "min_nan" && form == Form::OneLoaded(1))
        .then_some(("a constant zero beside one from memory decides the sign", 0))
}

/// What a batch found.
#[derive(Default, Debug)]
pub struct Tally {
    /// Answers that are right.
    pub right: usize,
    /// Answers that are what a named fault of the device makes of them: the fault and the operation,
    /// with their number.
    pub excepted: BTreeMap<(String, String), usize>,
    /// Rows of kernels that the device cannot run, by its reason.
    pub unsupported: BTreeMap<String, usize>,
    /// Rows whose operation Rust itself refuses, on `host`.
    pub refused: usize,
    /// Wrong answers in words.
    pub wrong: Vec<String>,
}

impl Tally {
    /// Runs rows of one operation and type in one form and judges the answers.
    pub fn run(&mut self, target: &Target, rows: &[&Row], form: Form) {
        let defined: Vec<&Row>;
        let mut rows = rows;
        if target.is_host() {
            defined = rows
                .iter()
                .copied()
                .filter(|row| !by_macro::faults_in_rust(row))
                .collect();
            self.refused += rows.len() - defined.len();
            rows = &defined;
        }
        if rows.is_empty() {
            return;
        }
        let answers = match run_batch(target, rows, form) {
            Ok(answers) => answers,
            Err(DeviceError::Unsupported { reason, .. }) => {
                *self.unsupported.entry(reason).or_default() += rows.len();
                return;
            }
            Err(error) => {
                let first = rows[0];
                self.wrong.push(format!(
                    "{} on {} {form:?}: {error}\n{}",
                    first.describe(),
                    target.name(),
                    kernel_text(&rows[..1], form)
                ));
                return;
            }
        };
        let own: Vec<_> = rows.iter().map(|row| row.on(target.name())).collect();
        let rows: Vec<&Row> = own.iter().map(|row| &**row).collect();
        let judgement = if target.flushes_subnormals {
            flush::judge(&rows, &answers, !form.is_written_out())
        } else {
            let pairs = rows.iter().zip(&answers).enumerate();
            let wrong = pairs.filter(|(_, (row, found))| !row.accepts(found));
            let wrong: Vec<usize> = wrong.map(|(at, _)| at).collect();
            Judgement {
                right: rows.len() - wrong.len(),
                wrong,
                ..Judgement::default()
            }
        };
        self.right += judgement.right;
        for (row, found) in rows.iter().zip(&answers) {
            if row.accepts(found) && known_fault(target, row, form).is_some() {
                let row = row.describe();
                self.wrong
                    .push(format!("{row}: right, so the fault named here is gone"));
            }
        }
        let fault = judgement.excepted.first().map(|(flush, _)| *flush);
        for (flush, count) in judgement.excepted {
            self.except(rows[0], flush, count);
        }
        for at in judgement.wrong {
            let (row, found) = (rows[at], &answers[at]);
            if let Some((fault, answer)) = known_fault(target, row, form)
                && *found == [answer]
            {
                let what = (fault.to_owned(), row.describe());
                *self.excepted.entry(what).or_default() += 1;
                continue;
            }
            let found: Vec<String> = found
                .iter()
                .map(|&bits| crate::rows::show(row.to, bits))
                .collect();
            let other = fault.map_or(String::new(), |flush| {
                format!("; others have zeros {}", flush.words())
            });
            self.wrong.push(format!(
                "{} on {} {form:?}: got {}, expected {}{other}",
                row.describe(),
                target.name(),
                found.join(" "),
                row.describe_expected()
            ));
        }
    }

    /// Counts answers that are what the device's fault makes of rows like this.
    pub fn except(&mut self, row: &Row, flush: Flush, count: usize) {
        let to = if row.operation.name == "convert" {
            format!(" to {}", row.to)
        } else {
            String::new()
        };
        let operation = format!("{} {}{to}", row.operation.name, row.from);
        let fault = format!("subnormal f32 become zero {}", flush.words());
        *self.excepted.entry((fault, operation)).or_default() += count;
    }

    /// Adds what another found.
    pub fn add(&mut self, other: Tally) {
        self.right += other.right;
        for (what, rows) in other.excepted {
            *self.excepted.entry(what).or_default() += rows;
        }
        self.refused += other.refused;
        for (reason, rows) in other.unsupported {
            *self.unsupported.entry(reason).or_default() += rows;
        }
        self.wrong.extend(other.wrong);
    }

    /// Prints the counts of a backend.
    pub fn print(&self, what: &str) {
        let excepted: usize = self.excepted.values().sum();
        println!(
            "{what}: {} right, {excepted} excepted by the device's fault, {} wrong",
            self.right,
            self.wrong.len(),
        );
        let mut faults = BTreeMap::<_, Vec<String>>::new();
        for ((fault, operation), rows) in &self.excepted {
            let of_fault = faults.entry(fault).or_default();
            of_fault.push(format!("{operation} {rows}"));
        }
        for (fault, operations) in faults {
            println!("{what}: the fault: {fault}: {}", operations.join(", "));
        }
        if self.refused > 0 {
            println!("{what}: {} that Rust itself refuses", self.refused);
        }
        for (reason, rows) in &self.unsupported {
            println!("{what}: {rows} unsupported: {reason}");
        }
    }

    /// Fails where an answer is wrong, showing some.
    ///
    /// # Panics
    ///
    /// Where an answer is wrong.
    pub fn assert(&self) {
        let shown: Vec<&str> = self.wrong.iter().take(60).map(String::as_str).collect();
        assert!(
            self.wrong.is_empty(),
            "{} wrong:\n{}",
            self.wrong.len(),
            shown.join("\n")
        );
    }
}

/// Rows by operation and types, in order of first appearance within a key.
pub fn grouped(rows: &[Row]) -> Vec<Vec<&Row>> {
    let mut groups = BTreeMap::<_, Vec<&Row>>::new();
    for row in rows {
        groups
            .entry((row.operation, row.from, row.to))
            .or_default()
            .push(row);
    }
    groups.into_values().collect()
}

/// Two answers are the same: bit for bit, or both NaN.
pub fn same(scalar: Scalar, a: u64, b: u64) -> bool {
    a == b || (is_nan(scalar, a) && is_nan(scalar, b))
}
