//! Structured control flow: branches, loops, calls, and exits that the IR does not have.
//!
//! The IR knows `Break` and `Continue` of the innermost loop. A `return` from an inlined
//! function leaves a single-trip loop around it; an exit that crosses loops sets a flag,
//! leaves the innermost, and every loop on the way tests its flag after it.

use std::rc::Rc;

use crate::build::binding::Shape;
use crate::build::error::BuildFault;
use crate::build::tree;
use crate::build::value::Val;
use crate::entity::{Local, Value};
use crate::kernel::Block;
use crate::op::{Op, Stmt, UnaryOp};
use crate::types::Type;

use super::interpreter::{Builder, Context, Eval, Stop};

/// Calls nested deeper than this are a recursion.
const MAX_DEPTH: usize = 64;

/// The two exits of loops.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Exit {
    Break,
    Continue,
}

/// Something that code inside can leave.
pub(super) struct Frame {
    pub(super) kind: FrameKind,
    pub(super) label: Option<String>,
    /// Something leaves it, so that it must be a loop of the IR.
    pub(super) is_left: bool,
    /// A `break` ends it.
    pub(super) is_broken: bool,
    /// Where the values that it is left with go.
    pub(super) result: Option<Val>,
    /// Exits that cross it: target frame, exit and the flag that stands for them.
    pub(super) crossing: Vec<(usize, Exit, Local)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum FrameKind {
    /// A loop: takes `break` and `continue`.
    Loop,
    /// An inlined function or closure: takes `return`.
    Function,
    /// A labelled block: takes `break 'label`.
    Block,
    /// A loop that the builder unrolls: takes `break`.
    Unrolled,
    /// One turn of an unrolled loop: takes `continue`.
    Turn,
}

impl Frame {
    pub(super) fn new(kind: FrameKind, label: Option<&str>) -> Frame {
        Frame {
            kind,
            label: label.map(str::to_string),
            is_left: false,
            is_broken: false,
            result: None,
            crossing: Vec::new(),
        }
    }
}

impl Builder {
    pub(super) fn if_expr(
        &mut self,
        condition: &tree::Expr,
        then_block: &tree::Block,
        else_value: Option<&tree::Expr>,
        hint: Option<&str>,
    ) -> Eval<Val> {
        let condition = self.scalar(condition)?;
        self.branch(
            condition,
            hint,
            &mut |b| b.block(then_block),
            &mut |b| match else_value {
                Some(value) => b.rvalue(value),
                None => Ok(Val::unit()),
            },
        )
    }

    /// Two-way branch whose value is that of the branch taken.
    pub(super) fn branch(
        &mut self,
        condition: Value,
        hint: Option<&str>,
        then_value: &mut dyn FnMut(&mut Self) -> Eval<Val>,
        else_value: &mut dyn FnMut(&mut Self) -> Eval<Val>,
    ) -> Eval<Val> {
        let span = self.span;
        let (mut then_block, then_value) = self.in_block(then_value)?;
        let (mut else_block, else_value) = self.in_block(else_value)?;
        self.span = span;
        let joined = match (then_value, else_value) {
            (None, None) => {
                self.stmt(Stmt::If {
                    condition,
                    then_block,
                    else_block,
                });
                return Err(Stop::Unreachable);
            }
            (Some(value), None) => self.escaped(value, &mut then_block, hint)?,
            (None, Some(value)) => self.escaped(value, &mut else_block, hint)?,
            (Some(a), Some(b)) => {
                if let (Val::Scalar(x), Val::Scalar(y)) = (&a, &b)
                    && then_block.is_empty()
                    && else_block.is_empty()
                    && self.ty(*x) == self.ty(*y)
                {
                    return self.select(condition, *x, *y).map(Val::Scalar);
                }
                self.joined(a, &mut then_block, b, &mut else_block, hint)?
            }
        };
        if !(then_block.is_empty() && else_block.is_empty()) {
            self.stmt(Stmt::If {
                condition,
                then_block,
                else_block,
            });
        }
        self.read(joined)
    }

    /// A value of the end of one block, made usable after it.
    fn escaped(&mut self, value: Val, block: &mut Block, hint: Option<&str>) -> Eval<Val> {
        if is_unit(&value) || is_handle(&value) {
            return Ok(value);
        }
        let shape = self.shape_of(&value)?;
        let variable = self.variable_of(&shape, hint.unwrap_or("value"), true)?;
        self.append_to(block, |b| b.store(&variable, value))?;
        Ok(variable)
    }

