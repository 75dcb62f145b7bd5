//! Expands `#[kernel]`.

use proc_macro2::{Ident, TokenStream};
use quote::{ToTokens, quote};
use syn::{Attribute as SynAttribute, Expr, GenericParam, ItemFn, ReturnType};

use crate::attribute::Attribute;
use crate::formula::Names;
use crate::signature::Signature;
use crate::tree::{Formula, Function, Header, InPlace};
use crate::unit::{Unit, free_function};

/// The expansion of `#[kernel(attribute)] item`.
pub fn expand(attribute: TokenStream, item: TokenStream) -> TokenStream {
    let mut function = match free_function(&item, "kernel") {
        Ok(function) => function,
        Err(refusal) => return refusal,
    };
    let mut unit = Unit::default();
    unit.check_attributes(&function);
    let attribute = match syn::parse2::<Attribute>(attribute) {
        Ok(attribute) => Some(attribute),
        Err(error) => {
            unit.push_error(error);
            None
        }
    };
    if let Some(attribute) = &attribute {
        attribute.check_stated(&mut unit, &function.sig.ident);
    }
    check_signature(&mut unit, &function);
    let instances = attribute
        .as_ref()
        .map(|a| instances(&mut unit, a, &function))
        .unwrap_or_default();
    unit.scoped(|unit| {
        let consts = function
            .sig
            .generics
            .const_params()
            .map(|p| p.ident.to_string())
            .collect();
        let signature = unit.kernel_signature(function.sig.inputs.iter(), consts);
        let header = attribute.map(|a| header(unit, a, &function.attrs, &signature));
        let body = unit.block(&mut function.block);
        let encoded = Function {
            name: function.sig.ident.to_string(),
            parameters: signature.parameters.clone(),
            body,
            header,
        };
        emit(unit, &function, &signature, &encoded, &instances)
    })
}

/// One instance: its name and the value of each generic parameter.
struct Instance {
    name: TokenStream,
    generics: Vec<TokenStream>,
}

fn check_signature(unit: &mut Unit, function: &ItemFn) {
    let signature = &function.sig;
    if let ReturnType::Type(_, ty) = &signature.output {
        unit.error(
            ty,
            "a kernel returns nothing; write its results to `&mut Tensor` parameters",
        );
    }
    unit.check_qualifiers(signature, "a kernel");
    for parameter in &signature.generics.params {
        match parameter {
            GenericParam::Lifetime(lifetime) => {
                unit.error(lifetime, "a kernel has no lifetime parameters; remove it");
            }
            GenericParam::Const(constant) => {
                let ty = constant.ty.to_token_stream().to_string();
                if !matches!(ty.as_str(), "u32" | "usize" | "i32" | "bool") {
                    unit.error(
                        &constant.ty,
                        "a kernel's const parameter is u32, usize, i32 or bool",
                    );
                }
                if let Some(default) = &constant.default {
                    unit.error(&default.1, DEFAULTS);
                }
            }
            GenericParam::Type(ty) => {
                if let Some(default) = &ty.default {
                    unit.error(&default.1, DEFAULTS);
                }
            }
        }
    }
}

const DEFAULTS: &str = "a kernel's parameters have no defaults; list the values: `instances(…)`";

/// The instances of every `instances(…)`, each the product of its lists.
fn instances(unit: &mut Unit, attribute: &Attribute, function: &ItemFn) -> Vec<Instance> {
    match attribute.instances.as_slice() {
        [] => product(unit, &[], function),
        groups => {
            let all: Vec<Instance> = groups
                .iter()
                .flat_map(|group| product(unit, group, function))
                .collect();
            let parameters: Vec<_> = function.sig.generics.params.iter().collect();
            let names: Vec<String> = all
                .iter()
                .map(|instance| instance_name(&parameters, &instance.generics))
                .collect();
            for (index, name) in names.iter().enumerate() {
                if groups.len() > 1 && names[..index].contains(name) {
                    unit.error(
                        &function.sig.ident,
                        format!("two of its `instances(…)` have the instance `{name}`"),
                    );
                }
            }
            all
        }
    }
}

