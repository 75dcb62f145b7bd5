//! Branches and loops. In uniform flow, what decides is uniform, and inside a loop that every
//! thread turns alike nothing but a uniform condition leaves it.

use iron_ir::{Scalar, Type};

use super::{Named, Writer};

impl Writer<'_> {
    /// Statements in a block of their own; their values are gone after it.
    fn block(&mut self, most: usize, uniform: bool) {
        let visible = self.values.len();
        let flow = self.uniform_flow;
        self.uniform_flow &= uniform;
        self.depth += 1;
        for _ in 0..1 + self.pick(most) {
            if self.more() {
                self.statement();
            }
        }
        // What a block computes leaves it through a variable.
        let (local, ty) = self.local();
        let visible = visible.min(self.values.len());
        if self.values[visible..].iter().any(|v| v.ty == ty) && self.pick(4) != 3 {
            let value = self.value(ty);
            self.line(&format!("{local} = {value}"));
        }
        self.jump();
        self.depth -= 1;
        self.uniform_flow = flow;
        self.values.truncate(visible);
        self.divergent = false;
    }

    fn jump(&mut self) {
        if let Some(&together) = self.loops.last()
            && (!together || self.uniform_flow)
            && self.more()
            && self.pick(6) == 5
        {
            let jump = self.choose(&["break", "continue"]);
            let condition = if together {
                self.uniform_value(Type::BOOL)
            } else {
                self.value(Type::BOOL)
            };
            self.line(&format!("if {condition} {{"));
            self.line(&format!("  {jump}"));
            self.line("}");
        }
        if !self.collective && self.more() && self.pick(24) == 23 {
            let condition = self.value(Type::BOOL);
            self.line(&format!("if {condition} {{"));
            self.line("  return");
            self.line("}");
        }
    }

    pub(super) fn branch(&mut self) {
        let uniform = self.uniform_flow && self.pick(2) == 0;
        let condition = if uniform {
            self.uniform_value(Type::BOOL)
        } else {
            self.value(Type::BOOL)
        };
        self.divergent = false;
        self.line(&format!("if {condition} {{"));
        self.block(4, uniform);
        if self.pick(2) == 1 {
            self.line("} else {");
            self.block(4, uniform);
        }
        self.line("}");
    }

    pub(super) fn counted_loop(&mut self) {
        let mut uniform = self.uniform_flow;
        let scalar = if self.pick(3) == 2 {
            self.scalar_of(Scalar::is_int)
        } else {
            Scalar::U32
        };
        let number = |x: i128| {
            let mask = u64::MAX >> (64 - scalar.bits());
            format!("{scalar}:0x{:x}", x as u64 & mask)
        };
        let (low, high) = if scalar.is_signed() {
            let top = 1i128 << (scalar.bits() - 1);
            (-top, top - 1)
        } else {
            (0, (1i128 << scalar.bits()) - 1)
        };
        let turns = self.pick(5) as i128;
        let step = 1 + [0, 0, 1, 2][self.pick(4)] as i128;
        let (start, end, constant) = match self.pick(8) {
            0..=2 => (number(0), number(turns), true),
            // The index would pass the type's end, and must not wrap.
            3 => (number(high - turns * step), number(high), true),
            4 => (number(low), number(low + turns), true),
            5 if scalar.is_signed() => (number(-turns), number(1), true),
            5 => (number(turns), number(1), true),
            kind => {
                let ty = scalar.x(1);
                let end = if kind == 6 && uniform {
                    self.uniform_value(ty)
                } else {
                    uniform = false;
                    self.value(ty)
                };
                self.divergent = !uniform;
                let end = self.define(ty, &format!("and {end}, {}", number(3)));
                (number(0), end, false)
            }
        };
        let step = if step == 1 {
            String::new()
        } else {
            format!(" step {}", number(step))
        };
        // Full unrolling needs a constant trip count.
        let unroll = match self.pick(4) {
            1 if constant => " unroll",
            2 => " never_unroll",
            _ => "",
        };
        let index = self.name();
        self.line(&format!(
            "for {index}: {scalar} in {start} .. {end}{step}{unroll} {{"
        ));
        let visible = self.values.len();
        self.values.push(Named {
            name: index,
            ty: scalar.x(1),
            uniform,
        });
        self.loops.push(uniform);
        self.block(5, uniform);
        self.loops.pop();
        self.values.truncate(visible);
        self.line("}");
    }

    pub(super) fn endless_loop(&mut self) {
        let uniform = self.uniform_flow && self.pick(2) == 0;
        // No statement of the body may choose the counter.
        let counter = format!("$c{}", self.counters);
        self.counters += 1;
        let turns = 1 + self.pick(4);
        self.line(&format!("{counter} = 0u32"));
        self.line("loop {");
        self.depth += 1;
        let visible = self.values.len();
        self.divergent = !uniform;
        let old = self.define(Type::U32, &counter);
        self.divergent = !uniform;
        let new = self.define(Type::U32, &format!("add {old}, 1u32"));
        self.line(&format!("{counter} = {new}"));
        self.divergent = !uniform;
        let done = self.define(Type::BOOL, &format!("gt {new}, {turns}u32"));
        self.line(&format!("if {done} {{"));
        self.line("  break");
        self.line("}");
        self.depth -= 1;
        self.loops.push(uniform);
        self.block(4, uniform);
        self.loops.pop();
        self.values.truncate(visible);
        self.line("}");
    }
}
