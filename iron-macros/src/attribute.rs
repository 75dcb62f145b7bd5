//! The grammar of `#[kernel(…)]`.

use proc_macro2::{Ident, Span};
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Expr, Token, bracketed, parenthesized};

/// What stands in the attribute.
pub struct Attribute {
    /// `grid = [rows, ceil_div(cols, 4)]`.
    pub grid: Vec<Expr>,
    /// `workgroup = 256` or `[32, 8]`.
    pub workgroup: Vec<Expr>,
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
            requires: Vec::new(),
            instances: Vec::new(),
            in_place: Vec::new(),
            contract_fma: false,
            approximate: false,
            cooperative: false,
            dependent: false,
        };
        while !input.is_empty() {
            attribute.entry(input)?;
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        for (list, example) in [
            (&attribute.grid, "grid = [rows]"),
            (&attribute.workgroup, "workgroup = 256"),
        ] {
            if list.is_empty() {
                let what = example.split(' ').next().unwrap_or_default();
                return Err(syn::Error::new(
                    Span::call_site(),
                    format!("a kernel states its {what}: `#[kernel({example}, …)]`"),
                ));
            }
        }
        Ok(attribute)
    }
}

impl Attribute {
    fn entry(&mut self, input: ParseStream<'_>) -> syn::Result<()> {
        let key: Ident = input.parse()?;
        match key.to_string().as_str() {
            "grid" => self.grid = axes(input, &key)?,
            "workgroup" => self.workgroup = axes(input, &key)?,
            "requires" => {
                let facts;
                parenthesized!(facts in input);
                self.requires
                    .extend(Punctuated::<Expr, Token![,]>::parse_terminated(&facts)?);
            }
            "in_place" => {
                let names;
                parenthesized!(names in input);
                let names = Punctuated::<Ident, Token![,]>::parse_terminated(&names)?;
                let mut names = names.into_iter();
                match (names.next(), names.next(), names.next()) {
                    (Some(first), Some(second), None) => self.in_place.push((first, second)),
                    _ => {
                        return Err(syn::Error::new(
                            key.span(),
                            "two parameters may be one view: `in_place(y, x)`",
                        ));
                    }
                }
            }
            "instances" => {
                let lists;
                parenthesized!(lists in input);
                let mut group = Vec::new();
                while !lists.is_empty() {
                    let name: Ident = lists.parse()?;
                    lists.parse::<Token![=]>()?;
                    let values;
                    bracketed!(values in lists);
                    let values = Punctuated::<Expr, Token![,]>::parse_terminated(&values)?;
                    group.push((name, values.into_iter().collect()));
                    if !lists.is_empty() {
                        lists.parse::<Token![,]>()?;
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
                        "`{other}` is no entry of `#[kernel]`; they are grid, workgroup, requires, \
                         instances, in_place, contract_fma, approximate, cooperative, dependent"
                    ),
                ));
            }
        }
        Ok(())
    }
}

/// `= [a, b]` or `= a`: one to three axes.
fn axes(input: ParseStream<'_>, key: &Ident) -> syn::Result<Vec<Expr>> {
    input.parse::<Token![=]>()?;
    let axes: Vec<Expr> = match input.parse::<Expr>()? {
        Expr::Array(list) => list.elems.into_iter().collect(),
        single => vec![single],
    };
    if axes.is_empty() || axes.len() > 3 {
        return Err(syn::Error::new(
            key.span(),
            format!("`{key}` has one to three axes"),
        ));
    }
    Ok(axes)
}
