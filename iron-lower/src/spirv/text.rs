//! The readable form of a module: what goldens hold and reviewers read.
//!
//! Ids are named: by the author where `OpName` says so, types and constants by what they are,
//! and the rest by number in order of appearance. A change of one statement therefore changes
//! few lines.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use iron_ir::contract::Fact;
use iron_ir::kernel::{Access, Kernel, ParamKind, TensorLayout};
use iron_ir::layout::BlockLayout;
use rspirv::binary::Disassemble;
use rspirv::dr::{Instruction, Module, Operand, load_words};
use rspirv::spirv::{Op, Word};

/// The contract in a few lines, kept in the module as `OpModuleProcessed`.
pub(super) fn contract_header(kernel: &Kernel, profile: &str) -> Vec<String> {
    let mut lines = vec![format!("kernel {}, profile {profile}", kernel.full_name())];
    lines.extend(kernel.doc.lines().map(|l| format!("  {}", l.trim())));
    let grid: Vec<String> = kernel
        .contract
        .grid
        .iter()
        .map(|e| e.display(kernel).to_string())
        .collect();
    let [x, y, z] = kernel.contract.workgroup;
    lines.push(format!(
        "grid [{}], workgroup [{x}, {y}, {z}]",
        grid.join(", ")
    ));
    let facts: Vec<String> = kernel
        .contract
        .requires
        .iter()
        .map(|f: &Fact| f.display(kernel).to_string())
        .collect();
    if !facts.is_empty() {
        lines.push(format!("requires {}", facts.join(", ")));
    }
    for (_, param) in kernel.params.iter() {
        lines.push(match &param.kind {
            ParamKind::Scalar(scalar) => format!("{}: {scalar}", param.name),
            ParamKind::Tensor(tensor) => {
                let shape: Vec<String> = tensor
                    .shape
                    .iter()
                    .map(|e| e.display(kernel).to_string())
                    .collect();
                let reference = match tensor.access {
                    Access::Read => "&",
                    Access::ReadWrite => "&mut ",
                };
                let kind = match tensor.layout {
                    TensorLayout::RowMajor => "Tensor",
                    TensorLayout::Strided => "StridedTensor",
                };
                let mut shape = shape.join(", ");
                if tensor.shape.len() == 1 {
                    shape.push(',');
                }
                let scalar = tensor.scalar;
                format!("{}: {reference}{kind}<{scalar}, ({shape})>", param.name)
            }
        });
    }
    let shared = kernel.shared_bytes();
    lines.push(format!(
        "parameter block {} bytes, shared memory {shared} bytes",
        BlockLayout::of(kernel).bytes
    ));
    lines
}

/// The readable form of a module. Words that are not a module give one line that says so.
pub fn disassemble(words: &[u32]) -> String {
    match load_words(words) {
        Ok(module) => Printer::new(&module).print(&module),
        Err(error) => format!("; not a SPIR-V module: {error}\n"),
    }
}

#[derive(Default)]
struct Printer {
    names: HashMap<Word, String>,
    taken: HashSet<String>,
    strings: HashMap<Word, String>,
    types: HashMap<Word, Instruction>,
    numbered: u32,
}

impl Printer {
    fn new(module: &Module) -> Printer {
        let mut printer = Printer::default();
        for inst in &module.debug_string_source {
            if let (Op::String, Some(id), [Operand::LiteralString(text)]) =
                (inst.class.opcode, inst.result_id, &inst.operands[..])
            {
                printer.strings.insert(id, text.clone());
            }
        }
        for inst in &module.ext_inst_imports {
            if let Some(id) = inst.result_id {
                printer.claim(id, "glsl");
            }
        }
        for inst in &module.types_global_values {
            if let Some(id) = inst.result_id {
                if let Some(name) = printer.type_or_constant_name(inst) {
                    printer.claim(id, &name);
                }
                printer.types.insert(id, inst.clone());
            }
        }
        for inst in &module.debug_names {
            if let (Op::Name, [Operand::IdRef(id), Operand::LiteralString(name)]) =
                (inst.class.opcode, &inst.operands[..])
            {
                printer.claim(*id, name);
            }
        }
        printer
    }

    /// Gives an id a name that no other has. The first claim counts.
    fn claim(&mut self, id: Word, wanted: &str) {
        if self.names.contains_key(&id) {
            return;
        }
        let clean: String = wanted
            .chars()
            .map(|c| {
                if c.is_ascii_alphanumeric() || c == '_' {
                    c
                } else {
                    '_'
                }
            })
            .collect();
        let mut name = clean.clone();
        let mut n = 1;
        while !self.taken.insert(name.clone()) {
            n += 1;
            name = format!("{clean}_{n}");
        }
        self.names.insert(id, name);
    }

    fn type_or_constant_name(&self, inst: &Instruction) -> Option<String> {
        let name = |id: &Word| self.names.get(id).cloned();
        Some(match (inst.class.opcode, &inst.operands[..]) {
            (Op::TypeVoid, _) => "void".into(),
            (Op::TypeBool, _) => "bool".into(),
            (Op::TypeInt, [Operand::LiteralBit32(bits), ..]) => format!("u{bits}"),
            (Op::TypeFloat, [Operand::LiteralBit32(bits)]) => format!("f{bits}"),
            (Op::TypeFloat, _) => "bf16".into(),
            (Op::TypeVector, [Operand::IdRef(id), Operand::LiteralBit32(n)]) => {
                format!("{}x{n}", name(id)?)
            }
            (Op::TypePointer, [Operand::StorageClass(class), Operand::IdRef(id)]) => {
                format!("ptr_{class:?}_{}", name(id)?)
            }
            (Op::TypeArray, [Operand::IdRef(id), Operand::IdRef(len)]) => {
                format!("array_{}_{}", name(id)?, name(len)?)
            }
            (Op::TypeRuntimeArray, [Operand::IdRef(id)]) => format!("array_{}", name(id)?),
            (Op::TypeFunction, _) => "entry_type".into(),
            (Op::ConstantTrue, _) => "true".into(),
            (Op::ConstantFalse, _) => "false".into(),
            (Op::Constant, [literal]) => {
                let ty = inst.result_type?;
                let value = match *literal {
                    Operand::LiteralBit32(value) => u64::from(value),
                    Operand::LiteralBit64(value) => value,
                    _ => return None,
                };
                format!("{}_{}", name(&ty)?, self.number(ty, value))
            }
            (Op::ConstantComposite, [Operand::IdRef(first), ..]) => {
                format!("{}_{}", name(&inst.result_type?)?, name(first)?)
            }
            _ => return None,
        })
    }

