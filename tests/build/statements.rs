//! Statements of a generated kernel.

use super::Ty::{Bool, F16, F32, I16, I32, I64, U8, U32, U64};
use super::{Variable, Writer};

impl Writer {
    pub(super) fn statement(&mut self) {
        self.statements += 1;
        let nests = self.depth < 4 && self.statements < 40;
        let top = self.depth == 1;
        match self.pick(26) {
            0..=3 => {
                let ty = self.choose(&[U32, I32, F32, Bool, U64, I64, U8, I16, F16]);
                let mutable = self.pick(2) == 0;
                self.declare(ty, mutable);
            }
            4..=8 => self.assign(),
            9 | 10 if nests => self.branch(),
            11 | 12 if nests => self.for_loop(),
            13 if nests => self.while_loop(),
            14 if nests => self.valued_loop(),
            15 if nests => self.match_statement(),
            16 => self.array(),
            17 => {
                let name = self.name("f");
                let held = self.expr(U32, 1);
                let kept = self.name("h");
                self.line(&format!("let {kept} = {held};"));
                let op = self.choose(&["^", "&", "|"]);
                self.line(&format!(
                    "let {name} = |p: u32| (p {op} {kept}).wrapping_add(p);"
                ));
                self.closures.push(name);
            }
            18 => self.structure(),
            19 if top && self.collective => self.exchange(),
            20 | 21 if top && self.collective => self.collective(),
            22 => self.atomic(),
            23 => self.vector(),
            24 if !self.collective && self.labels.is_empty() => {
                let condition = self.expr(Bool, 2);
                self.line(&format!("if {condition} && k == 77 {{"));
                self.line("    return;");
                self.line("}");
            }
            _ => self.assign(),
        }
    }

    pub(super) fn mutable(&mut self) -> Option<Variable> {
        let fitting: Vec<Variable> = self
            .variables
            .iter()
            .filter(|v| v.mutable)
            .cloned()
            .collect();
        if fitting.is_empty() {
            return None;
        }
        let index = self.pick(fitting.len());
        Some(fitting[index].clone())
    }

    pub(super) fn assign(&mut self) {
        let Some(variable) = self.mutable() else {
            return self.declare(U32, true);
        };
        let Variable { name, ty, .. } = variable;
        let value = self.expr(ty, 3);
        let op = match ty {
            Bool => self.choose(&["=", "=", "&=", "|=", "^="]),
            F32 | F16 => self.choose(&["=", "+=", "-=", "*="]),
            _ => self.choose(&["=", "=", "+=", "-=", "*=", "^=", "|=", "&="]),
        };
        self.line(&format!("{name} {op} {value};"));
    }

    pub(super) fn branch(&mut self) {
        let condition = self.expr(Bool, 2);
        self.line(&format!("if {condition} {{"));
        self.scoped(|w| w.body(3));
        match self.pick(3) {
            0 => {}
            1 => {
                self.line("} else {");
                self.scoped(|w| w.body(3));
            }
            _ => {
                let condition = self.expr(Bool, 1);
                self.line(&format!("}} else if {condition} {{"));
                self.scoped(|w| w.body(2));
                self.line("} else {");
                self.scoped(|w| w.body(2));
            }
        }
        self.line("}");
    }

    pub(super) fn jump(&mut self, label: &str) {
        let condition = self.expr(Bool, 2);
        let labels = self.labels.clone();
        let jump = self.choose(&["break", "continue"]);
        let target = match self.pick(3) {
            0 => String::new(),
            1 => format!(" {label}"),
            _ => format!(" {}", labels[self.pick(labels.len())]),
        };
        self.line(&format!("if {condition} {{"));
        self.line(&format!("    {jump}{target};"));
        self.line("}");
    }

    pub(super) fn for_loop(&mut self) {
        let ty = self.choose(&[U32, U32, I32, U64, U8]);
        let (index, label) = (self.name("j"), self.name("'l"));
        let end = self.pick(5);
        let unit = ty.name();
        let range = match self.pick(6) {
            0 => format!("0..{end}{unit}"),
            1 => format!("1..={end}{unit}"),
            2 => format!("(0..{}{unit}).step_by({})", end + 3, 1 + self.pick(3)),
            3 if ty == U32 => {
                let value = self.expr(U32, 1);
                format!("0..({value} & 3)")
            }
            4 if ty.is_signed() => format!("-{end}..2{unit}"),
            _ => format!("{}::MAX - {end}..{}::MAX", unit, unit),
        };
        self.line(&format!("{label}: for {index} in {range} {{"));
        self.labels.push(label.clone());
        self.scoped(|w| {
            w.variables.push(Variable {
                name: index,
                ty,
                mutable: false,
            });
            w.body(3);
            w.jump(&label);
            w.body(1);
        });
        self.labels.pop();
        self.line("}");
    }