fn product(unit: &mut Unit, lists: &[(Ident, Vec<Expr>)], function: &ItemFn) -> Vec<Instance> {
    check_lists(unit, lists, function);
    let mut all = vec![Instance {
        name: quote!(),
        generics: Vec::new(),
    }];
    let mut known = Vec::new();
    for parameter in &function.sig.generics.params {
        let (name, is_type) = match parameter {
            GenericParam::Type(parameter) => (&parameter.ident, true),
            GenericParam::Const(parameter) => (&parameter.ident, false),
            GenericParam::Lifetime(_) => continue,
        };
        known.push(name.to_string());
        let Some((_, values)) = lists.iter().find(|(listed, _)| listed == name) else {
            let example = if is_type { "[f32, f16]" } else { "[64, 128]" };
            unit.error(
                name,
                format!(
                    "list the values of `{name}` in the attribute: `instances({name} = {example})`"
                ),
            );
            continue;
        };
        all = all
            .iter()
            .flat_map(|instance| values.iter().map(move |value| (instance, value)))
            .map(|(instance, value)| {
                let mut next = Instance {
                    name: instance.name.clone(),
                    generics: instance.generics.clone(),
                };
                next.generics.push(generic_argument(value, is_type));
                next
            })
            .collect();
    }
    for (name, _) in lists {
        if !known.contains(&name.to_string()) {
            unit.error(
                name,
                format!("the kernel has no generic parameter `{name}`"),
            );
        }
    }
    all
}

/// No list is empty, none is given twice, and none has a value twice: each would lose an
/// instance or make two of one name.
fn check_lists(unit: &mut Unit, lists: &[(Ident, Vec<Expr>)], function: &ItemFn) {
    for (index, (name, values)) in lists.iter().enumerate() {
        if lists[..index].iter().any(|(earlier, _)| earlier == name) {
            unit.error(
                name,
                format!("the values of `{name}` are listed twice; join the lists"),
            );
        }
        if values.is_empty() {
            unit.error(
                name,
                format!("`{name}` has no values, so that the kernel would have no instance"),
            );
        }
        let is_type = function
            .sig
            .generics
            .type_params()
            .any(|p| p.ident == *name);
        for (at, value) in values.iter().enumerate() {
            if is_type && matches!(value, Expr::Lit(_) | Expr::Unary(_) | Expr::Binary(_)) {
                unit.error(
                    value,
                    format!(
                        "`{name}` is a type: list types, as in `instances({name} = [f32, f16])`"
                    ),
                );
            }
            let text = value.to_token_stream().to_string();
            let is_known = |v: &Expr| v.to_token_stream().to_string() == text;
            if values[..at].iter().any(is_known) {
                unit.error(value, format!("`{text}` is listed twice"));
            }
        }
    }
}

