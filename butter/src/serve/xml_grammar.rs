//! Grammars of calls of tools as XML (see [`super::xml_call`]): what a function's schema says of
//! its arguments, held while they are written.
//!
//! Texts stand there without quotes, so that their `enum`, `const`, `pattern`, `minLength` and
//! `maxLength` become regular expressions; other values are JSON of their schema. What a schema
//! says and a grammar cannot hold is refused.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::{Value as Json, json};

use super::rebase::rebased;
use super::xml_call::{
    self, Kind, MOST_REFERENCES, PARAMETER_END, ParameterKinds, kind_of, types_of,
};

/// Where a property's schema finds the schema that it is part of.
const WHOLE: &str = "x-whole";
/// Alternatives of one function that `anyOf` and `oneOf` may make.
const MOST_SHAPES: usize = 32;
/// Keys that say something of objects which a list of parameters cannot hold.
const OF_OBJECTS: [&str; 11] = [
    "const",
    "enum",
    "patternProperties",
    "propertyNames",
    "minProperties",
    "maxProperties",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "not",
    "if",
];

/// A Lark grammar of one call of one of the functions, each with the JSON schema of its arguments:
/// the properties that it names, in its order, those that are required always. The error says
/// which function's schema cannot be held, and why.
pub fn grammar(functions: &[(String, Json)]) -> Result<String, (String, String)> {
    let names: Vec<String> = (0..functions.len()).map(|i| format!("call_{i}")).collect();
    let mut grammar = format!(
        "start: \"<tool_call>\\n\" call \"\\n</tool_call>\"\ncall: {}\n\
         text: some_text \"\\n\"\nsome_text[suffix=\"{PARAMETER_END}\"]: /(?s:.*)/\n",
        names.join(" | ")
    );
    let kinds = ParameterKinds::new(functions);
    for (rule, (name, schema)) in names.iter().zip(functions) {
        let rules = function_rules(rule, name, schema, &kinds);
        grammar += &rules.map_err(|problem| (name.clone(), problem))?;
    }
    Ok(grammar)
}

/// The rules of a call of one function, the first of which is `rule`.
fn function_rules(
    rule: &str,
    name: &str,
    schema: &Json,
    kinds: &ParameterKinds,
) -> Result<String, String> {
    let shapes = shapes(schema, schema, 0)?;
    let alternatives: Vec<String> = (0..shapes.len()).map(|i| format!("{rule}_{i}")).collect();
    let mut rules = format!("{rule}: {}\n", alternatives.join(" | "));
    let opening = json!(format!("<function={name}>\n"));
    for (rule, shape) in alternatives.iter().zip(&shapes) {
        let mut parameters = String::new();
        let mut values = String::new();
        for (i, (key, schemas)) in shape.properties.iter().enumerate() {
            let is_required = shape.required.contains(key);
            if !is_required && schemas.contains(&&Json::Bool(false)) {
                continue;
            }
            if key.is_empty() || key.contains(['<', '>', '\n']) {
                return Err(format!(
                    "the property {} cannot be written in this model's calls",
                    json!(key)
                ));
            }
            let optional = if is_required { "" } else { "?" };
            write!(parameters, " {rule}_{i}{optional}").expect("a String takes all");
            let property = match schemas.as_slice() {
                [one] => (*one).clone(),
                several => json!({"allOf": several}),
            };
            if kind_of(&property, schema) != kinds.kind(name, key) {
                return Err(format!(
                    "the property {} has values of other types in other alternatives, which this \
                     model's calls do not tell apart",
                    json!(key)
                ));
            }
            let opening = json!(format!("<parameter={key}>\n"));
            let terminal = format!("{}_{i}", rule.to_uppercase());
            let (value, more) = value_rule(&property, schema, &terminal)
                .map_err(|problem| format!("of the property {}: {problem}", json!(key)))?;
            writeln!(values, "{rule}_{i}: {opening} {value}\n{more}").expect("a String takes all");
        }
        writeln!(
            rules,
            "{rule}: {opening}{parameters} \"</function>\"\n{values}"
        )
        .expect("a String takes all");
    }
    Ok(rules)
}

/// The parameters of one way to call a function.
#[derive(Clone, Default)]
struct Shape<'s> {
    /// Each with the schemas that all hold.
    properties: Vec<(&'s str, Vec<&'s Json>)>,
    required: BTreeSet<&'s str>,
}