    fn joined(
        &mut self,
        a: Val,
        then_block: &mut Block,
        b: Val,
        else_block: &mut Block,
        hint: Option<&str>,
    ) -> Eval<Val> {
        if is_unit(&a) {
            return Ok(a);
        }
        if is_handle(&a) {
            return self.wrong_kind(
                "the value of a branch",
                "a number, a tuple, a struct or an array",
                &a,
            );
        }
        let shape = self.shape_of(&a)?;
        let variable = self.variable_of(&shape, hint.unwrap_or("value"), true)?;
        self.append_to(then_block, |builder| builder.store(&variable, a))?;
        self.append_to(else_block, |builder| builder.store(&variable, b))?;
        Ok(variable)
    }

    pub(super) fn match_expr(
        &mut self,
        scrutinee: &tree::Expr,
        arms: &[tree::Arm],
        hint: Option<&str>,
    ) -> Eval<Val> {
        let value = self.rvalue(scrutinee)?;
        self.match_arms(&value, arms, hint)
    }

    fn match_arms(&mut self, value: &Val, arms: &[tree::Arm], hint: Option<&str>) -> Eval<Val> {
        let Some((arm, rest)) = arms.split_first() else {
            return self.fail(BuildFault::Malformed);
        };
        let names = self.names.clone();
        self.locate(&arm.body.at);
        // rustc checked that the arms cover everything, so the last one needs no test.
        let is_last = rest.is_empty() && arm.guard.is_none();
        let test = if is_last {
            None
        } else {
            self.test(&arm.pattern, value)?
        };
        self.bind(&arm.pattern, value.clone(), None)?;
        let inside = self.names.clone();
        let condition = match (&arm.guard, test) {
            (None, test) => test,
            (Some(guard), None) => Some(self.scalar(guard)?),
            (Some(guard), Some(test)) => Some(self.lazily(false, test, &mut |b| b.scalar(guard))?),
        };
        let result = match condition {
            None => self.rvalue(&arm.body),
            Some(condition) => self.branch(
                condition,
                hint,
                &mut |b| {
                    b.names = inside.clone();
                    b.rvalue(&arm.body)
                },
                &mut |b| {
                    b.names = names.clone();
                    b.match_arms(value, rest, hint)
                },
            ),
        };
        self.names = names;
        result
    }

    /// Runs a loop's body in a frame and appends the loop that `make` wraps around it.
    pub(super) fn in_loop(
        &mut self,
        frame: Frame,
        body: impl FnOnce(&mut Self) -> Eval<()>,
        make: impl FnOnce(Block) -> Stmt,
    ) -> Eval<Frame> {
        let span = self.span;
        self.frames.push(frame);
        let result = self.in_block(body);
        let frame = self.frames.pop();
        let (block, _) = result?;
        let Some(frame) = frame else {
            return self.fail(BuildFault::Malformed);
        };
        self.span = span;
        self.append_left(frame, make(block))
    }

    /// Appends a statement that exits may cross, with the flags of those exits around it.
    fn append_left(&mut self, frame: Frame, stmt: Stmt) -> Eval<Frame> {
        if !frame.crossing.is_empty() {
            let no = self.const_bool(false);
            for (_, _, flag) in &frame.crossing {
                self.stmt(Stmt::Set(*flag, no));
            }
        }
        self.stmt(stmt);
        for &(target, exit, flag) in &frame.crossing {
            let condition = self.push(Op::Get(flag), Type::BOOL);
            let (then_block, _) = self.in_block(|b| b.exit_to(target, exit))?;
            self.stmt(Stmt::If {
                condition,
                then_block,
                else_block: Block::default(),
            });
        }
        Ok(frame)
    }

