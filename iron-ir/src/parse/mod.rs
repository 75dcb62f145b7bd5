//! The text form of a kernel: parsing. [`crate::print`] has the grammar by example.
//!
//! The result has the numbering of [`crate::print::canonical`]. Parsing checks the grammar and
//! that names are defined before they are used; everything else is the verifier's.

mod lexer;
mod statement;

use std::collections::HashMap;

use crate::contract::{CompareOp, Contract, Expr, ExprOp, Fact};
use crate::entity::{Array, Dim, Local, Param, Tile, Value};
use crate::fold::float::encode_f64;
use crate::kernel::{
    Access, ArrayData, Kernel, LocalData, ParamData, ParamKind, Space, Span, TensorData,
    TensorLayout, TileData,
};
use crate::op::{Const, TileSpace};
use crate::types::{Scalar, Type};
use lexer::{Placed, Token, tokens};

/// A text that is no kernel.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{line}:{column}: {message}")]
pub struct ParseError {
    /// From 1.
    pub line: u32,
    /// From 1.
    pub column: u32,
    /// What is wrong.
    pub message: String,
}

/// Reads the text of one kernel.
pub fn parse(text: &str) -> Result<Kernel, ParseError> {
    let mut parser = Parser {
        tokens: tokens(text)?,
        at: 0,
        kernel: Kernel::default(),
        values: HashMap::new(),
        leaves: HashMap::new(),
        locals: HashMap::new(),
        params: HashMap::new(),
        dims: HashMap::new(),
        arrays: HashMap::new(),
        tiles: HashMap::new(),
    };
    parser.kernel()?;
    Ok(parser.kernel)
}

type Parsed<T> = Result<T, ParseError>;

struct Parser {
    tokens: Vec<Placed>,
    at: usize,
    kernel: Kernel,
    values: HashMap<String, Value>,
    leaves: HashMap<String, Value>,
    locals: HashMap<String, Local>,
    params: HashMap<String, Param>,
    dims: HashMap<String, Dim>,
    arrays: HashMap<String, Array>,
    tiles: HashMap<String, Tile>,
}

impl Parser {
    fn kernel(&mut self) -> Parsed<()> {
        self.word("kernel")?;
        self.kernel.name = self.name('@')?.into();
        if let Token::Text(instance) = self.peek().clone() {
            self.at += 1;
            self.kernel.instance = instance.into();
        }
        // Dimensions and parameters are declared in the body, and the header names them.
        let header = self.at;
        while !matches!(self.peek(), Token::Mark("{") | Token::End) {
            self.at += 1;
        }
        self.mark("{")?;
        self.declarations()?;
        let body = self.at;
        self.at = header;
        self.contract()?;
        self.at = body;
        self.kernel.body = self.block_rest()?;
        match self.peek() {
            Token::End => Ok(()),
            _ => self.expected("the end"),
        }
    }

    fn contract(&mut self) -> Parsed<()> {
        let mut contract = Contract::default();
        self.word("grid")?;
        self.mark("(")?;
        for axis in 0..3 {
            if axis > 0 {
                self.mark(",")?;
            }
            contract.grid[axis] = self.expr()?;
        }
        self.mark(")")?;
        self.word("workgroup")?;
        self.mark("(")?;
        for axis in 0..3 {
            if axis > 0 {
                self.mark(",")?;
            }
            contract.workgroup[axis] = self.integer()?;
        }
        self.mark(")")?;
        if self.eat_word("resident") {
            self.mark("(")?;
            contract.resident = self.integer()?;
            self.mark(")")?;
        }
        if self.eat_word("requires") {
            self.mark("(")?;
            loop {
                let lhs = self.expr()?;
                let op = self.comparison()?;
                let rhs = self.expr()?;
                contract.requires.push(Fact { op, lhs, rhs });
                if !self.eat(",") {
                    break;
                }
            }
            self.mark(")")?;
        }
        contract.permissions.contract = self.eat_word("contract_fma");
        contract.permissions.approximate = self.eat_word("approximate");
        contract.cooperative = self.eat_word("cooperative");
        contract.dependent = self.eat_word("dependent");
        self.kernel.contract = contract;
        match self.peek() {
            Token::Mark("{") => Ok(()),
            _ => self.expected("`{` or a licence"),
        }
    }