impl<'s> Shape<'s> {
    fn property(&mut self, key: &'s str) -> &mut Vec<&'s Json> {
        let found = self.properties.iter().position(|(known, _)| *known == key);
        let at = found.unwrap_or_else(|| {
            self.properties.push((key, Vec::new()));
            self.properties.len() - 1
        });
        &mut self.properties[at].1
    }

    fn and(&self, other: &Shape<'s>) -> Shape<'s> {
        let mut both = self.clone();
        for (key, schemas) in &other.properties {
            both.property(key).extend(schemas);
        }
        both.required.extend(&other.required);
        both
    }
}

/// The ways to write an object of a schema within the schema `root`.
fn shapes<'s>(schema: &'s Json, root: &'s Json, depth: usize) -> Result<Vec<Shape<'s>>, String> {
    let Json::Object(map) = schema else {
        return match schema {
            Json::Bool(true) => Ok(vec![Shape::default()]),
            other => Err(format!("{other} is no schema of an object")),
        };
    };
    if depth > MOST_REFERENCES {
        return Err("the schema refers to itself".to_owned());
    }
    let names_object = match &schema["type"] {
        Json::Null => true,
        Json::Array(types) => types.contains(&json!("object")),
        one => one == "object",
    };
    if !names_object {
        return Err(format!("arguments are an object, not {}", schema["type"]));
    }
    if let Some(key) = OF_OBJECTS.into_iter().find(|key| map.contains_key(*key)) {
        return Err(format!(
            "`{key}` of an object cannot be held in this model's calls"
        ));
    }
    let mut own = Shape::default();
    for (key, property) in schema["properties"].as_object().into_iter().flatten() {
        own.property(key).push(property);
    }
    for key in schema["required"].as_array().into_iter().flatten() {
        if let Some(key) = key.as_str() {
            own.required.insert(key);
            own.property(key);
        }
    }
    let mut all = vec![own];
    let mut hold = |choices: Vec<Shape<'s>>| {
        let pairs = all
            .iter()
            .flat_map(|a| choices.iter().map(move |b| a.and(b)));
        all = pairs.collect();
        let count = all.len();
        (count <= MOST_SHAPES)
            .then_some(())
            .ok_or_else(|| format!("`anyOf` and `oneOf` make {count} shapes of arguments, at most {MOST_SHAPES} can be held"))
    };
    if let Some(referred) = referred(schema, root)? {
        hold(shapes(referred, root, depth + 1)?)?;
    }
    for part in schema["allOf"].as_array().into_iter().flatten() {
        hold(shapes(part, root, depth + 1)?)?;
    }
    for key in ["anyOf", "oneOf"] {
        if let Some(choices) = schema[key].as_array() {
            let mut any = Vec::new();
            for choice in choices {
                any.extend(shapes(choice, root, depth + 1)?);
            }
            hold(any)?;
        }
    }
    Ok(all)
}

/// What a schema refers to; one that refers to nothing that is there is refused.
fn referred<'s>(schema: &Json, root: &'s Json) -> Result<Option<&'s Json>, String> {
    match (schema["$ref"].as_str(), xml_call::referred(schema, root)) {
        (Some(target), None) => Err(format!("the reference {} leads nowhere", json!(target))),
        (_, found) => Ok(found),
    }
}

/// A value and what closes it, and the rules that it needs, one of which is `terminal`.
fn value_rule(property: &Json, root: &Json, terminal: &str) -> Result<(String, String), String> {
    let end = "\"\\n</parameter>\\n\"";
    if kind_of(property, root) == Kind::Json {
        let mut schema = rebased(property, &format!("/{WHOLE}"));
        if let Json::Object(map) = &mut schema {
            map.insert(WHOLE.to_owned(), rebased(root, &format!("/{WHOLE}")));
            let compact = json!({"whitespace_flexible": false});
            map.insert("x-guidance".to_owned(), compact);
        }
        return Ok((format!("%json {schema} {end}"), String::new()));
    }
    Ok(match text(property, root, 0)? {
        None => ("text".to_owned(), String::new()),
        Some(expression) => {
            let marker = r"~/(?s:.*)<\/parameter>(?s:.*)/";
            let rule = format!("{terminal}: (({expression}) & {marker}) {end}\n");
            (terminal.to_owned(), rule)
        }
    })
}