    /// Runs a part that may be left early and appends it, as a single-trip loop if it is.
    pub(super) fn leavable(
        &mut self,
        frame: Frame,
        body: impl FnOnce(&mut Self) -> Eval<Val>,
        name: &str,
    ) -> Eval<Val> {
        let span = self.span;
        self.frames.push(frame);
        let result = self.in_block(body);
        let frame = self.frames.pop();
        let (mut block, value) = result?;
        let Some(mut frame) = frame else {
            return self.fail(BuildFault::Malformed);
        };
        self.span = span;
        if !frame.is_left {
            self.block.0.append(&mut block.0);
            return value.ok_or(Stop::Unreachable);
        }
        if let Some(value) = value {
            if frame.result.is_none() && !is_unit(&value) {
                frame.result = Some(self.result_variable(&value, name)?);
            }
            if let Some(result) = frame.result.clone() {
                self.append_to(&mut block, |b| b.store(&result, value))?;
            }
        }
        block.push(Stmt::Break, self.span);
        let frame = self.append_left(frame, Stmt::Loop { body: block })?;
        match frame.result {
            Some(result) => self.read(result),
            None => Ok(Val::unit()),
        }
    }

    fn result_variable(&mut self, value: &Val, name: &str) -> Eval<Val> {
        let shape: Shape = self.shape_of(value)?;
        self.variable_of(&shape, name, true)
    }

    pub(super) fn labelled_block(&mut self, label: &str, block: &tree::Block) -> Eval<Val> {
        let frame = Frame::new(FrameKind::Block, Some(label));
        self.leavable(frame, |b| b.block(block), label)
    }

    /// `break` or `continue`, to a label or to the innermost loop.
    pub(super) fn exit(
        &mut self,
        exit: Exit,
        label: Option<&str>,
        value: Option<Val>,
    ) -> Eval<Val> {
        let target = self.frames.iter().rposition(|frame| {
            let takes = match frame.kind {
                FrameKind::Loop => true,
                FrameKind::Block => exit == Exit::Break && label.is_some(),
                FrameKind::Unrolled => exit == Exit::Break,
                FrameKind::Turn => exit == Exit::Continue,
                FrameKind::Function => false,
            };
            takes && label.is_none_or(|label| frame.label.as_deref() == Some(label))
        });
        let Some(target) = target else {
            return self.fail(BuildFault::Malformed);
        };
        if let Some(value) = value
            && !is_unit(&value)
        {
            self.leave_with(target, value, label.unwrap_or("value"))?;
        }
        self.frames[target].is_broken |= exit == Exit::Break;
        self.exit_to(target, exit)?;
        Err(Stop::Unreachable)
    }

    /// Stores the value that a frame is left with.
    fn leave_with(&mut self, target: usize, value: Val, name: &str) -> Eval<()> {
        let result = match self.frames[target].result.clone() {
            Some(result) => result,
            None => {
                let result = self.result_variable(&value, name)?;
                self.frames[target].result = Some(result.clone());
                result
            }
        };
        self.store(&result, value)
    }

    /// Appends the statements that leave to a frame.
    fn exit_to(&mut self, target: usize, exit: Exit) -> Eval<()> {
        let innermost = self.frames.len() - 1;
        self.frames[innermost].is_left = true;
        if target == innermost {
            let continues = exit == Exit::Continue && self.frames[target].kind == FrameKind::Loop;
            self.stmt(if continues {
                Stmt::Continue
            } else {
                Stmt::Break
            });
            return Ok(());
        }
        let known = self.frames[innermost]
            .crossing
            .iter()
            .find(|(t, e, _)| *t == target && *e == exit)
            .map(|(_, _, flag)| *flag);
        let flag = match known {
            Some(flag) => flag,
            None => {
                let name = match (&self.frames[target].label, exit) {
                    (Some(label), Exit::Break) => format!("break_{label}"),
                    (Some(label), Exit::Continue) => format!("continue_{label}"),
                    (None, _) => "leave".to_string(),
                };
                let flag = self.new_local(&name, Type::BOOL);
                self.frames[innermost].crossing.push((target, exit, flag));
                flag
            }
        };
        let yes = self.const_bool(true);
        self.stmt(Stmt::Set(flag, yes));
        self.stmt(Stmt::Break);
        Ok(())
    }

    /// `return`: ends the thread in a kernel, leaves the inlined function elsewhere.
    pub(super) fn return_value(&mut self, value: Val) -> Eval<Val> {
        match self
            .frames
            .iter()
            .rposition(|frame| frame.kind == FrameKind::Function)
        {
            None => self.stmt(Stmt::Return),
            Some(target) => {
                if !is_unit(&value) {
                    let name = self.frames[target].label.clone().unwrap_or_default();
                    self.leave_with(target, value, &name)?;
                }
                self.exit_to(target, Exit::Break)?;
            }
        }
        Err(Stop::Unreachable)
    }