    fn declarations(&mut self) -> Parsed<()> {
        loop {
            if self.eat_word("doc") {
                self.kernel.doc = self.text()?.into();
            } else if self.eat_word("file") {
                let file = self.text()?;
                self.kernel.files.push(file.into());
            } else if self.eat_word("dim") {
                let key = self.name('#')?;
                let dim = self.kernel.dims.push(base(&key).into());
                self.dims.insert(key, dim);
            } else if self.eat_word("param") {
                self.param()?;
            } else if self.eat_word("local") {
                let key = self.name('$')?;
                self.mark(":")?;
                let ty = self.ty()?;
                let name = base(&key).into();
                let span = self.span();
                let local = self.kernel.locals.push(LocalData { name, ty, span });
                self.locals.insert(key, local);
            } else if self.eat_word("shared") {
                self.array(Space::Shared)?;
            } else if self.eat_word("private") {
                self.array(Space::Private)?;
            } else if self.eat_word("ahead") {
                self.array(Space::Ahead)?;
            } else if self.eat_word("tile") {
                self.tile()?;
            } else {
                return Ok(());
            }
        }
    }

    fn param(&mut self) -> Parsed<()> {
        let key = self.name('@')?;
        let name = base(&key).into();
        self.mark(":")?;
        let kind = if self.eat_word("tensor") {
            self.mark("<")?;
            let scalar = self.scalar()?;
            self.mark(",")?;
            self.mark("[")?;
            let mut shape = Vec::new();
            while !self.eat("]") {
                if !shape.is_empty() {
                    self.mark(",")?;
                }
                shape.push(self.expr()?);
            }
            self.mark(",")?;
            let access = if self.eat_word("read") {
                Access::Read
            } else {
                self.word("read_write")?;
                Access::ReadWrite
            };
            self.mark(",")?;
            let mut layout = TensorLayout::RowMajor;
            if self.eat_word("strided") {
                layout = TensorLayout::Strided;
                self.mark(",")?;
            }
            self.word("align")?;
            let align = self.integer()?;
            let mut may_alias = Vec::new();
            while self.eat(",") {
                self.word("alias")?;
                // The parameter may stand further down: its position is found ahead.
                let key = self.name('@')?;
                may_alias.push(self.param_ahead(&key)?);
            }
            self.mark(">")?;
            ParamKind::Tensor(TensorData {
                scalar,
                shape,
                access,
                layout,
                align,
                may_alias,
            })
        } else {
            ParamKind::Scalar(self.scalar()?)
        };
        let span = self.span();
        let param = self.kernel.params.push(ParamData { name, kind, span });
        self.params.insert(key, param);
        Ok(())
    }

    /// The parameter of that name, declared so far or below.
    fn param_ahead(&self, key: &str) -> Parsed<Param> {
        let declared =
            self.tokens
                .windows(2)
                .filter_map(|pair| match (&pair[0].token, &pair[1].token) {
                    (Token::Word(word), Token::Name('@', name)) if word == "param" => Some(name),
                    _ => None,
                });
        match declared.into_iter().position(|name| name == key) {
            Some(index) => Ok(crate::entity::Handle::from_index(index)),
            None => self.fail(format!("there is no parameter `@{key}`")),
        }
    }

    fn array(&mut self, space: Space) -> Parsed<()> {
        let key = self.name('&')?;
        self.mark(":")?;
        self.mark("[")?;
        let scalar = self.scalar()?;
        self.mark(";")?;
        let len = self.integer()?;
        self.mark("]")?;
        let (name, span) = (base(&key).into(), self.span());
        let array = self.kernel.arrays.push(ArrayData {
            name,
            scalar,
            len,
            space,
            span,
        });
        self.arrays.insert(key, array);
        Ok(())
    }

