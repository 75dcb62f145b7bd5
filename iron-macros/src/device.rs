//! Expands `#[device_fn]` and `#[device_struct]`.

use std::collections::HashMap;

use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote};
use syn::{FnArg, GenericParam, ItemFn, ItemStruct, Pat, ReturnType, Type, WherePredicate};

use crate::names;
use crate::signature::closure_pointer;
use crate::tree::{Function, Parameter, ParameterKind};
use crate::unit::{Unit, at, free_function};

/// The expansion of `#[device_fn] item`.
pub fn expand_function(attribute: TokenStream, item: TokenStream) -> TokenStream {
    let mut function = match free_function(&item, "device_fn") {
        Ok(function) => function,
        Err(refusal) => return refusal,
    };
    let mut unit = Unit::default();
    unit.device_fn = Some(function.sig.ident.clone());
    unit.check_attributes(&function);
    unit.check_qualifiers(&function.sig, "a device function");
    if !attribute.is_empty() {
        unit.error(&attribute, "`#[device_fn]` takes no arguments");
    }
    let name = function.sig.ident.clone();
    if names::find(names::FUNCTIONS, &name.to_string()).is_some() {
        unit.error(
            &name,
            format!("`{name}` is a function of the kernel language; choose another name"),
        );
    }
    if let ReturnType::Type(_, ty) = &function.sig.output
        && let Type::ImplTrait(ty) = &**ty
    {
        unit.error(
            ty,
            "a device function returns a value and no closure; bind it by `let` where it is used",
        );
    }
    unit.scoped(|unit| {
        let closures = Closures::of(&function);
        let mut parameters = Vec::new();
        for input in &function.sig.inputs {
            match input {
                FnArg::Typed(parameter) => {
                    let by_value = !matches!(&*parameter.ty, Type::Reference(_));
                    parameters.push(Parameter {
                        pattern: unit.pattern(&parameter.pat),
                        kind: ParameterKind::Passed { by_value },
                        at: at(name.span()),
                    });
                }
                FnArg::Receiver(receiver) => {
                    unit.error(
                        receiver,
                        "a device function has no `self`; pass the value by name",
                    );
                }
            }
        }
        let body = unit.block(&mut function.block);
        let encoded = Function {
            name: name.to_string(),
            parameters,
            body,
            header: None,
        };
        emit(unit, &function, &closures, &encoded)
    })
}

/// The type parameters and argument types that are closures, as function pointers.
struct Closures {
    by_name: HashMap<String, Type>,
}

impl Closures {
    fn of(function: &ItemFn) -> Closures {
        let mut by_name = HashMap::new();
        for parameter in function.sig.generics.type_params() {
            if let Some(pointer) = closure_pointer(&parameter.bounds) {
                by_name.insert(parameter.ident.to_string(), pointer);
            }
        }
        if let Some(clause) = &function.sig.generics.where_clause {
            for predicate in &clause.predicates {
                if let WherePredicate::Type(predicate) = predicate
                    && let Type::Path(path) = &predicate.bounded_ty
                    && let Some(ident) = path.path.get_ident()
                    && let Some(pointer) = closure_pointer(&predicate.bounds)
                {
                    by_name.insert(ident.to_string(), pointer);
                }
            }
        }
        Closures { by_name }
    }
}

