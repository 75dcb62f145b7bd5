//! Floats that stop being finite, on request ([`super::ReferenceOptions::finite`]).
//!
//! A value *appears* where an operation of finite operands gives an infinity or NaN, or where infinite
//! constants of the kernel make a NaN (a row that is masked whole: `-inf - -inf`). Infinities and NaN
//! that were loaded, or came as scalars, went in; what is made of them is no fault. A fault is reported
//! where the value is stored; one that a selection drops is none.

use std::collections::HashMap;
use std::rc::Rc;

use iron_ir::entity::{Handle, Tile};
use iron_ir::kernel::{ParamKind, Span};
use iron_ir::{Class, Scalar};

use super::machine::Machine;
use super::program::{Inst, Pc, Row, Source};
use super::report::{Fault, Rule};

/// Where a value that is not finite comes from; a constant comes from nowhere.
#[derive(Clone)]
enum Origin {
    WentIn,
    Appeared(Rc<Appearance>),
}

struct Appearance {
    site: Pc,
    /// The operation with its operands and result.
    what: String,
}

/// Where the values at hand come from that are not finite, by row and thread.
#[derive(Default)]
pub(super) struct Origins {
    registers: HashMap<(Row, usize), Origin>,
    locals: HashMap<(Row, usize), Origin>,
}

/// What a float is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Finite,
    Infinite,
    Nan,
}

fn kind_of(scalar: Scalar, bits: u64) -> Kind {
    let (exponent, mantissa) = match scalar {
        Scalar::F16 => (0x7c00, 0x03ff),
        Scalar::BF16 => (0x7f80, 0x007f),
        Scalar::F32 => (0x7f80_0000, 0x007f_ffff),
        Scalar::F64 => (0x7ff0 << 48, (1 << 52) - 1),
        Scalar::F8E5M2 => (0x7c, 0x03),
        // No infinity: all ones below the sign is NaN.
        Scalar::F8E4M3 if bits & 0x7f == 0x7f => return Kind::Nan,
        Scalar::E8M0 if bits == 0xff => return Kind::Nan,
        _ => return Kind::Finite,
    };
    match (bits & exponent == exponent, bits & mantissa != 0) {
        (false, _) => Kind::Finite,
        (true, false) => Kind::Infinite,
        (true, true) => Kind::Nan,
    }
}

/// Whether a result appeared, of operands that come from nowhere.
fn appears(result: Kind, operands: impl IntoIterator<Item = Kind>) -> bool {
    let (mut infinite, mut nan) = (false, false);
    for operand in operands {
        infinite |= operand == Kind::Infinite;
        nan |= operand == Kind::Nan;
    }
    match result {
        Kind::Finite => false,
        Kind::Infinite => !infinite && !nan,
        Kind::Nan => !nan,
    }
}