    fn tile(&mut self) -> Parsed<()> {
        let key = self.name('!')?;
        self.mark(":")?;
        let space = if self.eat_word("shared") {
            TileSpace::Shared
        } else {
            self.word("register")?;
            TileSpace::Register
        };
        self.mark("[")?;
        let scalar = self.scalar()?;
        self.mark(";")?;
        let rows = self.integer()?;
        self.mark(",")?;
        let columns = self.integer()?;
        self.mark("]")?;
        let (name, span) = (base(&key).into(), self.span());
        let tile = self.kernel.tiles.push(TileData {
            name,
            scalar,
            rows,
            columns,
            space,
            span,
        });
        self.tiles.insert(key, tile);
        Ok(())
    }

    fn expr(&mut self) -> Parsed<Expr> {
        let lhs = self.term()?;
        let op = match self.peek() {
            Token::Mark("+") => ExprOp::Add,
            Token::Mark("-") => ExprOp::Sub,
            Token::Mark("*") => ExprOp::Mul,
            Token::Mark("/") => ExprOp::Div,
            Token::Mark("%") => ExprOp::Rem,
            _ => return Ok(lhs),
        };
        self.at += 1;
        let rhs = self.term()?;
        Ok(Expr::binary(op, lhs, rhs))
    }

    fn term(&mut self) -> Parsed<Expr> {
        match self.peek().clone() {
            Token::Name('#', name) => {
                self.at += 1;
                match self.dims.get(&name) {
                    Some(dim) => Ok(Expr::Dim(*dim)),
                    None => self.fail(format!("there is no dimension `#{name}`")),
                }
            }
            Token::Name('@', name) => {
                self.at += 1;
                match self.params.get(&name) {
                    Some(param) => Ok(Expr::Scalar(*param)),
                    None => Ok(Expr::Scalar(self.param_ahead(&name)?)),
                }
            }
            Token::Number(_) => Ok(Expr::Const(self.integer()?)),
            Token::Mark("(") => {
                self.at += 1;
                let inner = self.expr()?;
                self.mark(")")?;
                Ok(inner)
            }
            Token::Word(word) => {
                let op = match word.as_str() {
                    "ceil_div" => ExprOp::CeilDiv,
                    "min" => ExprOp::Min,
                    "max" => ExprOp::Max,
                    _ => return self.expected("an expression"),
                };
                self.at += 1;
                self.mark("(")?;
                let a = self.expr()?;
                self.mark(",")?;
                let b = self.expr()?;
                self.mark(")")?;
                Ok(Expr::binary(op, a, b))
            }
            _ => self.expected("an expression"),
        }
    }

    fn comparison(&mut self) -> Parsed<CompareOp> {
        let op = match self.peek() {
            Token::Mark("==") => CompareOp::Eq,
            Token::Mark("!=") => CompareOp::Ne,
            Token::Mark("<") => CompareOp::Lt,
            Token::Mark("<=") => CompareOp::Le,
            Token::Mark(">") => CompareOp::Gt,
            Token::Mark(">=") => CompareOp::Ge,
            _ => return self.expected("a comparison"),
        };
        self.at += 1;
        Ok(op)
    }

    fn peek(&self) -> &Token {
        &self.tokens[self.at].token
    }

    fn fail<T>(&self, message: impl Into<String>) -> Parsed<T> {
        let place = &self.tokens[self.at.saturating_sub(1)];
        Err(ParseError {
            line: place.line,
            column: place.column,
            message: message.into(),
        })
    }

    fn expected<T>(&self, what: &str) -> Parsed<T> {
        let place = &self.tokens[self.at];
        let found = match &place.token {
            Token::Word(w) | Token::Number(w) => format!("`{w}`"),
            Token::Name(sigil, name) => format!("`{sigil}{name}`"),
            Token::Text(text) => format!("\"{text}\""),
            Token::Span(..) => "a span".into(),
            Token::Mark(m) => format!("`{m}`"),
            Token::End => "the end".into(),
        };
        let message = format!("expected {what}, found {found}");
        Err(ParseError {
            line: place.line,
            column: place.column,
            message,
        })
    }

