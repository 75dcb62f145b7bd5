//! Expressions as text with their precedence, so that parentheses stand only where they must.

use iron_ir::entity::Local;

/// Precedence of C++ operators, loosest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Level {
    /// `c ? a : b`.
    Conditional,
    /// `||`.
    Or,
    /// `&&`.
    And,
    /// `|`.
    BitOr,
    /// `^`.
    BitXor,
    /// `&`.
    BitAnd,
    /// `==`, `!=`.
    Equality,
    /// `<`, `<=`, `>`, `>=`.
    Relational,
    /// `<<`, `>>`.
    Shift,
    /// `+`, `-`.
    Additive,
    /// `*`, `/`, `%`.
    Multiplicative,
    /// Prefix operators and casts.
    Unary,
    /// Names, literals, calls, subscripts and members.
    Primary,
}

impl Level {
    /// The next tighter level, which the right side of a left-associative operator needs.
    fn tighter(self) -> Level {
        match self {
            Level::Conditional => Level::Or,
            Level::Or => Level::And,
            Level::And => Level::BitOr,
            Level::BitOr => Level::BitXor,
            Level::BitXor => Level::BitAnd,
            Level::BitAnd => Level::Equality,
            Level::Equality => Level::Relational,
            Level::Relational => Level::Shift,
            Level::Shift => Level::Additive,
            Level::Additive => Level::Multiplicative,
            Level::Multiplicative => Level::Unary,
            Level::Unary | Level::Primary => Level::Primary,
        }
    }
}

/// What a delayed expression reads, and so what must not change before it is evaluated.
#[derive(Clone, Default, PartialEq, Debug)]
pub(crate) struct Reads {
    /// Variables.
    pub locals: Vec<Local>,
    /// Tensors or arrays.
    pub memory: bool,
    /// Other lanes of the subgroup: it stays in its control flow and before the next exchange.
    pub lanes: bool,
}

impl Reads {
    /// Adds another's.
    pub fn merge(&mut self, other: &Reads) {
        self.memory |= other.memory;
        self.lanes |= other.lanes;
        for local in &other.locals {
            if !self.locals.contains(local) {
                self.locals.push(*local);
            }
        }
    }
}

/// An expression.
#[derive(Clone, Debug)]
pub(crate) struct Expr {
    /// Text.
    pub text: String,
    /// Its outermost operator.
    pub level: Level,
    /// What it reads.
    pub reads: Reads,
    /// For a signed sum, difference or product, which is computed in unsigned: the expression
    /// before the cast back.
    pub unsigned: Option<Box<Expr>>,
    /// For a conversion of an unsigned integer to a wider one: the narrow expression.
    pub narrow: Option<Box<Expr>>,
    /// For `variable op right`: what a compound assignment to the variable needs.
    pub compound: Option<Box<(Local, &'static str, Expr)>>,
    /// For the value of a variable.
    pub variable: Option<Local>,
}

impl Expr {
    /// Text of a level.
    pub fn new(text: impl Into<String>, level: Level) -> Expr {
        Expr {
            text: text.into(),
            level,
            reads: Reads::default(),
            unsigned: None,
            narrow: None,
            compound: None,
            variable: None,
        }
    }

    /// A name, literal, call, subscript or member.
    pub fn primary(text: impl Into<String>) -> Expr {
        Expr::new(text, Level::Primary)
    }

    /// A literal, which a sign makes a prefix expression.
    pub fn literal(text: impl Into<String>) -> Expr {
        let text = text.into();
        let level = if text.starts_with('-') {
            Level::Unary
        } else {
            Level::Primary
        };
        Expr::new(text, level)
    }

    /// `name(arguments)`.
    pub fn call(name: &str, arguments: &[Expr]) -> Expr {
        let texts: Vec<&str> = arguments.iter().map(|a| a.text.as_str()).collect();
        Expr::primary(format!("{name}({})", texts.join(", "))).reading(arguments)
    }

    /// `(type)operand`.
    pub fn cast(ty: &str, operand: &Expr) -> Expr {
        Expr::new(format!("({ty}){}", operand.at(Level::Unary)), Level::Unary)
            .reading(std::slice::from_ref(operand))
    }

    /// `operator operand`.
    pub fn prefix(operator: char, operand: &Expr) -> Expr {
        let text = if operand.text.starts_with(operator) {
            operand.at(Level::Primary)
        } else {
            operand.at(Level::Unary)
        };
        Expr::new(format!("{operator}{text}"), Level::Unary).reading(std::slice::from_ref(operand))
    }

    /// `left operator right`, left-associative. Bit operators and shifts, whose precedence
    /// readers do not remember, put parentheses around any other operator.
    pub fn infix(operator: &'static str, level: Level, left: &Expr, right: &Expr) -> Expr {
        let is_bitwise = matches!(
            level,
            Level::BitOr | Level::BitXor | Level::BitAnd | Level::Shift
        );
        let left_text = match is_bitwise {
            true if left.level == level && level != Level::Shift => left.text.clone(),
            true => left.at(Level::Unary),
            false if level == Level::Or => left.at_or(Level::Or),
            false => left.at(level),
        };
        let right_text = match is_bitwise {
            true => right.at(Level::Unary),
            false if level == Level::Or => right.at(Level::BitOr),
            false => right.at(level.tighter()),
        };
        let mut expr = Expr::new(format!("{left_text} {operator} {right_text}"), level)
            .reading(&[left.clone(), right.clone()]);
        if let Some(local) = left.variable {
            expr.compound = Some(Box::new((local, operator, right.clone())));
        }
        expr
    }

    /// `condition ? yes : no`.
    pub fn conditional(condition: &Expr, yes: &Expr, no: &Expr) -> Expr {
        let text = format!(
            "{} ? {} : {}",
            condition.at(Level::Or),
            yes.at(Level::Or),
            no.at(Level::Conditional)
        );
        Expr::new(text, Level::Conditional).reading(&[condition.clone(), yes.clone(), no.clone()])
    }

    /// The same expression, reading what its parts read.
    pub fn reading(mut self, parts: &[Expr]) -> Expr {
        for part in parts {
            self.reads.merge(&part.reads);
        }
        self
    }

    /// The text, in parentheses if it binds looser than `level`.
    pub fn at(&self, level: Level) -> String {
        if self.level < level {
            format!("({})", self.text)
        } else {
            self.text.clone()
        }
    }

    /// As [`Expr::at`], with parentheses around `&&` beside `||`.
    fn at_or(&self, level: Level) -> String {
        if self.level == Level::And {
            format!("({})", self.text)
        } else {
            self.at(level)
        }
    }

    /// Forgets what only the printer of an enclosing operator may use.
    pub fn plain(mut self) -> Expr {
        self.unsigned = None;
        self.narrow = None;
        self.compound = None;
        self.variable = None;
        self
    }
}