impl Machine<'_> {
    /// At the start of a workgroup: only scalar arguments can be anything but finite.
    pub(super) fn start_tracing(&mut self) {
        self.origins = Origins::default();
        if !self.finite {
            return;
        }
        let program = self.program;
        for &(row, source) in &program.sources {
            let Source::Scalar(param) = source else {
                continue;
            };
            let bits = self.regs[self.at(row)];
            let scalar = match self.kernel.params[param].kind {
                ParamKind::Scalar(scalar) => scalar,
                ParamKind::Tensor(_) => continue,
            };
            if kind_of(scalar, bits) != Kind::Finite {
                for t in 0..self.threads as usize {
                    self.origins.registers.insert((row, t), Origin::WentIn);
                }
            }
        }
    }

    /// Follows an instruction that has just run.
    pub(super) fn trace(&mut self, inst: &Inst, site: Pc) {
        match *inst {
            Inst::Unary {
                scalar,
                dst,
                a,
                lanes,
                ..
            } => {
                self.trace_lanes(scalar, scalar, dst, &[a], lanes, site);
            }
            Inst::Binary {
                scalar,
                dst,
                a,
                b,
                lanes,
                ..
            } => {
                self.trace_lanes(scalar, scalar, dst, &[a, b], lanes, site);
            }
            Inst::Fma {
                scalar,
                dst,
                a,
                b,
                c,
                lanes,
            } => {
                self.trace_lanes(scalar, scalar, dst, &[a, b, c], lanes, site);
            }
            Inst::Convert { from, to, dst, a } if from.lanes == to.lanes => {
                self.trace_lanes(from.scalar, to.scalar, dst, &[a], to.lanes, site);
            }
            // Bits and codes of packed types are taken as they are.
            Inst::Convert { to, dst, .. } | Inst::Bitcast { to, dst, .. } => {
                self.went_in(to.scalar, dst, to.lanes);
            }
            Inst::Load { dst, ty, .. } => self.went_in(ty.scalar, dst, ty.lanes),
            Inst::Atomic { scalar, dst, .. } => self.went_in(scalar, dst, 1),
            Inst::Map {
                ref elements,
                ref from,
                ..
            } => {
                for (&row, &tile) in elements.iter().zip(from) {
                    self.went_in(self.tiles[tile.index()].scalar, row, 1);
                }
            }
            Inst::Select {
                dst,
                condition,
                condition_lanes,
                a,
                b,
                lanes,
            } => {
                let mask = self.mask.clone();
                for lane in 0..u32::from(lanes) {
                    let c = self.at(condition + if condition_lanes > 1 { lane } else { 0 });
                    mask.for_each(|t| {
                        let chosen = if self.regs[c + t] & 1 == 1 { a } else { b };
                        self.carry(chosen + lane, dst + lane, t);
                    });
                }
            }
            Inst::Copy { dst, ref sources } => {
                let mask = self.mask.clone();
                for (lane, &source) in sources.iter().enumerate() {
                    mask.for_each(|t| self.carry(source, dst + lane as u32, t));
                }
            }
            Inst::Get { local, dst, lanes } => {
                let row = self.program.local_rows[local.index()];
                let mask = self.mask.clone();
                for lane in 0..u32::from(lanes) {
                    mask.for_each(|t| {
                        let from = self.origins.locals.get(&(row + lane, t)).cloned();
                        put(&mut self.origins.registers, (dst + lane, t), from);
                    });
                }
            }
            Inst::Set { local, src, lanes } => {
                let row = self.program.local_rows[local.index()];
                let mask = self.mask.clone();
                for lane in 0..u32::from(lanes) {
                    mask.for_each(|t| {
                        let from = self.origins.registers.get(&(src + lane, t)).cloned();
                        put(&mut self.origins.locals, (row + lane, t), from);
                    });
                }
            }
            Inst::Group {
                scalar,
                dst,
                a,
                lanes,
                ..
            }
            | Inst::Subgroup {
                scalar,
                dst,
                a,
                lanes,
                ..
            } if scalar.is_float() => {
                self.trace_collective(scalar, dst, a, lanes, site);
            }
            Inst::Mma {
                scalar,
                dst,
                a: [low, high],
                b,
                sum,
            } => {
                self.trace_mma(scalar, dst, [low, high, b], sum, site);
            }
            _ => {}
        }
    }

    /// The value that a store is about to write.
    pub(super) fn check_finite(
        &self,
        scalar: Scalar,
        row: Row,
        t: usize,
        into: impl Fn() -> String,
        span: Span,
    ) -> Result<(), Fault> {
        let Some(Origin::Appeared(appearance)) = self.origins.registers.get(&(row, t)) else {
            return Ok(());
        };
        let bits = self.regs[self.at(row) + t];
        if kind_of(scalar, bits) == Kind::Finite {
            return Ok(());
        }
        let message = format!(
            "a value that is not finite appears: {}; {} becomes {}",
            appearance.what,
            into(),
            show(scalar, bits),
        );
        let at = self.program.spans[appearance.site as usize];
        let fault = self.fault(Rule::NonFinite, at, t, message);
        Err(fault.with("the store", span))
    }

    /// The result of a tile operation, element by element beside what it was made of.
    pub(super) fn check_tile_finite(
        &self,
        tile: Tile,
        operands_are_finite: bool,
        what: &str,
        span: Span,
    ) -> Result<(), Fault> {
        let memory = &self.tiles[tile.index()];
        let wrong = |&bits: &u64| kind_of(memory.scalar, bits) != Kind::Finite;
        match memory.bits.iter().position(wrong) {
            Some(at) if operands_are_finite => {
                let (r, c) = (at as u32 / memory.columns, at as u32 % memory.columns);
                let message = format!(
                    "a value that is not finite appears: this {what} of finite elements gives {} at \
                     row {r}, column {c} of `{}`",
                    show(memory.scalar, memory.bits[at]),
                    self.kernel.tiles[tile].name
                );
                Err(Fault::new(Rule::NonFinite, span, message))
            }
            _ => Ok(()),
        }
    }

    /// A number before and after it was rounded to the type of a store.
    pub(super) fn check_rounding(
        &self,
        [(from, bits), (to, rounded)]: [(Scalar, u64); 2],
        span: Span,
    ) -> Result<(), Fault> {
        if !appears(kind_of(to, rounded), [kind_of(from, bits)]) {
            return Ok(());
        }
        let message = format!(
            "a value that is not finite appears: rounding {} to {to} gives {}",
            show(from, bits),
            show(to, rounded)
        );
        Err(Fault::new(Rule::NonFinite, span, message))
    }

    /// Whether every element of a tile is finite.
    pub(super) fn tile_is_finite(&self, tile: Tile) -> bool {
        let memory = &self.tiles[tile.index()];
        let finite = |&bits: &u64| kind_of(memory.scalar, bits) == Kind::Finite;
        memory.bits.iter().all(finite)
    }

    fn trace_lanes(
        &mut self,
        from: Scalar,
        to: Scalar,
        dst: Row,
        sources: &[Row],
        lanes: u8,
        site: Pc,
    ) {
        if !to.is_float() && to.class() != Class::Packed {
            return;
        }
        let mask = self.mask.clone();
        for lane in 0..u32::from(lanes) {
            mask.for_each(|t| {
                let operands: Vec<_> = sources.iter().map(|&row| (row + lane, t)).collect();
                self.derive(from, to, (dst + lane, t), &operands, site);
            });
        }
    }

    fn trace_collective(&mut self, scalar: Scalar, dst: Row, a: Row, lanes: u8, site: Pc) {
        let threads = self.threads as usize;
        for lane in 0..u32::from(lanes) {
            let operands: Vec<_> = (0..threads).map(|t| (a + lane, t)).collect();
            for t in 0..threads {
                self.derive(scalar, scalar, (dst + lane, t), &operands, site);
            }
        }
    }

    /// Sums of a matrix product come from its factors where one of those is not finite.
    fn trace_mma(&mut self, scalar: Scalar, dst: Row, factors: [Row; 3], sum: Row, site: Pc) {
        let threads = self.threads as usize;
        for unit in (0..threads).step_by(32) {
            let cells = (unit..unit + 32).flat_map(|t| {
                let rows = factors.into_iter().flat_map(|row| row..row + 4);
                rows.map(move |row| (row, t))
            });
            let odd = |&(row, t): &(Row, usize)| {
                kind_of(scalar, self.regs[self.at(row) + t]) != Kind::Finite
            };
            let from = cells.filter(odd).find_map(|cell| {
                let known = self.origins.registers.get(&cell).cloned();
                known.or(Some(Origin::WentIn))
            });
            for (lane, t) in (0..4).flat_map(|lane| (unit..unit + 32).map(move |t| (lane, t))) {
                let result = (dst + lane, t);
                let is_finite =
                    kind_of(Scalar::F32, self.regs[self.at(result.0) + t]) == Kind::Finite;
                match &from {
                    Some(origin) if !is_finite => {
                        put(&mut self.origins.registers, result, Some(origin.clone()));
                    }
                    _ => self.derive(Scalar::F32, Scalar::F32, result, &[(sum + lane, t)], site),
                }
            }
        }
    }

    /// Where a result comes from, by its operands.
    fn derive(
        &mut self,
        from: Scalar,
        to: Scalar,
        result: (Row, usize),
        operands: &[(Row, usize)],
        site: Pc,
    ) {
        let held = |(row, t): (Row, usize)| self.regs[self.at(row) + t];
        let bits = held(result);
        let kind = kind_of(to, bits);
        let origin = if kind == Kind::Finite {
            None
        } else {
            let mut known = operands
                .iter()
                .filter_map(|o| self.origins.registers.get(o));
            let first = known.next().cloned();
            let went_in = known.any(|o| matches!(o, Origin::WentIn));
            let kinds = operands.iter().map(|&o| kind_of(from, held(o)));
            match first {
                _ if went_in => Some(Origin::WentIn),
                Some(first) => Some(first),
                None if appears(kind, kinds) => {
                    let what = self.operation(&self.program.code[site as usize], result.1);
                    let what = format!("{what} gives {}", show(to, bits));
                    Some(Origin::Appeared(Rc::new(Appearance { site, what })))
                }
                None => None,
            }
        };
        put(&mut self.origins.registers, result, origin);
    }

    fn carry(&mut self, from: Row, to: Row, t: usize) {
        let origin = self.origins.registers.get(&(from, t)).cloned();
        put(&mut self.origins.registers, (to, t), origin);
    }

    /// Whatever is not finite in these rows comes from outside.
    fn went_in(&mut self, scalar: Scalar, dst: Row, lanes: u8) {
        let mask = self.mask.clone();
        for lane in 0..u32::from(lanes) {
            let row = dst + lane;
            let at = self.at(row);
            mask.for_each(|t| {
                let is_finite = kind_of(scalar, self.regs[at + t]) == Kind::Finite;
                let origin = (!is_finite).then_some(Origin::WentIn);
                put(&mut self.origins.registers, (row, t), origin);
            });
        }
    }

    /// An operation with the operands that it had in thread `t`.
    fn operation(&self, inst: &Inst, t: usize) -> String {
        let value = |scalar: Scalar, row: Row| show(scalar, self.regs[self.at(row) + t]);
        match *inst {
            Inst::Unary {
                op,
                scalar,
                a,
                lanes: 1,
                ..
            } => {
                format!("`{}` of {}", op.name(), value(scalar, a))
            }
            Inst::Binary {
                op,
                scalar,
                a,
                b,
                lanes: 1,
                ..
            } => {
                format!(
                    "`{}` of {} and {}",
                    op.name(),
                    value(scalar, a),
                    value(scalar, b)
                )
            }
            Inst::Fma {
                scalar,
                a,
                b,
                c,
                lanes: 1,
                ..
            } => format!(
                "`fma` of {}, {} and {}",
                value(scalar, a),
                value(scalar, b),
                value(scalar, c)
            ),
            Inst::Convert { from, to, a, .. } if from.lanes == 1 => {
                format!(
                    "the conversion of {} to {}",
                    value(from.scalar, a),
                    to.scalar
                )
            }
            Inst::Group { .. } => "a workgroup operation".into(),
            Inst::Subgroup { .. } => "a subgroup operation".into(),
            Inst::Mma { .. } => "a matrix product".into(),
            _ => "an operation on a vector".into(),
        }
    }
}

fn put(map: &mut HashMap<(Row, usize), Origin>, key: (Row, usize), origin: Option<Origin>) {
    match origin {
        Some(origin) => {
            map.insert(key, origin);
        }
        None if map.is_empty() => {}
        None => {
            map.remove(&key);
        }
    }
}

/// A number as people read it.
fn show(scalar: Scalar, bits: u64) -> String {
    let wide = match super::scalar::convert(scalar, Scalar::F32, bits) {
        _ if scalar == Scalar::F64 => f64::from_bits(bits),
        Some(single) => f64::from(f32::from_bits(single as u32)),
        None => return format!("{bits:#x}"),
    };
    format!("{wide}")
}
