//! Reads the parameters of a kernel.

use proc_macro2::{Ident, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{
    AngleBracketedGenericArguments, Expr, FnArg, GenericArgument, Pat, PathArguments, Type,
    TypePath,
};

use crate::formula::Names;
use crate::pattern::is_constant_name;
use crate::tree::{At, Formula, Parameter, ParameterKind, Pattern};
use crate::unit::{PRIMITIVES, Unit, at};

/// The parameters of a kernel, read.
#[derive(Default)]
pub struct Signature {
    /// For the tree.
    pub parameters: Vec<Parameter>,
    /// The names that the contract and the body may use.
    pub names: Names,
    /// Dimensions with the author's tokens.
    pub dim_tokens: Vec<Ident>,
    /// Statements that bind the parameters in the typed copy, from `__arguments`.
    pub bindings: TokenStream,
    /// Fields of the launcher's `Args`.
    pub fields: TokenStream,
    /// Entries of the launcher's list of arguments.
    pub arguments: TokenStream,
}

impl Unit {
    /// The parameters of a kernel; `consts` are its const parameters.
    pub fn kernel_signature<'a>(
        &mut self,
        inputs: impl Iterator<Item = &'a FnArg>,
        consts: Vec<String>,
    ) -> Signature {
        let mut signature = Signature::default();
        signature.names.consts = consts;
        let inputs: Vec<&FnArg> = inputs.collect();
        for (index, input) in inputs.iter().enumerate() {
            if let FnArg::Typed(parameter) = input {
                self.declare_names(&mut signature, index, parameter);
            }
        }
        for (index, input) in inputs.into_iter().enumerate() {
            match input {
                FnArg::Typed(parameter) => self.kernel_parameter(&mut signature, index, parameter),
                FnArg::Receiver(receiver) => {
                    self.error(receiver, "a kernel has no `self`; it is a free function");
                }
            }
        }
        for (index, dim) in signature.dim_tokens.iter().enumerate() {
            self.declare(dim);
            signature.bindings.extend(quote! {
                #[allow(unused_variables, reason = "a dimension may serve the contract alone")]
                let #dim: u32 = __arguments.dim(#index);
            });
        }
        signature
    }

    /// Declares the dimensions and the integer scalars, which any formula may use.
    fn declare_names(&mut self, signature: &mut Signature, index: usize, parameter: &syn::PatType) {
        match &*parameter.ty {
            Type::Reference(reference) => {
                let Ok((.., dims)) = tensor_type(&reference.elem) else {
                    return;
                };
                for dim in &dims {
                    if let Expr::Path(path) = dim
                        && let Some(name) = path.path.get_ident()
                        && self.declares_dim(name, &signature.names)
                    {
                        signature.names.dims.push(name.to_string());
                        signature.dim_tokens.push(name.clone());
                    }
                }
            }
            ty => {
                if let (Some(known), Pat::Ident(name)) = (scalar_name(ty), &*parameter.pat)
                    && known != "f32"
                {
                    signature
                        .names
                        .scalars
                        .push((name.ident.to_string(), index as u32));
                }
            }
        }
    }

    fn declares_dim(&self, name: &Ident, names: &Names) -> bool {
        let name = name.to_string();
        !names.dims.contains(&name) && !names.consts.contains(&name) && !is_constant_name(&name)
    }

    fn kernel_parameter(
        &mut self,
        signature: &mut Signature,
        index: usize,
        parameter: &syn::PatType,
    ) {
        let Pat::Ident(pattern) = &*parameter.pat else {
            self.error(&parameter.pat, "a kernel's parameter is a name");
            return;
        };
        let name = &pattern.ident;
        let text = name.to_string();
        if signature.names.dims.contains(&text) {
            self.error(
                name,
                format!("`{name}` is a dimension's name too; rename one of the two"),
            );
        }
        let is_taken = |known: &Parameter| matches!(&known.pattern, Pattern::Name { name, .. } if *name == text);
        if signature.parameters.iter().any(is_taken) {
            self.error(name, format!("two parameters have the name `{name}`"));
            return;
        }
        if let Some(token) = &pattern.mutability {
            self.error(
                token,
                "a kernel's parameter is not `mut`; copy it: `let mut x = x;`",
            );
        }
        self.declare(name);
        let place = at(name.span());
        let kind = match &*parameter.ty {
            Type::Reference(reference) => self.tensor(signature, index, name, reference),
            ty => self.scalar(signature, index, name, ty),
        };
        let Some(kind) = kind else {
            let ty = &parameter.ty;
            signature
                .bindings
                .extend(quote!(let #name: #ty = ::core::unreachable!();));
            return;
        };
        signature.parameters.push(Parameter {
            pattern: Pattern::Name {
                name: name.to_string(),
                mutable: false,
                at: At { ..place },
            },
            kind,
            at: place,
        });
    }

    fn scalar(
        &mut self,
        signature: &mut Signature,
        index: usize,
        name: &Ident,
        ty: &Type,
    ) -> Option<ParameterKind> {
        if let Type::Path(path) = ty
            && let Some(last) = path.path.segments.last()
            && matches!(last.ident.to_string().as_str(), "Tensor" | "StridedTensor")
        {
            self.error(ty, BY_REFERENCE);
            return None;
        }
        if scalar_name(ty).is_none() {
            self.error(
                ty,
                "a kernel's parameter is `&Tensor<T, (dims)>`, `&mut Tensor<…>`, \
                 `&StridedTensor<…>` or a scalar: i32, u32, i64, u64, usize, f32",
            );
            return None;
        };
        let span = name.span();
        signature
            .bindings
            .extend(quote_spanned!(span=> let #name: #ty = __arguments.scalar(#index);));
        let doc = format!("The scalar `{name}`.");
        signature
            .fields
            .extend(quote!(#[doc = #doc] pub #name: #ty,));
        signature
            .arguments
            .extend(quote!(::iron_ir::build::scalar_argument(__args.#name),));
        Some(ParameterKind::Scalar { ty: self.ty(ty) })
    }

    fn tensor(
        &mut self,
        signature: &mut Signature,
        index: usize,
        name: &Ident,
        reference: &syn::TypeReference,
    ) -> Option<ParameterKind> {
        let mutable = reference.mutability.is_some();
        let (holder, arguments, scalar, dims) = match tensor_type(&reference.elem) {
            Ok(parts) => parts,
            Err(error) => {
                self.push_error(error);
                return None;
            }
        };
        let shape: Vec<Formula> = dims
            .iter()
            .map(|dim| self.formula(dim, &signature.names))
            .collect();
        let strided = holder == "StridedTensor";
        let rank = shape.len();
        let method = match (strided, mutable) {
            (false, false) => "tensor",
            (false, true) => "tensor_mut",
            (true, false) => "strided",
            (true, true) => "strided_mut",
        };
        let method = Ident::new(method, scalar.span());
        let object = match mutable {
            false => quote!(&'a dyn ::iron_ir::launch::AsTensorArg),
            true => quote!(&'a mut dyn ::iron_ir::launch::AsTensorArg),
        };
        let span = name.span();
        let element_span = scalar.span();
        let value = quote_spanned!(element_span=> __arguments.#method(#index));
        // From `&` to `>` in the author's places, so that what rustc proposes replaces all of it.
        let (and, word) = (&reference.and_token, &reference.mutability);
        let (open, close) = (arguments.lt_token, arguments.gt_token);
        let ty = quote!(#and #word #holder #open #scalar, #rank #close);
        signature
            .bindings
            .extend(quote_spanned!(span=> let #name: #ty = #value;));
        let doc = format!("The tensor `{name}`.");
        signature
            .fields
            .extend(quote!(#[doc = #doc] pub #name: #object,));
        signature.arguments.extend(quote! {
            ::iron_ir::launch::Argument::Tensor(
                ::iron_ir::launch::AsTensorArg::tensor_arg(&*__args.#name)
            ),
        });
        let scalar = self.ty(&scalar);
        Some(ParameterKind::Tensor {
            scalar,
            shape,
            mutable,
            strided,
        })
    }
}

const BY_REFERENCE: &str = "a kernel takes tensors by reference: `&Tensor<T, (rows, cols)>`";

/// The name of a type that a kernel's scalar parameter may have.
fn scalar_name(ty: &Type) -> Option<String> {
    let Type::Path(path) = ty else { return None };
    let name = path.path.get_ident()?.to_string();
    let allowed = ["i32", "u32", "i64", "u64", "usize", "f32"];
    allowed.contains(&name.as_str()).then_some(name)
}

/// `Tensor<T, (rows, cols)>`: the holder, what stands in its brackets, the element type and the
/// dimensions.
fn tensor_type(
    ty: &Type,
) -> syn::Result<(Ident, &AngleBracketedGenericArguments, Type, Vec<Expr>)> {
    let refuse = |tokens: &dyn ToTokens, message: String| {
        Err(syn::Error::new_spanned(tokens.to_token_stream(), message))
    };
    let Type::Path(path) = ty else {
        return refuse(&ty, BY_REFERENCE.into());
    };
    let Some(segment) = path.path.segments.last() else {
        return refuse(&ty, BY_REFERENCE.into());
    };
    let holder = segment.ident.to_string();
    if PRIMITIVES.contains(&holder.as_str()) {
        return refuse(
            &ty,
            "a scalar parameter is passed by value; remove `&`".into(),
        );
    }
    if holder != "Tensor" && holder != "StridedTensor" {
        let message = format!(
            "`{holder}` is no parameter of a kernel; use `Tensor<T, (dims)>` or `StridedTensor<T, (dims)>`"
        );
        return refuse(&ty, message);
    }
    let form = "write element type and dimensions: `Tensor<T, (rows, cols)>`";
    let PathArguments::AngleBracketed(arguments) = &segment.arguments else {
        return refuse(&segment, form.into());
    };
    let mut each = arguments.args.iter();
    match (each.next(), each.next(), each.next()) {
        (Some(GenericArgument::Type(scalar)), Some(dims), None) => {
            let holder = segment.ident.clone();
            Ok((holder, arguments, scalar.clone(), dimensions(dims)?))
        }
        _ => refuse(&segment, form.into()),
    }
}

/// `(rows, cols)`, `(rows)`, or `{ (rows, cols / 32) }` where a dimension is an expression.
fn dimensions(argument: &GenericArgument) -> syn::Result<Vec<Expr>> {
    let message = "write the dimensions as a tuple of names, `(rows, cols)`; where one is a \
                   number or an expression, in braces: `{ (rows, cols / 32) }`";
    let name = |ty: &Type| match ty {
        Type::Path(TypePath { qself, path, .. }) => Ok(Expr::Path(syn::ExprPath {
            attrs: Vec::new(),
            qself: qself.clone(),
            path: path.clone(),
        })),
        other => Err(syn::Error::new_spanned(other, message)),
    };
    match argument {
        GenericArgument::Type(Type::Tuple(tuple)) => tuple.elems.iter().map(name).collect(),
        GenericArgument::Type(Type::Paren(inner)) => Ok(vec![name(&inner.elem)?]),
        GenericArgument::Const(Expr::Block(block)) => match block.block.stmts.as_slice() {
            [syn::Stmt::Expr(Expr::Tuple(tuple), None)] => {
                Ok(tuple.elems.iter().cloned().collect())
            }
            [syn::Stmt::Expr(Expr::Paren(single), None)] => Ok(vec![(*single.expr).clone()]),
            _ => Err(syn::Error::new_spanned(&block.block, message)),
        },
        other => Err(syn::Error::new_spanned(other, message)),
    }
}

/// Whether a bound or a type is a closure's: `Fn(f32) -> f32`, as a function pointer.
pub fn closure_pointer<'a>(
    bounds: impl IntoIterator<Item = &'a syn::TypeParamBound>,
) -> Option<Type> {
    bounds.into_iter().find_map(|bound| {
        let syn::TypeParamBound::Trait(bound) = bound else {
            return None;
        };
        let last = bound.path.segments.last()?;
        let PathArguments::Parenthesized(call) = &last.arguments else {
            return None;
        };
        let (inputs, output) = (&call.inputs, &call.output);
        let span = last.span();
        syn::parse2(quote_spanned!(span=> fn(#inputs) #output)).ok()
    })
}