    pub(super) fn while_loop(&mut self) {
        let (counter, label) = (self.name("w"), self.name("'l"));
        let condition = self.expr(Bool, 1);
        let turns = 1 + self.pick(4);
        self.line(&format!("let mut {counter} = 0u32;"));
        self.line(&format!(
            "{label}: while {counter} < {turns} && ({condition} || {counter} < 2) {{"
        ));
        self.labels.push(label.clone());
        self.scoped(|w| {
            w.line(&format!("{counter} += 1;"));
            w.body(3);
            w.jump(&label);
        });
        self.labels.pop();
        self.line("}");
    }

    pub(super) fn valued_loop(&mut self) {
        let (counter, result) = (self.name("w"), self.name("v"));
        let turns = self.pick(4);
        self.line(&format!("let mut {counter} = 0u32;"));
        self.line(&format!("let {result} = loop {{"));
        // Labels of outer loops stay out of a loop that has a value.
        let labels = std::mem::take(&mut self.labels);
        self.scoped(|w| {
            w.body(2);
            let (first, second) = (w.expr(U32, 2), w.expr(U32, 2));
            let condition = w.expr(Bool, 1);
            w.line(&format!("{counter} += 1;"));
            w.line(&format!("if {counter} > {turns} {{"));
            w.line(&format!("    break {first};"));
            w.line("}");
            w.line(&format!("if {condition} {{"));
            w.line(&format!("    break {second};"));
            w.line("}");
        });
        self.labels = labels;
        self.line("};");
        self.variables.push(Variable {
            name: result,
            ty: U32,
            mutable: false,
        });
    }

    pub(super) fn match_statement(&mut self) {
        let scrutinee = self.expr(U32, 1);
        self.line(&format!("match {scrutinee} % 12 {{"));
        for pattern in ["0", "1 | 4", "5..=8"] {
            self.depth += 1;
            self.line(&format!("{pattern} => {{"));
            self.scoped(|w| w.body(2));
            self.line("}");
            self.depth -= 1;
        }
        self.depth += 1;
        let guard = self.expr(Bool, 1);
        let bound = self.name("m");
        self.line(&format!("{bound} if {guard} && {bound} > 2 => {{"));
        self.scoped(|w| {
            w.variables.push(Variable {
                name: bound,
                ty: U32,
                mutable: false,
            });
            w.body(2);
        });
        self.line("}");
        self.line("_ => {");
        self.scoped(|w| w.body(1));
        self.line("}");
        self.depth -= 1;
        self.line("}");
    }

    pub(super) fn array(&mut self) {
        if self.arrays.is_empty() || self.pick(3) == 0 {
            let (name, value) = (self.name("t"), self.expr(U32, 2));
            if self.pick(2) == 0 {
                self.line(&format!("let mut {name} = [{value}; 4];"));
            } else {
                let others: Vec<String> = (0..3).map(|_| self.expr(U32, 1)).collect();
                self.line(&format!(
                    "let mut {name} = [{value}, {}];",
                    others.join(", ")
                ));
            }
            self.arrays.push(name);
            return;
        }
        let arrays = self.arrays.clone();
        let name = &arrays[self.pick(arrays.len())];
        let (at, value) = (self.expr(U32, 1), self.expr(U32, 2));
        let op = self.choose(&["=", "+=", "^="]);
        self.line(&format!("{name}[({at} & 3) as usize] {op} {value};"));
    }

    pub(super) fn structure(&mut self) {
        let name = self.name("s");
        let (a, b) = (self.expr(U32, 2), self.expr(F32, 1));
        if self.pick(2) == 0 || self.pairs.is_empty() {
            self.line(&format!("let {name} = Pair {{ a: {a}, b: {b} }};"));
        } else {
            let pairs = self.pairs.clone();
            let old = &pairs[self.pick(pairs.len())];
            self.line(&format!(
                "let {name} = paired(Pair {{ a: {old}.a, b: {old}.b }}, {a});"
            ));
        }
        self.pairs.push(name);
    }