/// The expression of the texts that a schema allows, with the word `null` where it allows that;
/// `None` if it allows all.
fn text(schema: &Json, root: &Json, depth: usize) -> Result<Option<String>, String> {
    if depth > MOST_REFERENCES {
        return Err("the schema refers to itself".to_owned());
    }
    if schema == &Json::Bool(false) {
        return Err("it allows no value".to_owned());
    }
    let types = types_of(schema, root, depth);
    let allows = |name: &str| types.as_ref().is_none_or(|types| types.contains(name));
    if let Some(key) = ["not", "if"]
        .into_iter()
        .find(|key| schema.get(*key).is_some())
    {
        return Err(format!(
            "`{key}` of a text cannot be held in this model's calls"
        ));
    }
    let mut parts = Vec::new();
    let listed = schema["enum"].as_array().into_iter().flatten();
    let listed: Vec<&Json> = listed.chain(schema.get("const")).collect();
    if !listed.is_empty() {
        let mut literals = Vec::new();
        for value in listed {
            match value {
                Json::Null if allows("null") => literals.push(json!("null").to_string()),
                Json::String(text) if text.contains(PARAMETER_END) => {
                    return Err(format!("{value} cannot be written in this model's calls"));
                }
                Json::String(_) => literals.push(value.to_string()),
                _ => {}
            }
        }
        if literals.is_empty() {
            return Err("no text is among its values".to_owned());
        }
        parts.push(literals.join(" | "));
    }
    let mut shape = Vec::new();
    match schema.get("pattern") {
        None => {}
        Some(Json::String(pattern)) => shape.push(format!("/{}/", whole_text(pattern)?)),
        Some(other) => return Err(format!("`pattern` is {other}, not a text")),
    }
    let bound = |key: &str| match schema.get(key) {
        None => Ok(None),
        Some(value) => match value.as_u64() {
            Some(bound) => Ok(Some(bound)),
            None => Err(format!("`{key}` is {value}, not a number of characters")),
        },
    };
    match (bound("minLength")?, bound("maxLength")?) {
        (None, None) => {}
        (least, None) => shape.push(format!("/(?s:.){{{},}}/", least.unwrap_or(0))),
        (least, Some(most)) => {
            shape.push(format!("/(?s:.){{{},{most}}}/", least.unwrap_or(0)));
        }
    }
    if !shape.is_empty() {
        let text = format!("({})", shape.join(" & "));
        let allows_null = types.as_ref().is_some_and(|types| types.contains("null"));
        parts.push(if allows_null {
            format!("{text} | \"null\"")
        } else {
            text
        });
    }
    if let Some(referred) = referred(schema, root)? {
        parts.extend(text(referred, root, depth + 1)?);
    }
    for part in schema["allOf"].as_array().into_iter().flatten() {
        parts.extend(text(part, root, depth + 1)?);
    }
    for key in ["anyOf", "oneOf"] {
        let choices = schema[key].as_array().into_iter().flatten();
        let mut any = Vec::new();
        let mut allows_all = false;
        for choice in choices {
            if let Some(types) = types_of(choice, root, depth)
                && !types.contains("string")
            {
                // A text is none of these, but the word for nothing is.
                any.extend(types.contains("null").then(|| "\"null\"".to_owned()));
                continue;
            }
            let expression = text(choice, root, depth + 1)?;
            allows_all |= expression.is_none();
            any.extend(expression);
        }
        if !allows_all && !any.is_empty() {
            parts.push(any.join(" | "));
        }
    }
    let parts: Vec<String> = parts.iter().map(|part| format!("({part})")).collect();
    Ok((!parts.is_empty()).then(|| parts.join(" & ")))
}

/// A pattern of JSON schema, which is found anywhere in a text, as one of whole texts, between
/// slashes.
fn whole_text(pattern: &str) -> Result<String, String> {
    let refused = |what: &str| {
        let pattern = json!(pattern);
        Err(format!(
            "the pattern {pattern} has {what}, which cannot be held in this model's calls"
        ))
    };
    let (mut body, mut begins, mut ends) = (pattern, false, false);
    if let Some(rest) = body.strip_prefix('^') {
        (body, begins) = (rest, true);
    }
    if let Some(rest) = body.strip_suffix('$') {
        let escapes = rest.len() - rest.trim_end_matches('\\').len();
        if escapes.is_multiple_of(2) {
            (body, ends) = (rest, true);
        }
    }
    let mut out = String::new();
    let mut open = 0usize;
    let mut in_class = false;
    let mut chars = body.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                // Of ASCII alone, as in JavaScript.
                Some('d') => out += if in_class { "0-9" } else { "[0-9]" },
                Some('w') => {
                    out += if in_class {
                        "0-9A-Za-z_"
                    } else {
                        "[0-9A-Za-z_]"
                    }
                }
                Some('b' | 'B') if !in_class => return refused("a word boundary"),
                Some('1'..='9' | 'k') => return refused("a reference to a group"),
                Some(escaped) => out.extend(['\\', escaped]),
                None => return refused("a lone backslash"),
            },
            '[' if !in_class => {
                in_class = true;
                out.push(c);
            }
            // The language of expressions here gives these a meaning within a class.
            '[' | '&' | '~' if in_class => out.extend(['\\', c]),
            ']' if in_class => {
                in_class = false;
                out.push(c);
            }
            '/' => out += "\\/",
            '\n' => out += "\\n",
            '^' | '$' if !in_class => return refused("an anchor within"),
            '(' if !in_class => {
                open += 1;
                out.push(c);
                if chars.peek() == Some(&'?') {
                    let mut ahead = chars.clone();
                    ahead.next();
                    if ahead.next() != Some(':') {
                        return refused("a group that looks around or has a name");
                    }
                }
            }
            ')' if !in_class => {
                open = open.saturating_sub(1);
                out.push(c);
            }
            '|' if !in_class && open == 0 && (begins || ends) => {
                return refused("an anchor of one alternative");
            }
            c => out.push(c),
        }
    }
    let any = "(?s:.*)";
    let [before, behind] = [begins, ends].map(|anchored| if anchored { "" } else { any });
    Ok(format!("{before}(?:{out}){behind}"))
}

#[cfg(test)]
#[path = "xml_grammar_tests.rs"]
mod tests;