    /// Calls a closure.
    pub(super) fn apply(&mut self, callee: &Val, arguments: Vec<Val>) -> Eval<Val> {
        let Val::Closure(closure) = callee else {
            return self.wrong_kind("a call", "a closure", callee);
        };
        let closure = closure.clone();
        let names = std::mem::replace(&mut self.names, closure.names.clone());
        let context = std::mem::replace(&mut self.context, closure.context.clone());
        let result = self.nested("closure", |b| {
            for (parameter, argument) in closure.parameters.iter().zip(arguments) {
                b.bind(parameter, argument, None)?;
            }
            b.rvalue(&closure.body)
        });
        self.context = context;
        self.names = names;
        result
    }

    /// Calls a device function.
    pub(super) fn call(&mut self, callee: u32, arguments: Vec<Val>) -> Eval<Val> {
        let Some(unit) = self.context.callees.get(callee as usize) else {
            return self.fail(BuildFault::Malformed);
        };
        let context = match Context::of(unit(), &mut self.kernel) {
            Ok(context) => Rc::new(context),
            Err(error) => return self.fail(error.fault),
        };
        let names = std::mem::take(&mut self.names);
        let caller = std::mem::replace(&mut self.context, context.clone());
        let name = &context.function.name;
        let result = self.nested(name, |b| {
            for (parameter, argument) in context.function.parameters.iter().zip(arguments) {
                let argument = match parameter.pattern {
                    tree::Pattern::Name { mutable: true, .. } => b.copied(argument)?,
                    _ => argument,
                };
                b.bind(&parameter.pattern, argument, None)?;
            }
            b.function_body(&context.function.body, name)
        });
        self.context = caller;
        self.names = names;
        result
    }

    fn nested(&mut self, name: &str, body: impl FnOnce(&mut Self) -> Eval<Val>) -> Eval<Val> {
        if self.depth >= MAX_DEPTH {
            return self.fail(BuildFault::Recursion {
                name: name.to_string(),
            });
        }
        self.depth += 1;
        let frame = Frame::new(FrameKind::Function, Some(name));
        let result = self.leavable(frame, body, name);
        self.depth -= 1;
        result
    }

    /// `while`.
    pub(super) fn while_loop(
        &mut self,
        label: Option<&str>,
        condition: &tree::Expr,
        body: &tree::Block,
    ) -> Eval<Val> {
        let span = self.span;
        let frame = Frame::new(FrameKind::Loop, label);
        self.in_loop(
            frame,
            |b| {
                let condition = b.scalar(condition)?;
                b.span = span;
                let done = b.unary(UnaryOp::Not, condition)?;
                let mut leave = Block::default();
                leave.push(Stmt::Break, span);
                b.stmt(Stmt::If {
                    condition: done,
                    then_block: leave,
                    else_block: Block::default(),
                });
                b.block(body)?;
                Ok(())
            },
            |body| Stmt::Loop { body },
        )?;
        Ok(Val::unit())
    }

    /// `loop`.
    pub(super) fn loop_expr(&mut self, label: Option<&str>, body: &tree::Block) -> Eval<Val> {
        let frame = Frame::new(FrameKind::Loop, label);
        let frame = self.in_loop(
            frame,
            |b| b.block(body).map(|_| ()),
            |body| Stmt::Loop { body },
        )?;
        match frame.result {
            _ if !frame.is_broken => Err(Stop::Unreachable),
            Some(result) => self.read(result),
            None => Ok(Val::unit()),
        }
    }
}

pub(super) fn is_unit(value: &Val) -> bool {
    matches!(value, Val::Tuple(items) if items.is_empty())
}

/// Names of storage, which no variable can hold.
fn is_handle(value: &Val) -> bool {
    match value {
        Val::Array(array) => array.is_handle,
        Val::Tensor(_)
        | Val::Row(..)
        | Val::Tile(_)
        | Val::Range(_)
        | Val::Closure(_)
        | Val::Reference(_) => true,
        _ => false,
    }
}