    /// A constant's value: decimal integers, floats where they are short, else bits.
    fn number(&self, ty: Word, value: u64) -> String {
        let class = self
            .types
            .get(&ty)
            .map(|t| (t.class.opcode, t.operands.first()));
        let float = match class {
            Some((Op::TypeFloat, Some(Operand::LiteralBit32(32)))) => {
                f64::from(f32::from_bits(value as u32))
            }
            Some((Op::TypeFloat, Some(Operand::LiteralBit32(64)))) => f64::from_bits(value),
            Some((Op::TypeFloat, _)) => f64::from(half::f16::from_bits(value as u16).to_f32()),
            _ => return value.to_string(),
        };
        let text = match class {
            Some((_, Some(Operand::LiteralBit32(64)))) => format!("{float}"),
            _ => format!("{}", float as f32),
        };
        if text.len() <= 12 {
            text.replace('-', "n").replace('.', "p")
        } else {
            format!("{value:x}")
        }
    }

    fn name_of(&mut self, id: Word) -> String {
        if let Some(name) = self.names.get(&id) {
            return name.clone();
        }
        let number = self.numbered;
        self.numbered += 1;
        self.claim(id, &number.to_string());
        self.names[&id].clone()
    }

    fn print(mut self, module: &Module) -> String {
        let mut text = String::new();
        for inst in &module.debug_module_processed {
            if let [Operand::LiteralString(line)] = &inst.operands[..] {
                let _ = writeln!(text, "; {line}");
            }
        }
        if let Some(header) = &module.header {
            let (major, minor) = header.version();
            let _ = writeln!(text, "; SPIR-V {major}.{minor}");
        }
        for inst in module
            .capabilities
            .iter()
            .chain(&module.extensions)
            .chain(&module.ext_inst_imports)
            .chain(&module.memory_model)
            .chain(&module.entry_points)
            .chain(&module.execution_modes)
        {
            self.line(&mut text, inst);
        }
        text.push('\n');
        // Names show where they are used; members and positions are worth a line.
        for inst in &module.debug_names {
            if inst.class.opcode == Op::MemberName {
                self.line(&mut text, inst);
            }
        }
        // A mark on an arithmetic result is shown at the result.
        let mut exact = HashSet::new();
        for inst in &module.annotations {
            match &inst.operands[..] {
                [Operand::IdRef(id), Operand::Decoration(d)]
                    if *d == rspirv::spirv::Decoration::NoContraction =>
                {
                    exact.insert(*id);
                }
                _ => self.line(&mut text, inst),
            }
        }
        text.push('\n');
        for inst in &module.types_global_values {
            self.line(&mut text, inst);
        }
        for function in &module.functions {
            text.push('\n');
            for inst in function.def.iter().chain(&function.parameters) {
                self.line(&mut text, inst);
            }
            for block in &function.blocks {
                for inst in block.label.iter() {
                    self.line(&mut text, inst);
                }
                for inst in &block.instructions {
                    text.push_str("  ");
                    let is_exact = inst.result_id.is_some_and(|id| exact.contains(&id));
                    self.line(&mut text, inst);
                    if is_exact {
                        text.truncate(text.trim_end().len());
                        text.push_str(" ; NoContraction\n");
                    }
                }
            }
            for inst in function.end.iter() {
                self.line(&mut text, inst);
            }
        }
        text
    }

    fn line(&mut self, text: &mut String, inst: &Instruction) {
        if inst.class.opcode == Op::Line {
            if let [Operand::IdRef(file), Operand::LiteralBit32(line), ..] = inst.operands[..] {
                let file = self.strings.get(&file).cloned().unwrap_or_default();
                let _ = writeln!(text, "; {file}:{line}");
            }
            return;
        }
        if let Some(id) = inst.result_id {
            let _ = write!(text, "%{} = ", self.name_of(id));
        }
        let _ = write!(text, "Op{}", inst.class.opname);
        if let Some(ty) = inst.result_type {
            let _ = write!(text, " %{}", self.name_of(ty));
        }
        let constant = inst.class.opcode == Op::Constant;
        for operand in &inst.operands {
            text.push(' ');
            match operand {
                Operand::IdRef(id) | Operand::IdScope(id) | Operand::IdMemorySemantics(id) => {
                    let _ = write!(text, "%{}", self.name_of(*id));
                }
                Operand::LiteralBit32(value) if constant => {
                    let number = self.number(inst.result_type.unwrap_or(0), u64::from(*value));
                    let _ = write!(text, "{value} ; {number}");
                }
                Operand::LiteralExtInstInteger(number) => {
                    match rspirv::spirv::GlslStd450Op::from_u32(*number) {
                        Some(op) => {
                            let _ = write!(text, "{op:?}");
                        }
                        None => {
                            let _ = write!(text, "{number}");
                        }
                    }
                }
                other => text.push_str(&other.disassemble()),
            }
        }
        text.push('\n');
    }
}
