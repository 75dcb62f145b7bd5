//! The rows of `semantics/together.txt`: what threads do together, with every thread's value.
//!
//! ```text
//! group reduce.sum i32: 1, 2, 3 = 6 6 6             operand and answer of each thread
//! subgroup shuffle_xor u32, 1: 10, 11 = 11 10       with the lane or distance
//! subgroup ballot bool to u64: true, false = 1 1    with the type of the answer
//! atomic add u32: 5, 3 = 5 8                        cell, operand = old value, new cell
//! atomic compare_exchange u32: 5, 9, 5 = 5 9        cell, new value, expected = old, new
//! ```
//!
//! Rows of subgroups have at most four threads, the lanes of the narrowest, so that they hold at
//! every width.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use iron_ir::Scalar;
use iron_ir::launch::{Argument, AsTensorArg};
use iron_ir::parse::parse as parse_kernel;
use iron_runtime::{DeviceError, Tensor, launch_kernel};

use crate::backends::Target;
use crate::batch::{Tally, same};
use crate::rows::{literal, show};

/// What is done, on which type, by how many threads. Rows alike in it run in one launch.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Act {
    /// `group`, `subgroup` or `atomic`.
    kind: String,
    name: String,
    from: Scalar,
    to: Scalar,
    argument: Option<u32>,
    /// Threads, or operands of an atomic.
    operands: usize,
}

/// One row.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    act: Act,
    operands: Vec<u64>,
    answers: Vec<u64>,
    line: usize,
}

impl Row {
    fn describe(&self) -> String {
        let operands: Vec<String> = self
            .operands
            .iter()
            .map(|&bits| show(self.act.from, bits))
            .collect();
        let Act {
            kind, name, from, ..
        } = &self.act;
        format!(
            "together.txt:{}: {kind} {name} {from}: {}",
            self.line,
            operands.join(", ")
        )
    }
}

/// Reads the rows.
pub fn parse(text: &str) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let row = row(line, index + 1);
        rows.push(row.map_err(|what| format!("together.txt:{}: {what}", index + 1))?);
    }
    Ok(rows)
}

fn row(line: &str, number: usize) -> Result<Row, String> {
    let (head, tail) = line.split_once(':').ok_or("a row has a `:`")?;
    let (operands, answers) = tail.split_once('=').ok_or("a row has a `=`")?;
    let (head, argument) = match head.split_once(',') {
        Some((head, argument)) => {
            let argument = argument.trim();
            let number = argument
                .parse()
                .map_err(|_| format!("`{argument}` is no lane"))?;
            (head, Some(number))
        }
        None => (head, None),
    };
    let scalar = |name: &str| Scalar::from_name(name).ok_or(format!("no type `{name}`"));
    let words: Vec<&str> = head.split_whitespace().collect();
    let (kind, name, from, to) = match words[..] {
        [kind, name, from] => (kind, name, scalar(from)?, scalar(from)?),
        [kind, name, from, "to", to] => (kind, name, scalar(from)?, scalar(to)?),
        _ => return Err(format!("`{head}` is no operation and type")),
    };
    if !matches!(kind, "group" | "subgroup" | "atomic") {
        return Err(format!("`{kind}` is no kind of row"));
    }
    let operands = operands
        .split(',')
        .map(|text| literal(from, text.trim()))
        .collect::<Result<Vec<_>, _>>()?;
    let answers = answers
        .split_whitespace()
        .map(|text| literal(to, text))
        .collect::<Result<Vec<_>, _>>()?;
    let expected = if kind == "atomic" { 2 } else { operands.len() };
    if answers.len() != expected {
        return Err(format!("{} answers, expected {expected}", answers.len()));
    }
    let act = Act {
        kind: kind.into(),
        name: name.into(),
        from,
        to,
        argument,
        operands: operands.len(),
    };
    Ok(Row {
        act,
        operands,
        answers,
        line: number,
    })
}

/// Runs every row; atomics on cells of a tensor and of a shared array.
pub fn run(target: &Target, rows: &[Row]) -> Tally {
    let mut groups = BTreeMap::<&Act, Vec<&Row>>::new();
    for row in rows {
        groups.entry(&row.act).or_default().push(row);
    }
    let mut tally = Tally::default();
    for (act, rows) in groups {
        let texts = match act.kind.as_str() {
            "atomic" => vec![atomic_of_tensor(act), atomic_of_shared(act)],
            _ => vec![exchange(act, rows.len())],
        };
        for text in texts {
            match answers(target, act, &rows, &text) {
                Ok(found) => judge(target, &rows, &found, &mut tally),
                Err(DeviceError::Unsupported { reason, .. }) => {
                    *tally.unsupported.entry(reason).or_default() += rows.len();
                }
                Err(error) => tally.wrong.push(format!(
                    "{} on {}: {error}\n{text}",
                    rows[0].describe(),
                    target.name()
                )),
            }
        }
    }
    tally
}

fn judge(target: &Target, rows: &[&Row], found: &[Vec<u64>], tally: &mut Tally) {
    for (row, found) in rows.iter().zip(found) {
        let to = row.act.to;
        let right = row.answers.iter().zip(found).all(|(&a, &b)| same(to, a, b));
        if right {
            tally.right += 1;
        } else {
            let words = |bits: &[u64]| {
                let words: Vec<String> = bits.iter().map(|&b| show(to, b)).collect();
                words.join(" ")
            };
            tally.wrong.push(format!(
                "{} on {}: got {}, expected {}",
                row.describe(),
                target.name(),
                words(found),
                words(&row.answers)
            ));
        }
    }
}