fn emit(unit: &Unit, function: &ItemFn, closures: &Closures, encoded: &Function) -> TokenStream {
    // The body of a refused function would only add errors that follow from the first; its
    // callers are checked against the signature, where that is no part of what is refused.
    let is_refused = !unit.is_clean();
    let gives_closure = matches!(&function.sig.output, ReturnType::Type(_, ty) if matches!(&**ty, Type::ImplTrait(_)));
    if is_refused && (function.sig.receiver().is_some() || gives_closure) {
        return unit.compile_errors();
    }
    let ItemFn {
        attrs, vis, sig, ..
    } = function;
    let block = match is_refused {
        true => &syn::parse_quote!({ ::core::unreachable!() }),
        false => &*function.block,
    };
    let name = &sig.ident;
    let types: Vec<Type> = sig
        .inputs
        .iter()
        .filter_map(|input| match input {
            FnArg::Typed(parameter) => Some((*parameter.ty).clone()),
            FnArg::Receiver(_) => None,
        })
        .collect();
    // `impl Fn(A) -> R` becomes a named parameter of the hidden functions.
    let mut extra = Vec::new();
    let mut pointers = Vec::new();
    let named: Vec<Type> = types
        .iter()
        .map(|ty| match ty {
            Type::ImplTrait(ty) => {
                let fresh = format_ident!("__F{}", extra.len());
                let bounds = &ty.bounds;
                extra.push(quote!(#fresh: #bounds));
                if let Some(pointer) = closure_pointer(bounds) {
                    pointers.push(quote!(#pointer));
                }
                syn::parse_quote!(#fresh)
            }
            other => other.clone(),
        })
        .collect();
    let output: Type = match &sig.output {
        ReturnType::Default => syn::parse_quote!(()),
        ReturnType::Type(_, ty) => (**ty).clone(),
    };
    let is_closure = |ident: &Ident| closures.by_name.contains_key(&ident.to_string());
    // Parameters of the marker type, and those of closures, which only functions have.
    let mut own = Vec::new();
    let mut own_names = Vec::new();
    let mut own_uses = Vec::new();
    let mut closure_params = Vec::new();
    let mut closure_pointers = Vec::new();
    for parameter in &sig.generics.params {
        match parameter {
            GenericParam::Type(ty) if is_closure(&ty.ident) => {
                closure_params.push(quote!(#ty));
                closure_pointers.push(&closures.by_name[&ty.ident.to_string()]);
            }
            GenericParam::Type(ty) => {
                let ident = &ty.ident;
                own.push(quote!(#ty));
                own_names.push(quote!(#ident));
                own_uses.push(quote!(#ident));
            }
            GenericParam::Const(constant) => {
                let ident = &constant.ident;
                own.push(quote!(#constant));
                own_names.push(quote!(#ident));
            }
            GenericParam::Lifetime(lifetime) => closure_params.insert(0, quote!(#lifetime)),
        }
    }
    let clause = &sig.generics.where_clause;
    let (own_clause, closure_clause) = split_clause(clause.as_ref(), &is_closure);
    let plain: Vec<TokenStream> = sig
        .generics
        .params
        .iter()
        .filter_map(|parameter| match parameter {
            GenericParam::Type(ty) if !is_closure(&ty.ident) => {
                let ident = &ty.ident;
                Some(quote!(#ident))
            }
            GenericParam::Const(constant) => Some(quote!(#constant)),
            _ => None,
        })
        .collect();
    let hidden: Vec<TokenStream> = closure_params
        .iter()
        .cloned()
        .chain(extra.iter().cloned())
        .collect();
    let all_pointers: Vec<TokenStream> = closure_pointers
        .iter()
        .map(|ty| quote!(#ty))
        .chain(pointers.iter().cloned())
        .collect();
    let describe = match is_refused {
        true => quote!(::core::unreachable!()),
        false => unit.describe(encoded),
    };
    let slots = unit.slot_declarations();
    let items = if is_refused { &[][..] } else { &unit.items };
    let errors = unit.compile_errors();
    let unused = is_refused.then(|| quote!(#[allow(unused_variables, unused_mut)]));
    let marker = if own_names.is_empty() {
        quote!(#name)
    } else {
        quote!(#name<#(#own_names),*>)
    };
    let turbofish = if all_pointers.is_empty() {
        quote!()
    } else {
        quote!(::<#(#all_pointers),*>)
    };
    let patterns: Vec<&Pat> = sig
        .inputs
        .iter()
        .filter_map(|input| match input {
            FnArg::Typed(parameter) => Some(&*parameter.pat),
            FnArg::Receiver(_) => None,
        })
        .collect();
    // Without slots the author's function stands as it is; with them, the body moves to one
    // place that both runs it and tells the slots' types.
    let (body, unit_body) = if unit.has_slots() && !is_refused {
        let arguments: Vec<Ident> = (0..patterns.len())
            .map(|i| format_ident!("__argument{i}"))
            .collect();
        let mut outer = sig.clone();
        for (input, argument) in outer.inputs.iter_mut().zip(&arguments) {
            if let FnArg::Typed(parameter) = input {
                *parameter.pat = syn::parse_quote!(#argument);
            }
        }
        let both = quote! {
            #[allow(clippy::too_many_arguments, clippy::type_complexity, reason = "as the author's function")]
            #[allow(clippy::explicit_counter_loop, clippy::needless_range_loop, clippy::redundant_pattern, unused_braces, reason = "loops of kernels count, names of arms are marked as names, and a body may be one loop")]
            fn __both<#(#hidden),*>(
                __arguments: ::core::option::Option<(#(#named,)*)>,
            ) -> ::core::result::Result<#output, ::iron_ir::build::Unit> #closure_clause {
                #(#items)*
                #slots
                match __arguments {
                    ::core::option::Option::Some((#(#patterns,)*)) => {
                        ::core::result::Result::Ok((move || -> #output #block)())
                    }
                    ::core::option::Option::None => ::core::result::Result::Err(#describe),
                }
            }
        };
        let run = quote! {
            #(#attrs)*
            #vis #outer {
                match #name::<#(#own_names),*>::__both(::core::option::Option::Some((#(#arguments,)*))) {
                    ::core::result::Result::Ok(value) => value,
                    ::core::result::Result::Err(_) => ::core::unreachable!(),
                }
            }
        };
        let unit_body = quote! {
            #both
            fn __unit() -> ::iron_ir::build::Unit {
                match Self::__both #turbofish (::core::option::Option::None) {
                    ::core::result::Result::Err(unit) => unit,
                    ::core::result::Result::Ok(_) => ::core::unreachable!(),
                }
            }
        };
        (run, unit_body)
    } else {
        let run = quote! {
            #[allow(clippy::explicit_counter_loop, clippy::needless_range_loop, clippy::redundant_pattern, unused_braces, reason = "loops of kernels count, names of arms are marked as names, and a body may be one loop")]
            #unused
            #(#attrs)*
            #vis #sig {
                #(#items)*
                #block
            }
        };
        let unit_body = quote! {
            fn __unit() -> ::iron_ir::build::Unit {
                #(#items)*
                #describe
            }
        };
        (run, unit_body)
    };
    quote! {
        #body
        #[doc(hidden)]
        #[allow(non_camel_case_types, reason = "carries the function's name in the namespace of types")]
        #vis struct #name<#(#plain),*> { marker: ::core::marker::PhantomData<fn() -> (#(#own_uses,)*)> }
        impl<#(#own),*> #marker #own_clause {
            #[doc(hidden)]
            #[allow(clippy::type_complexity, reason = "as the author's function")]
            #vis fn see<#(#hidden,)* __G: Fn(#(#named),*) -> #output>(
                _: ::iron_ir::build::Slot<Self>,
                function: __G,
            ) -> __G #closure_clause {
                function
            }
            #[doc(hidden)]
            #vis fn entry(_: ::iron_ir::build::Slot<Self>) -> fn() -> ::iron_ir::build::Unit {
                Self::__unit
            }
            #unit_body
        }
        #errors
    }
}

/// The predicates of ordinary parameters, and those of closures.
fn split_clause(
    clause: Option<&syn::WhereClause>,
    is_closure: &impl Fn(&Ident) -> bool,
) -> (TokenStream, TokenStream) {
    let (mut own, mut closures) = (Vec::new(), Vec::new());
    for predicate in clause.iter().flat_map(|clause| &clause.predicates) {
        let of_closure = matches!(predicate, WherePredicate::Type(predicate)
            if matches!(&predicate.bounded_ty, Type::Path(path)
                if path.path.get_ident().is_some_and(is_closure)));
        if of_closure { &mut closures } else { &mut own }.push(quote!(#predicate));
    }
    let clause = |list: Vec<TokenStream>| match list.is_empty() {
        true => quote!(),
        false => quote!(where #(#list),*),
    };
    (clause(own), clause(closures))
}

/// The expansion of `#[device_struct] item`.
pub fn expand_struct(attribute: TokenStream, item: TokenStream) -> TokenStream {
    let structure: ItemStruct = match syn::parse2(item.clone()) {
        Ok(structure) => structure,
        Err(error) => {
            let message = "`#[device_struct]` stands on a struct; an enum has no form on devices: \
                           use an integer and constants";
            let error = syn::Error::new(error.span(), message).to_compile_error();
            return quote!(#item #error);
        }
    };
    let mut unit = Unit::default();
    for attribute in structure.fields.iter().flat_map(|field| &field.attrs) {
        if attribute.path().is_ident("cfg") || attribute.path().is_ident("cfg_attr") {
            unit.error(
                attribute,
                "a field that may be absent has no place on devices; put the attribute on the struct",
            );
        }
    }
    if !attribute.is_empty() {
        unit.error(&attribute, "`#[device_struct]` takes no arguments");
    }
    let name = &structure.ident;
    let text = name.to_string();
    let mut generics = structure.generics.clone();
    for parameter in generics.type_params_mut() {
        parameter
            .bounds
            .push(syn::parse_quote!(::iron_ir::build::KernelType));
    }
    let (declared, used, clause) = generics.split_for_impl();
    let fields = structure.fields.iter().enumerate().map(|(index, field)| {
        let key = field
            .ident
            .as_ref()
            .map_or_else(|| index.to_string(), Ident::to_string);
        let ty = &field.ty;
        quote!((#key, <#ty as ::iron_ir::build::KernelType>::SHAPE))
    });
    let errors = unit.compile_errors();
    quote! {
        #[derive(Clone, Copy)]
        #structure
        impl #declared ::iron_ir::build::KernelType for #name #used #clause {
            const SHAPE: ::iron_ir::build::TypeShape =
                ::iron_ir::build::TypeShape::Struct(#text, &[#(#fields),*]);
        }
        #errors
    }
}
