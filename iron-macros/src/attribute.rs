//! The grammar of `#[kernel(…)]`.

use proc_macro2::Ident;
use syn::parse::{Parse, ParseBuffer, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Expr, Token, bracketed, parenthesized};

use crate::unit::Unit;

/// What stands in the attribute.
pub struct Attribute {
    /// `grid = [rows, ceil_div(cols, 4)]`.
    pub grid: Vec<Expr>,
    /// `workgroup = 256` or `[32, 8]`.
    pub workgroup: Vec<Expr>,
    /// `resident = 4`, or nothing.
    pub resident: Vec<Expr>,
    /// `requires(…)`.
    pub requires: Vec<Expr>,
    /// `instances(T = […], N = […])`, one list an entry.
    pub instances: Vec<Vec<(Ident, Vec<Expr>)>>,
    /// `in_place(y, x)`.
    pub in_place: Vec<(Ident, Ident)>,
    /// `contract_fma`.
    pub contract_fma: bool,
    /// `approximate`.
    pub approximate: bool,
    /// `cooperative`.
    pub cooperative: bool,
    /// `dependent`.
    pub dependent: bool,
}

impl Parse for Attribute {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut attribute = Attribute {
            grid: Vec::new(),
            workgroup: Vec::new(),
            resident: Vec::new(),
            requires: Vec::new(),
            instances: Vec::new(),
            in_place: Vec::new(),
            contract_fma: false,
            approximate: false,
            cooperative: false,
            dependent: false,
        };
        let mut seen: Vec<String> = Vec::new();
        while !input.is_empty() {
            let key: Ident = input
                .parse()
                .map_err(|error| syn::Error::new(error.span(), ENTRY))?;
            let name = key.to_string();
            if !matches!(&*name, "requires" | "instances" | "in_place") && seen.contains(&name) {
                return Err(syn::Error::new(
                    key.span(),
                    format!("`{name}` is stated twice; keep one"),
                ));
            }
            seen.push(name);
            attribute.entry(input, &key)?;
            if !input.is_empty() && !input.peek(Token![,]) {
                return Err(input.error(format!("a comma stands after the entry `{key}`")));
            }
            input.parse::<Option<Token![,]>>()?;
        }
        Ok(attribute)
    }
}

/// What an entry begins with.
const ENTRY: &str = "an entry of `#[kernel]` begins with its name, as in `workgroup = 256`";

impl Attribute {
    /// Reports what every kernel states and this one does not, at its name.
    pub fn check_stated(&self, unit: &mut Unit, kernel: &Ident) {
        for (list, what, example) in [
            (&self.grid, "grid", "grid = [rows]"),
            (&self.workgroup, "workgroup", "workgroup = 256"),
        ] {
            if list.is_empty() {
                unit.error(
                    kernel,
                    format!("a kernel states its {what}: `#[kernel({example}, …)]`"),
                );
            }
        }
    }

    fn entry(&mut self, input: ParseStream<'_>, key: &Ident) -> syn::Result<()> {
        match key.to_string().as_str() {
            "grid" => self.grid = axes(input, key, "grid = [rows, ceil_div(cols, 4)]")?,
            "workgroup" => self.workgroup = axes(input, key, "workgroup = [32, 8]")?,
            "resident" => {
                self.resident = axes(input, key, "resident = 4")?;
                if self.resident.len() > 1 {
                    return Err(syn::Error::new(
                        key.span(),
                        "`resident` is one number of workgroups: `resident = 4`",
                    ));
                }
            }
            "requires" => {
                let example = "requires(cols % 4 == 0)";
                let facts = in_parentheses(input, key, example)?;
                let facts = Punctuated::<Expr, Token![,]>::parse_terminated(&facts)?;
                if facts.is_empty() {
                    return Err(syn::Error::new(
                        key.span(),
                        format!("state a fact, `{example}`, or remove the entry"),
                    ));
                }
                self.requires.extend(facts);
            }
            "in_place" => {
                let names = in_parentheses(input, key, "in_place(y, x)")?;
                let names = Punctuated::<Ident, Token![,]>::parse_terminated(&names)
                    .map_err(|error| syn::Error::new(error.span(), IN_PLACE))?;
                let mut names = names.into_iter();
                match (names.next(), names.next(), names.next()) {
                    (Some(first), Some(second), None) => self.in_place.push((first, second)),
                    _ => {
                        return Err(syn::Error::new(key.span(), IN_PLACE));
                    }
                }
            }
            "instances" => {
                let lists = in_parentheses(input, key, INSTANCES)?;
                let as_example = |error: syn::Error| {
                    syn::Error::new(error.span(), format!("list values as in `{INSTANCES}`"))
                };
                let mut group = Vec::new();
                while !lists.is_empty() {
                    group.push(instance_list(&lists).map_err(as_example)?);
                    if !lists.is_empty() {
                        lists.parse::<Token![,]>().map_err(as_example)?;
                    }
                }
                self.instances.push(group);
            }
            "contract_fma" => self.contract_fma = true,
            "approximate" => self.approximate = true,
            "cooperative" => self.cooperative = true,
            "dependent" => self.dependent = true,
            other => {
                return Err(syn::Error::new(
                    key.span(),
                    format!(
                        "`{other}` is no entry of `#[kernel]`; they are grid, workgroup, resident, \
                         requires, instances, in_place, contract_fma, approximate, cooperative, dependent"
                    ),
                ));
            }
        }
        Ok(())
    }
}

const IN_PLACE: &str = "two tensors may be one view: `in_place(y, x)`";

const INSTANCES: &str = "instances(T = [f32, f16], N = [64, 128])";

/// `T = [f32, f16]`.
fn instance_list(input: ParseStream<'_>) -> syn::Result<(Ident, Vec<Expr>)> {
    let name: Ident = input.parse()?;
    input.parse::<Token![=]>()?;
    let values;
    bracketed!(values in input);
    let values = Punctuated::<Expr, Token![,]>::parse_terminated(&values)?;
    Ok((name, values.into_iter().collect()))
}

/// What stands in the parentheses after an entry's name.
fn in_parentheses<'a>(
    input: ParseStream<'a>,
    key: &Ident,
    example: &str,
) -> syn::Result<ParseBuffer<'a>> {
    if !input.peek(syn::token::Paren) {
        return Err(syn::Error::new(
            key.span(),
            format!("`{key}` takes parentheses: `{example}`"),
        ));
    }
    let inside;
    parenthesized!(inside in input);
    Ok(inside)
}

/// `= [a, b]` or `= a`: one to three axes.
fn axes(input: ParseStream<'_>, key: &Ident, example: &str) -> syn::Result<Vec<Expr>> {
    if !input.peek(Token![=]) || input.peek(Token![==]) {
        return Err(syn::Error::new(
            key.span(),
            format!("`{key}` is given by `=`: `{example}`"),
        ));
    }
    input.parse::<Token![=]>()?;
    let axes: Vec<Expr> = match input.parse::<Expr>()? {
        Expr::Array(list) => list.elems.into_iter().collect(),
        single => vec![single],
    };
    if axes.is_empty() || axes.len() > 3 {
        return Err(syn::Error::new(
            key.span(),
            format!(
                "`{key}` has one to three axes, not {}: `{example}`",
                axes.len()
            ),
        ));
    }
    Ok(axes)
}