/// A workgroup a row, a thread an operand.
fn exchange(act: &Act, rows: usize) -> String {
    let Act {
        kind,
        name,
        from,
        to,
        argument,
        operands,
    } = act;
    let argument = argument.map_or(String::new(), |a| format!(", {a}u32"));
    format!(
        "kernel @together grid({rows}, 1, 1) workgroup({operands}, 1, 1) {{
  dim #n
  param @x: tensor<{from}, [#n], read, align 1>
  param @y: tensor<{to}, [#n], read_write, align 1>

  %x: {from} = load @x[global_id.0]
  %y: {to} = {kind} {name} %x{argument}
  store @y[global_id.0] = %y
}}
"
    )
}

/// A thread a row; the parameters are the operands in order (the cell is written) and the old
/// value.
fn atomic_head(act: &Act, shared: bool) -> String {
    let ty = act.from;
    let mut text = format!(
        "kernel @together grid(ceil_div(#n, 64), 1, 1) workgroup(64, 1, 1) {{
  dim #n
  param @cell: tensor<{ty}, [#n], read_write, align 1>
"
    );
    for name in ["value", "expected"].iter().take(act.operands - 1) {
        let _ = writeln!(text, "  param @{name}: tensor<{ty}, [#n], read, align 1>");
    }
    let _ = writeln!(
        text,
        "  param @old: tensor<{ty}, [#n], read_write, align 1>"
    );
    if shared {
        let _ = writeln!(text, "  shared &cell: [{ty}; 64]");
    }
    text.push_str("\n  %inside: bool = lt global_id.0, #n\n  if %inside {\n");
    for name in ["value", "expected"].iter().take(act.operands - 1) {
        let _ = writeln!(text, "    %{name}: {ty} = load @{name}[global_id.0]");
    }
    text
}

fn atomic_operands(act: &Act) -> &'static str {
    match act.operands {
        1 => "",
        2 => ", %value",
        _ => ", %value, %expected",
    }
}

fn atomic_of_tensor(act: &Act) -> String {
    format!(
        "{}    %old: {ty} = atomic {} @cell[global_id.0]{}
    store @old[global_id.0] = %old
  }}
}}
",
        atomic_head(act, false),
        act.name,
        atomic_operands(act),
        ty = act.from
    )
}

fn atomic_of_shared(act: &Act) -> String {
    format!(
        "{}    %before: {ty} = load @cell[global_id.0]
    store &cell[local_index] = %before
    %old: {ty} = atomic {} &cell[local_index]{}
    %after: {ty} = load &cell[local_index]
    store @old[global_id.0] = %old
    store @cell[global_id.0] = %after
  }}
}}
",
        atomic_head(act, true),
        act.name,
        atomic_operands(act),
        ty = act.from
    )
}

/// The answers of each row.
fn answers(
    target: &Target,
    act: &Act,
    rows: &[&Row],
    text: &str,
) -> Result<Vec<Vec<u64>>, DeviceError> {
    let kernel = parse_kernel(text).map_err(|error| DeviceError::Compile {
        kernel: "together".into(),
        backend: "textual IR",
        message: error.to_string(),
    })?;
    let device = &target.device;
    let tensor = |scalar: Scalar, words: &[u64]| {
        let size = scalar.bytes() as usize;
        let bytes: Vec<u8> = words
            .iter()
            .flat_map(|word| word.to_le_bytes()[..size].to_vec())
            .collect();
        Tensor::from_bytes(device, scalar, &[words.len() as u64], &bytes)
    };
    let atomic = act.kind == "atomic";
    let mut tensors = Vec::new();
    if atomic {
        for operand in 0..act.operands {
            let column: Vec<u64> = rows.iter().map(|row| row.operands[operand]).collect();
            tensors.push(tensor(act.from, &column)?);
        }
    } else {
        let all: Vec<u64> = rows.iter().flat_map(|row| row.operands.clone()).collect();
        tensors.push(tensor(act.from, &all)?);
    }
    let results = if atomic {
        rows.len()
    } else {
        rows.len() * act.operands
    };
    // No row has the sentinel as its answer.
    tensors.push(tensor(act.to, &vec![0xa5a5_a5a5_a5a5_a5a5; results])?);
    let arguments = tensors
        .iter()
        .map(|t| Argument::Tensor(t.tensor_arg()))
        .collect();
    launch_kernel(device, &kernel, arguments)?;
    device.synchronize()?;
    let read = |tensor: &Tensor| -> Result<Vec<u64>, DeviceError> {
        let size = tensor.scalar().bytes() as usize;
        let bytes = tensor.to_bytes()?;
        let words = bytes.chunks_exact(size).map(|chunk| {
            let mut word = [0u8; 8];
            word[..size].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        });
        Ok(words.collect())
    };
    let last = read(&tensors[tensors.len() - 1])?;
    if atomic {
        let cells = read(&tensors[0])?;
        return Ok(last
            .into_iter()
            .zip(cells)
            .map(|(a, b)| vec![a, b])
            .collect());
    }
    Ok(last
        .chunks_exact(act.operands)
        .map(<[u64]>::to_vec)
        .collect())
}