    pub(super) fn exchange(&mut self) {
        let (value, name) = (self.expr(U32, 2), self.name("v"));
        let distance = self.pick(40);
        self.line(&format!("sh[local_index()] = {value};"));
        self.line("barrier();");
        self.line(&format!(
            "let {name} = sh[(local_index() + {distance}) % group_threads()];"
        ));
        self.line("barrier();");
        self.variables.push(Variable {
            name,
            ty: U32,
            mutable: false,
        });
    }

    pub(super) fn collective(&mut self) {
        let name = self.name("v");
        let ty = self.choose(&[U32, I32, F32, U64, F16]);
        let value = self.expr(ty, 2);
        let truth = self.expr(Bool, 2);
        let (ty, what) = match self.pick(16) {
            0 => (ty, format!("workgroup_sum({value})")),
            1 => (ty, format!("workgroup_max({value})")),
            2 => (ty, format!("workgroup_min({value})")),
            3 => (ty, format!("subgroup_sum({value})")),
            4 => (ty, format!("subgroup_max({value})")),
            5 => (ty, format!("workgroup_scan_sum({value})")),
            6 => (ty, format!("workgroup_scan_sum_exclusive({value})")),
            7 => (
                ty,
                format!("workgroup_broadcast({value}, k % group_threads())"),
            ),
            8 => (Bool, format!("workgroup_any({truth})")),
            9 => (Bool, format!("subgroup_all({truth})")),
            10 => (U64, format!("subgroup_ballot({truth})")),
            11 => (
                ty,
                format!("subgroup_shuffle_xor({value}, {}u32)", 1 + self.pick(5)),
            ),
            12 => (
                ty,
                format!("subgroup_shuffle_up({value}, {}u32)", self.pick(5)),
            ),
            13 => (
                ty,
                format!("subgroup_shuffle_down({value}, {}u32)", self.pick(9)),
            ),
            14 => (ty, format!("subgroup_broadcast({value}, 0)")),
            _ => (ty, format!("workgroup_product({value})")),
        };
        self.line(&format!("let {name} = {what};"));
        self.variables.push(Variable {
            name,
            ty,
            mutable: false,
        });
    }

    pub(super) fn atomic(&mut self) {
        if self.pick(2) == 0 {
            let ops = ["add", "xor", "max", "min", "or", "and"];
            let cell = self.pick(ops.len());
            let value = self.expr(U32, 2);
            self.line(&format!("cells.atomic_{}({cell}, {value});", ops[cell]));
            return;
        }
        let (value, name) = (self.expr(I32, 2), self.name("v"));
        let what = match self.pick(8) {
            0 => "mine.atomic_load(i)".into(),
            1 => {
                let expected = self.expr(I32, 1);
                format!("mine.atomic_compare_exchange(i, {expected}, {value})")
            }
            _ => {
                let op = self.choose(&["add", "min", "max", "and", "or", "xor", "exchange"]);
                format!("mine.atomic_{op}(i, {value})")
            }
        };
        self.line(&format!("let {name} = {what};"));
        self.variables.push(Variable {
            name,
            ty: I32,
            mutable: false,
        });
    }

    pub(super) fn vector(&mut self) {
        let (name, result) = (self.name("q"), self.name("v"));
        let ty = self.choose(&[F32, U32, I32]);
        let lanes: Vec<String> = (0..4).map(|_| self.expr(ty, 1)).collect();
        self.line(&format!("let mut {name} = vec4({});", lanes.join(", ")));
        let other = self.expr(ty, 1);
        match self.pick(4) {
            0 => self.line(&format!("{name} = {name} * {name} + splat4({other});")),
            1 => self.line(&format!("{name}[2] = {other};")),
            2 => self.line(&format!("{name} = {name}.max(splat4({other}));")),
            _ => self.line(&format!("{name} += {other};")),
        }
        let lane = self.pick(4);
        let what = match self.pick(5) {
            0 => format!("{name}.sum()"),
            1 => format!("{name}.max_lane()"),
            2 if ty == F32 => format!("{name}.dot({name})"),
            3 => format!("{name}.map(|p| p + {name}[0])[{lane}]"),
            _ => format!("{name}[{lane}]"),
        };
        self.line(&format!("let {result} = {what};"));
        self.variables.push(Variable {
            name: result,
            ty,
            mutable: false,
        });
    }
}