fn generic_argument(value: &Expr, is_type: bool) -> TokenStream {
    match (is_type, value) {
        (true, _) | (false, Expr::Lit(_)) => quote!(#value),
        (false, _) => quote!({ #value }),
    }
}

fn header(
    unit: &mut Unit,
    attribute: Attribute,
    attrs: &[SynAttribute],
    signature: &Signature,
) -> Header {
    let names: &Names = &signature.names;
    let grid = attribute
        .grid
        .iter()
        .map(|e| unit.formula(e, names))
        .collect();
    let fixed = Names {
        consts: names.consts.clone(),
        is_fixed: true,
        ..Names::default()
    };
    let workgroup = attribute
        .workgroup
        .iter()
        .map(|axis| workgroup_axis(unit, axis, &fixed))
        .collect();
    let resident = attribute
        .resident
        .iter()
        .map(|count| unit.formula(count, &fixed))
        .collect();
    let mut requires = Vec::new();
    for fact in &attribute.requires {
        unit.requirements(fact, names, &mut requires);
    }
    let mut in_place = Vec::new();
    for (first, second) in &attribute.in_place {
        if first == second {
            unit.error(
                second,
                format!("`{second}` is one view already; name two parameters: `in_place(y, x)`"),
            );
        }
        let first = position(unit, signature, first);
        let second = position(unit, signature, second);
        if let (Some(first), Some(second)) = (first, second) {
            in_place.push(InPlace { first, second });
        }
    }
    Header {
        doc: first_paragraph(attrs),
        dims: names.dims.clone(),
        grid,
        workgroup,
        resident,
        requires,
        in_place,
        contract_fma: attribute.contract_fma,
        approximate: attribute.approximate,
        cooperative: attribute.cooperative,
        dependent: attribute.dependent,
    }
}

/// The size of a workgroup along an axis; a literal is checked here, a constant when it is built.
fn workgroup_axis(unit: &mut Unit, axis: &Expr, names: &Names) -> Formula {
    let refused_before = unit.refused();
    let size = unit.formula(axis, names);
    if let Formula::Int { value } = size
        && !(1..=1024).contains(&value)
        && unit.refused() == refused_before
    {
        unit.error(
            axis,
            format!("a workgroup has 1 to 1024 threads along an axis, not {value}"),
        );
    }
    size
}

fn position(unit: &mut Unit, signature: &Signature, name: &Ident) -> Option<u32> {
    let found = signature.parameters.iter().position(|parameter| {
        matches!(&parameter.pattern, crate::tree::Pattern::Name { name: known, .. } if name == known)
            && matches!(&parameter.kind, crate::tree::ParameterKind::Tensor { .. })
    });
    if found.is_none() {
        unit.error(
            name,
            format!("`{name}` is no tensor parameter of this kernel"),
        );
    }
    found.map(|index| index as u32)
}

/// The first paragraph of the doc comment, as one line.
fn first_paragraph(attrs: &[SynAttribute]) -> String {
    let mut lines = Vec::new();
    for attr in attrs.iter().filter(|attr| attr.path().is_ident("doc")) {
        if let syn::Meta::NameValue(pair) = &attr.meta
            && let Expr::Lit(literal) = &pair.value
            && let syn::Lit::Str(text) = &literal.lit
        {
            let text = text.value();
            if text.trim().is_empty() && !lines.is_empty() {
                break;
            }
            lines.push(text.trim().to_string());
        }
    }
    lines.join(" ").trim().to_string()
}

fn emit(
    unit: &Unit,
    function: &ItemFn,
    signature: &Signature,
    encoded: &Function,
    instances: &[Instance],
) -> TokenStream {
    let generics = &function.sig.generics;
    let (declared, _, clause) = generics.split_for_impl();
    let (name, block) = (&function.sig.ident, &function.block);
    let (items, bindings) = (&unit.items, &signature.bindings);
    let slots = unit.slot_declarations();
    let describe = unit.describe(encoded);
    let errors = unit.compile_errors();
    let lints: TokenStream = lint_attributes(&function.attrs);
    let module = launcher(function, signature);
    // The body of a refused kernel would only add errors that follow from the first.
    if !errors.is_empty() {
        // A method is in an `impl`, where no module can stand.
        return match function.sig.receiver() {
            Some(_) => errors,
            None => quote!(#module #errors),
        };
    }
    let registration = registration(function, instances);
    let cfg = attributes_named(&function.attrs, &["cfg"]);
    quote! {
        #module
        #cfg
        const _: () = {
            #[allow(clippy::explicit_counter_loop, clippy::needless_range_loop, clippy::redundant_pattern, unused_braces, reason = "loops of kernels count, names of arms are marked as names, and a body may be one loop")]
            #lints
            fn #name #declared (__call: ::iron_ir::build::Call<'_, '_>) #clause {
                #(#items)*
                #slots
                match __call {
                    ::iron_ir::build::Call::Describe(__unit) => *__unit = #describe,
                    ::iron_ir::build::Call::Run(__arguments) => {
                        #bindings
                        #block
                    }
                }
            }
            #registration
        };
    }
}

/// `#[allow]` and its like go to the typed copy.
fn lint_attributes(attrs: &[SynAttribute]) -> TokenStream {
    attributes_named(attrs, &["allow", "expect", "warn", "deny"])
}

fn attributes_named(attrs: &[SynAttribute], names: &[&str]) -> TokenStream {
    attrs
        .iter()
        .filter(|attr| names.iter().any(|name| attr.path().is_ident(name)))
        .map(ToTokens::to_token_stream)
        .collect()
}

fn registration(function: &ItemFn, instances: &[Instance]) -> TokenStream {
    let name = function.sig.ident.to_string();
    let function_name = &function.sig.ident;
    let line = function_name.span().start().line as u32;
    let parameters: Vec<_> = function.sig.generics.params.iter().collect();
    let entries = instances.iter().map(|instance| {
        let generics = &instance.generics;
        let turbofish = if generics.is_empty() {
            quote!()
        } else {
            quote!(::<#(#generics),*>)
        };
        let mut types = Vec::new();
        let mut consts = Vec::new();
        for (parameter, value) in parameters.iter().zip(generics) {
            match parameter {
                GenericParam::Type(parameter) => {
                    let key = parameter.ident.to_string();
                    types.push(
                        quote!((#key, <#value as ::iron_ir::build::KernelType>::SHAPE.scalar())),
                    );
                }
                GenericParam::Const(parameter) => {
                    let key = parameter.ident.to_string();
                    consts.push(quote!((#key, #value as i64)));
                }
                GenericParam::Lifetime(_) => {}
            }
        }
        let name = instance_name(&parameters, generics);
        quote! {
            ::iron_ir::registry::InstanceEntry {
                name: #name,
                types: &[#(#types),*],
                consts: &[#(#consts),*],
                build: || ::iron_ir::build::build(#function_name #turbofish, #name),
                host: |__arguments| #function_name #turbofish (::iron_ir::build::Call::Run(__arguments)),
            }
        }
    });
    quote! {
        ::iron_ir::inventory::submit! {
            ::iron_ir::registry::KernelEntry {
                name: #name,
                module: ::core::module_path!(),
                file: ::core::file!(),
                line: #line,
                instances: &[#(#entries),*],
            }
        }
    }
}

/// `f16-HEAD_DIM=64`: types by their last path segment, consts as name and value.
fn instance_name(parameters: &[&GenericParam], generics: &[TokenStream]) -> String {
    let mut parts = Vec::new();
    for (parameter, value) in parameters.iter().zip(generics) {
        let text = value.to_string();
        match parameter {
            GenericParam::Type(_) => {
                let last = text.rsplit("::").next().unwrap_or_default().trim();
                parts.push(last.to_lowercase());
            }
            GenericParam::Const(parameter) => parts.push(format!("{}={text}", parameter.ident)),
            GenericParam::Lifetime(_) => {}
        }
    }
    parts.join("-")
}

/// The module of the kernel's name: `Args` and `launch`.
fn launcher(function: &ItemFn, signature: &Signature) -> TokenStream {
    let name = &function.sig.ident;
    let text = name.to_string();
    let vis = &function.vis;
    let attrs = function
        .attrs
        .iter()
        .filter(|attr| attr.path().is_ident("doc") || attr.path().is_ident("cfg"));
    let generics = &function.sig.generics;
    let (declared, _, clause) = generics.split_for_impl();
    let (fields, arguments) = (&signature.fields, &signature.arguments);
    let parts = generics
        .params
        .iter()
        .filter_map(|parameter| match parameter {
            GenericParam::Type(parameter) => {
                let ident = &parameter.ident;
                Some(quote!(::iron_ir::build::instance_type::<#ident>()))
            }
            GenericParam::Const(parameter) => {
                let (ident, key) = (&parameter.ident, parameter.ident.to_string());
                Some(quote!(::std::format!("{}={}", #key, #ident)))
            }
            GenericParam::Lifetime(_) => None,
        });
    let has_tensors = !fields.is_empty() && fields.to_string().contains('\'');
    let lifetime = if has_tensors { quote!(<'a>) } else { quote!() };
    let anonymous = if has_tensors { quote!(<'_>) } else { quote!() };
    quote! {
        #(#attrs)*
        #[allow(dead_code, reason = "a kernel may be launched by name alone")]
        #vis mod #name {
            #[allow(unused_imports, reason = "bounds of the generic parameters come from outside")]
            use super::*;

            /// Arguments of a launch, by name.
            pub struct Args #lifetime { #fields }

            /// A launch of the instance that the generic parameters name.
            pub fn launch #declared (__args: Args #anonymous) -> ::iron_ir::launch::LaunchRequest #clause {
                let __parts: &[::std::string::String] = &[#(#parts),*];
                ::iron_ir::build::launch_request(
                    #text,
                    ::core::module_path!(),
                    __parts,
                    ::std::vec![#arguments],
                )
            }
        }
    }
}