    fn eat(&mut self, mark: &'static str) -> bool {
        let found = *self.peek() == Token::Mark(mark);
        self.at += usize::from(found);
        found
    }

    fn mark(&mut self, mark: &'static str) -> Parsed<()> {
        if self.eat(mark) {
            Ok(())
        } else {
            self.expected(&format!("`{mark}`"))
        }
    }

    fn eat_word(&mut self, word: &str) -> bool {
        let found = matches!(self.peek(), Token::Word(w) if w == word);
        self.at += usize::from(found);
        found
    }

    fn word(&mut self, word: &str) -> Parsed<()> {
        if self.eat_word(word) {
            Ok(())
        } else {
            self.expected(&format!("`{word}`"))
        }
    }

    fn any_word(&mut self, what: &str) -> Parsed<String> {
        match self.peek().clone() {
            Token::Word(word) => {
                self.at += 1;
                Ok(word)
            }
            _ => self.expected(what),
        }
    }

    fn name(&mut self, sigil: char) -> Parsed<String> {
        match self.peek().clone() {
            Token::Name(found, name) if found == sigil => {
                self.at += 1;
                Ok(name)
            }
            _ => self.expected(&format!("a name after `{sigil}`")),
        }
    }

    fn text(&mut self) -> Parsed<String> {
        match self.peek().clone() {
            Token::Text(text) => {
                self.at += 1;
                Ok(text)
            }
            _ => self.expected("a quoted text"),
        }
    }

    fn integer<T: std::str::FromStr>(&mut self) -> Parsed<T> {
        match self.peek().clone() {
            Token::Number(n) => match n.parse() {
                Ok(n) => {
                    self.at += 1;
                    Ok(n)
                }
                Err(_) => self.expected("an integer in range"),
            },
            _ => self.expected("an integer"),
        }
    }

    /// The span that may stand here.
    fn span(&mut self) -> Span {
        match *self.peek() {
            Token::Span(file, line, column) => {
                self.at += 1;
                Span { file, line, column }
            }
            _ => Span::default(),
        }
    }

    fn scalar(&mut self) -> Parsed<Scalar> {
        let ty = self.ty()?;
        if ty.is_vector() {
            self.fail(format!("{ty} is no scalar type"))
        } else {
            Ok(ty.scalar)
        }
    }

    fn ty(&mut self) -> Parsed<Type> {
        let word = self.any_word("a type")?;
        match Type::from_name(&word) {
            Some(ty) => Ok(ty),
            None => self.fail(format!("there is no type `{word}`")),
        }
    }

    /// A number with a type suffix.
    fn number(&mut self, text: &str) -> Parsed<Const> {
        let wrong = |p: &Self| {
            p.fail(format!(
                "`{text}` is no constant: a number and a type, as in `1.5f32`"
            ))
        };
        let scalar = Scalar::ALL
            .into_iter()
            .filter(|s| s.is_int() || s.is_float())
            .filter(|s| text.ends_with(s.name()))
            .max_by_key(|s| s.name().len());
        let Some(scalar) = scalar else {
            return wrong(self);
        };
        let digits = &text[..text.len() - scalar.name().len()];
        let constant = if scalar.is_int() {
            digits
                .parse()
                .ok()
                .map(|v: i128| Const::int(scalar, v))
                .filter(|c| digits.parse().ok() == Some(c.as_int()))
        } else if scalar == Scalar::F64 {
            digits.parse().ok().map(Const::f64)
        } else {
            digits
                .parse()
                .ok()
                .map(|v: f32| encode_f64(scalar, f64::from(v)))
        };
        match constant {
            Some(constant) => Ok(constant),
            None => wrong(self),
        }
    }
}

/// The name without the number that tells it from others of the same name.
fn base(key: &str) -> &str {
    key.split('.').next().unwrap_or(key)
}
