//! Values without effect, for every active thread at once.

use iron_ir::entity::{Handle, Local};
use iron_ir::kernel::Span;
use iron_ir::op::{BinaryOp, GroupOp, SubgroupOp, UnaryOp};
use iron_ir::{Class, Const, Scalar, Type, fold};

use super::machine::Machine;
use super::mask::Mask;
use super::program::{Inst, Row};
use super::report::{Fault, Rule};
use super::scalar;

/// Sets row `dst` from row `a`.
#[inline]
fn map1(regs: &mut [u64], mask: &Mask, dst: usize, a: usize, f: impl Fn(u64) -> u64) {
    mask.for_each(|t| regs[dst + t] = f(regs[a + t]));
}

/// Sets row `dst` from rows `a` and `b`.
#[inline]
fn map2(
    regs: &mut [u64],
    mask: &Mask,
    dst: usize,
    [a, b]: [usize; 2],
    f: impl Fn(u64, u64) -> u64,
) {
    mask.for_each(|t| regs[dst + t] = f(regs[a + t], regs[b + t]));
}

fn f(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

fn b(x: f32) -> u64 {
    u64::from(x.to_bits())
}

impl Machine<'_> {
    /// Runs one instruction that only computes.
    pub(super) fn compute(&mut self, inst: &Inst, span: Span) -> Result<(), Fault> {
        match *inst {
            Inst::Unary {
                op,
                scalar,
                dst,
                a,
                lanes,
            } => {
                let mut known = true;
                for lane in 0..u32::from(lanes) {
                    let (dst, a) = (self.at(dst + lane), self.at(a + lane));
                    let (regs, mask) = (&mut self.regs, &self.mask);
                    match (op, scalar) {
                        (UnaryOp::Not, Scalar::Bool) => map1(regs, mask, dst, a, |x| x ^ 1),
                        (UnaryOp::Neg, Scalar::F32) => {
                            map1(regs, mask, dst, a, |x| x ^ 0x8000_0000)
                        }
                        _ => mask.for_each(|t| match scalar::unary(op, scalar, regs[a + t]) {
                            Some(x) => regs[dst + t] = x,
                            None => known = false,
                        }),
                    }
                }
                self.known(known, span, || format!("`{}` of {scalar}", op.name()))
            }
            Inst::Binary {
                op,
                scalar,
                dst,
                a,
                b: rhs,
                lanes,
                ..
            } => {
                let mut known = true;
                for lane in 0..u32::from(lanes) {
                    let dst = self.at(dst + lane);
                    let ab = [self.at(a + lane), self.at(rhs + lane)];
                    let (regs, mask) = (&mut self.regs, &self.mask);
                    match (op, scalar) {
                        (BinaryOp::Add, Scalar::F32) => {
                            map2(regs, mask, dst, ab, |x, y| b(f(x) + f(y)))
                        }
                        (BinaryOp::Sub, Scalar::F32) => {
                            map2(regs, mask, dst, ab, |x, y| b(f(x) - f(y)))
                        }
                        (BinaryOp::Mul, Scalar::F32) => {
                            map2(regs, mask, dst, ab, |x, y| b(f(x) * f(y)))
                        }
                        (BinaryOp::Add, Scalar::U32) => {
                            map2(regs, mask, dst, ab, |x, y| x.wrapping_add(y) & 0xFFFF_FFFF);
                        }
                        (BinaryOp::Sub, Scalar::U32) => {
                            map2(regs, mask, dst, ab, |x, y| x.wrapping_sub(y) & 0xFFFF_FFFF);
                        }
                        (BinaryOp::Mul, Scalar::U32) => {
                            map2(regs, mask, dst, ab, |x, y| x.wrapping_mul(y) & 0xFFFF_FFFF);
                        }
                        (BinaryOp::Add, Scalar::U64) => {
                            map2(regs, mask, dst, ab, u64::wrapping_add)
                        }
                        (BinaryOp::Mul, Scalar::U64) => {
                            map2(regs, mask, dst, ab, u64::wrapping_mul)
                        }
                        _ => mask.for_each(|t| {
                            match scalar::binary(op, scalar, regs[ab[0] + t], regs[ab[1] + t]) {
                                Some(x) => regs[dst + t] = x,
                                None => known = false,
                            }
                        }),
                    }
                }
                self.known(known, span, || format!("`{}` of {scalar}", op.name()))
            }
            Inst::Compare {
                op,
                scalar,
                dst,
                a,
                b,
                lanes,
            } => {
                let mut known = true;
                for lane in 0..u32::from(lanes) {
                    let (dst, a, b) = (self.at(dst + lane), self.at(a + lane), self.at(b + lane));
                    let (regs, mask) = (&mut self.regs, &self.mask);
                    mask.for_each(|t| {
                        match scalar::compare(op, scalar, regs[a + t], regs[b + t]) {
                            Some(x) => regs[dst + t] = u64::from(x),
                            None => known = false,
                        }
                    });
                }
                self.known(known, span, || format!("`{}` of {scalar}", op.name()))
            }
            Inst::Select {
                dst,
                condition,
                condition_lanes,
                a,
                b,
                lanes,
            } => {
                for lane in 0..u32::from(lanes) {
                    let c = self.at(condition + if condition_lanes > 1 { lane } else { 0 });
                    let (dst, a, b) = (self.at(dst + lane), self.at(a + lane), self.at(b + lane));
                    let (regs, mask) = (&mut self.regs, &self.mask);
                    mask.for_each(|t| {
                        regs[dst + t] = if regs[c + t] & 1 == 1 {
                            regs[a + t]
                        } else {
                            regs[b + t]
                        };
                    });
                }
                Ok(())
            }
            Inst::Fma {
                scalar,
                dst,
                a,
                b: rhs,
                c,
                lanes,
            } => {
                let mut known = true;
                for lane in 0..u32::from(lanes) {
                    let (dst, a) = (self.at(dst + lane), self.at(a + lane));
                    let (rhs, c) = (self.at(rhs + lane), self.at(c + lane));
                    let (regs, mask) = (&mut self.regs, &self.mask);
                    if scalar == Scalar::F32 {
                        mask.for_each(|t| {
                            regs[dst + t] =
                                b(f(regs[a + t]).mul_add(f(regs[rhs + t]), f(regs[c + t])));
                        });
                    } else {
                        mask.for_each(|t| {
                            match scalar::fma(scalar, regs[a + t], regs[rhs + t], regs[c + t]) {
                                Some(x) => regs[dst + t] = x,
                                None => known = false,
                            }
                        });
                    }
                }
                self.known(known, span, || format!("`fma` of {scalar}"))
            }
            Inst::Convert { from, to, dst, a } => self.convert(from, to, dst, a, span),
            Inst::Bitcast { from, to, dst, a } => {
                self.bitcast(from, to, dst, a);
                Ok(())
            }
            Inst::Copy { dst, ref sources } => {
                for (lane, &source) in sources.iter().enumerate() {
                    let (dst, source) = (self.at(dst + lane as u32), self.at(source));
                    map1(&mut self.regs, &self.mask, dst, source, |x| x);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn known(&self, known: bool, span: Span, what: impl Fn() -> String) -> Result<(), Fault> {
        if known {
            return Ok(());
        }
        let message = format!("there is no {}", what());
        Err(Fault::new(Rule::NoOperation, span, message))
    }

    fn convert(&mut self, from: Type, to: Type, dst: Row, a: Row, span: Span) -> Result<(), Fault> {
        let mut known = true;
        let packed = from.scalar.class() == Class::Packed || to.scalar.class() == Class::Packed;
        if packed || from.lanes != to.lanes {
            let (dst, a, w) = (self.at(dst), self.at(a), self.threads as usize);
            let mut input = Vec::new();
            let regs = &mut self.regs;
            self.mask.for_each(|t| {
                input.clear();
                input.extend((0..usize::from(from.lanes)).map(|lane| regs[a + lane * w + t]));
                match scalar::convert_lanes(from, to, &input) {
                    Some(out) => {
                        for (lane, x) in out.into_iter().enumerate() {
                            regs[dst + lane * w + t] = x;
                        }
                    }
                    None => known = false,
                }
            });
            return self.known(known, span, || format!("conversion of {from} to {to}"));
        }
        for lane in 0..u32::from(to.lanes) {
            let (dst, a) = (self.at(dst + lane), self.at(a + lane));
            let (regs, mask) = (&mut self.regs, &self.mask);
            match (from.scalar, to.scalar) {
                (Scalar::U32, Scalar::U64) => map1(regs, mask, dst, a, |x| x),
                (Scalar::BF16, Scalar::F32) => map1(regs, mask, dst, a, |x| x << 16),
                (from, to) => mask.for_each(|t| match scalar::convert(from, to, regs[a + t]) {
                    Some(x) => regs[dst + t] = x,
                    None => known = false,
                }),
            }
        }
        self.known(known, span, || format!("conversion of {from} to {to}"))
    }

    fn bitcast(&mut self, from: Type, to: Type, dst: Row, a: Row) {
        let (dst, a, w) = (self.at(dst), self.at(a), self.threads as usize);
        let regs = &mut self.regs;
        if from.lanes == to.lanes {
            for lane in 0..usize::from(to.lanes) {
                map1(regs, &self.mask, dst + lane * w, a + lane * w, |x| x);
            }
            return;
        }
        let (in_bits, out_bits) = (from.scalar.bits(), to.scalar.bits());
        let keep = if out_bits == 64 {
            u64::MAX
        } else {
            (1 << out_bits) - 1
        };
        self.mask.for_each(|t| {
            // At most 8 lanes of 8 bytes.
            let mut words = [0u64; 8];
            for lane in 0..usize::from(from.lanes) {
                let at = lane as u32 * in_bits;
                words[(at / 64) as usize] |= regs[a + lane * w + t] << (at % 64);
            }
            for lane in 0..usize::from(to.lanes) {
                let at = lane as u32 * out_bits;
                regs[dst + lane * w + t] = words[(at / 64) as usize] >> (at % 64) & keep;
            }
        });
    }

    /// Reads a variable.
    pub(super) fn get(
        &mut self,
        local: Local,
        dst: Row,
        lanes: u8,
        span: Span,
    ) -> Result<(), Fault> {
        let row = self.program.local_rows[local.index()];
        for lane in 0..u32::from(lanes) {
            let (src, dst) = (self.at(row + lane), self.at(dst + lane));
            let (regs, locals, set) = (&mut self.regs, &self.locals, &self.locals_set);
            let mut unset = None;
            self.mask.for_each(|t| {
                regs[dst + t] = locals[src + t];
                if !set[src + t] {
                    unset = Some(t);
                }
            });
            if let Some(t) = unset {
                let message = format!(
                    "`{}` is read before it is written",
                    self.kernel.locals[local].name
                );
                return Err(self.fault(Rule::Uninitialised, span, t, message));
            }
        }
        Ok(())
    }

    /// Writes a variable.
    pub(super) fn set(&mut self, local: Local, src: Row, lanes: u8) {
        let row = self.program.local_rows[local.index()];
        for lane in 0..u32::from(lanes) {
            let (dst, src) = (self.at(row + lane), self.at(src + lane));
            let (regs, locals, set) = (&self.regs, &mut self.locals, &mut self.locals_set);
            self.mask.for_each(|t| {
                locals[dst + t] = regs[src + t];
                set[dst + t] = true;
            });
        }
    }

    /// The one value that an argument has in threads `range`, or a fault.
    fn same(&self, row: Row, range: std::ops::Range<usize>, span: Span) -> Result<u64, Fault> {
        let at = self.at(row);
        let value = self.regs[at + range.start];
        for t in range.clone() {
            let other = self.regs[at + t];
            if other != value {
                let message = format!(
                    "the argument of a broadcast must be uniform: it is {value} in thread {} and {other} here",
                    range.start
                );
                return Err(self.fault(Rule::NotUniform, span, t, message));
            }
        }
        Ok(value)
    }

    /// Runs an exchange within subgroups.
    pub(super) fn subgroup(&mut self, inst: &Inst, span: Span) -> Result<(), Fault> {
        let Inst::Subgroup {
            op,
            reduce,
            scalar,
            dst,
            a,
            lanes,
            argument,
        } = *inst
        else {
            return Ok(());
        };
        let width = self.subgroup_size as usize;
        let threads = self.threads as usize;
        for first in (0..threads).step_by(width) {
            let range = first..(first + width).min(threads);
            for lane in 0..u32::from(lanes) {
                let (dst, a) = (self.at(dst + lane), self.at(a + lane));
                let values: Vec<u64> = self.regs[a + range.start..a + range.end].to_vec();
                let argument_of = |t: usize| argument.map_or(0, |row| self.regs[self.at(row) + t]);
                let outside = |t: usize, source: u64| {
                    let message = format!(
                        "subgroup {} of lane {source}, but the subgroup has {} lanes",
                        op.name(),
                        values.len()
                    );
                    self.fault(Rule::NoSuchLane, span, t, message)
                };
                let mut out = Vec::with_capacity(values.len());
                for (own, t) in range.clone().enumerate() {
                    let own = own as u64;
                    let pick = |source: u64| values.get(usize::try_from(source).ok()?).copied();
                    let or_own =
                        |source: Option<u64>| source.and_then(pick).unwrap_or(values[own as usize]);
                    out.push(match op {
                        SubgroupOp::Shuffle => {
                            let source = argument_of(t);
                            pick(source).ok_or_else(|| outside(t, source))?
                        }
                        SubgroupOp::Broadcast => {
                            let row = argument.unwrap_or(0);
                            let source = self.same(row, range.clone(), span)?;
                            pick(source).ok_or_else(|| outside(t, source))?
                        }
                        SubgroupOp::ShuffleXor => or_own(Some(own ^ argument_of(t))),
                        SubgroupOp::ShuffleUp => or_own(own.checked_sub(argument_of(t))),
                        SubgroupOp::ShuffleDown => or_own(own.checked_add(argument_of(t))),
                        SubgroupOp::Ballot => values
                            .iter()
                            .enumerate()
                            .fold(0, |mask, (lane, &x)| mask | (x & 1) << lane),
                        SubgroupOp::Any => values.iter().fold(0, |any, &x| any | x),
                        SubgroupOp::All => values.iter().fold(1, |all, &x| all & x),
                        SubgroupOp::Reduce => scalar::tree(reduce, scalar, &values).unwrap_or(0),
                    });
                }
                self.regs[dst + range.start..dst + range.end].copy_from_slice(&out);
            }
        }
        Ok(())
    }

    /// Runs a matrix product of each 32 threads.
    pub(super) fn mma(&mut self, inst: &Inst, span: Span) -> Result<(), Fault> {
        let Inst::Mma {
            scalar,
            dst,
            a,
            b,
            sum,
        } = *inst
        else {
            return Ok(());
        };
        let threads = self.threads as usize;
        let float = |row: u32, k: u32, t: usize| {
            let bits = self.regs[self.at(row + k) + t];
            let wide = scalar::convert(scalar, Scalar::F32, bits);
            wide.map(|bits| f32::from_bits(bits as u32))
        };
        let mut sums = Vec::with_capacity(4 * threads);
        for t in 0..threads {
            let (unit, lane) = (t - t % 32, t % 32);
            for i in 0..4 {
                let mut total = f32::from_bits(self.regs[self.at(sum + i) + t] as u32);
                let column = 2 * (lane % 4) + i as usize % 2;
                for k in 0..16u32 {
                    let quarter = (k / 4) as usize;
                    let x = float(a[i as usize / 2], k % 4, unit + lane / 4 * 4 + quarter);
                    let y = float(b, k % 4, unit + column * 4 + quarter);
                    let (Some(x), Some(y)) = (x, y) else {
                        return self.known(false, span, || format!("matrix product of {scalar}"));
                    };
                    total = x.mul_add(y, total);
                }
                sums.push(total);
            }
        }
        for (i, total) in sums.into_iter().enumerate() {
            let at = self.at(dst + i as u32 % 4) + i / 4;
            self.regs[at] = u64::from(total.to_bits());
        }
        Ok(())
    }

    /// Runs a collective of the workgroup.
    pub(super) fn group(&mut self, inst: &Inst, span: Span) -> Result<(), Fault> {
        let Inst::Group {
            op,
            reduce,
            scalar,
            dst,
            a,
            lanes,
            argument,
        } = *inst
        else {
            return Ok(());
        };
        let threads = self.threads as usize;
        for lane in 0..u32::from(lanes) {
            let (dst, a) = (self.at(dst + lane), self.at(a + lane));
            let values = self.regs[a..a + threads].to_vec();
            match op {
                GroupOp::Reduce => {
                    let result = scalar::tree(reduce, scalar, &values);
                    let Some(result) = result else {
                        return self
                            .known(false, span, || format!("`{}` of {scalar}", reduce.name()));
                    };
                    self.regs[dst..dst + threads].fill(result);
                }
                GroupOp::ScanInclusive | GroupOp::ScanExclusive => {
                    let elements: Vec<_> =
                        values.iter().map(|&bits| Const { scalar, bits }).collect();
                    let exclusive = op == GroupOp::ScanExclusive;
                    let scanned = fold::tree_scan(reduce, &elements, exclusive);
                    for (t, value) in scanned.into_iter().enumerate() {
                        self.regs[dst + t] = value.bits;
                    }
                }
                GroupOp::Broadcast => {
                    let source = self.same(argument.unwrap_or(0), 0..threads, span)?;
                    let Some(&value) = values.get(usize::try_from(source).unwrap_or(usize::MAX))
                    else {
                        let message = format!(
                            "broadcast of thread {source}, but the workgroup has {threads} threads"
                        );
                        return Err(self.fault(Rule::NoSuchLane, span, 0, message));
                    };
                    self.regs[dst..dst + threads].fill(value);
                }
            }
        }
        Ok(())
    }
}
