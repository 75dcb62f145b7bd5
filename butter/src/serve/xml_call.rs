//! Calls of tools as XML, as Qwen3-Coder and Qwen3.5 write them, read while they are written:
//!
//! ```text
//! <tool_call>
//! <function=NAME>
//! <parameter=KEY>
//! VALUE
//! </parameter>
//! </function>
//! </tool_call>
//! ```
//!
//! A value is what stands between its markers without the line breaks next to them. Its JSON
//! follows from the tool's schema: a string where that says so or says nothing, else the JSON
//! that is written there, if it is any.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value as Json, json};

use super::tool_call::Scan;

pub(super) const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
pub(super) const PARAMETER_END: &str = "</parameter>";

/// How the text of a parameter becomes JSON.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// A string, whatever it says.
    Text,
    /// A string, or nothing where it says `null`.
    TextOrNull,
    /// JSON, if it is any; else a string.
    Json,
}

/// The parameters of the tools that a request offers.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ParameterKinds {
    functions: BTreeMap<String, BTreeMap<String, Kind>>,
}

impl ParameterKinds {
    /// Of functions, each with the JSON schema of its arguments.
    pub fn new(functions: &[(String, Json)]) -> Self {
        let kinds_of = |schema: &Json| {
            let mut properties = BTreeMap::new();
            collect_properties(schema, schema, 0, &mut properties);
            let kind = |(name, types): (String, Types)| (name, Kind::of(types));
            properties.into_iter().map(kind).collect()
        };
        let functions = functions.iter();
        Self {
            functions: functions
                .map(|(name, schema)| (name.clone(), kinds_of(schema)))
                .collect(),
        }
    }

    pub(super) fn kind(&self, function: &str, parameter: &str) -> Kind {
        let kinds = self.functions.get(function);
        let kind = kinds.and_then(|kinds| kinds.get(parameter));
        kind.copied().unwrap_or(Kind::Text)
    }
}

/// Types of JSON, integers as numbers; `None` stands for all of them.
type Types = Option<BTreeSet<&'static str>>;

impl Kind {
    /// Of values of some types.
    fn of(types: Types) -> Kind {
        let has = |name: &str| types.as_ref().is_none_or(|types| types.contains(name));
        match (has("string"), has("null")) {
            _ if types.as_ref().is_none_or(BTreeSet::is_empty) => Kind::Text,
            (true, false) => Kind::Text,
            (true, true) => Kind::TextOrNull,
            (false, _) => Kind::Json,
        }
    }
}

/// References that are followed; a schema may refer to itself.
pub(super) const MOST_REFERENCES: usize = 8;

/// The types of the properties that a schema of an object names, there and in what it refers to,
/// joins and chooses from. A property of several alternatives has the types of all of them.
fn collect_properties(
    schema: &Json,
    root: &Json,
    depth: usize,
    properties: &mut BTreeMap<String, Types>,
) {
    if depth > MOST_REFERENCES {
        return;
    }
    let mut own: BTreeMap<String, Types> = BTreeMap::new();
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        own.insert(name.clone(), types_of(property, root, 0));
    }
    let mut hold = |part: BTreeMap<String, Types>| {
        for (name, types) in part {
            let known = own.entry(name).or_default();
            *known = both(known.take(), types);
        }
    };
    let parts = schema["allOf"].as_array().into_iter().flatten();
    for part in parts.chain(referred(schema, root)) {
        let mut found = BTreeMap::new();
        collect_properties(part, root, depth + 1, &mut found);
        hold(found);
    }
    for key in ["anyOf", "oneOf"] {
        let mut found = BTreeMap::new();
        for choice in schema[key].as_array().into_iter().flatten() {
            collect_properties(choice, root, depth + 1, &mut found);
        }
        hold(found);
    }
    for (name, types) in own {
        match properties.remove(&name) {
            None => properties.insert(name, types),
            Some(known) => properties.insert(name, either(known, types)),
        };
    }
}

/// Of a schema within the schema `root`.
pub(super) fn kind_of(schema: &Json, root: &Json) -> Kind {
    Kind::of(types_of(schema, root, 0))
}

/// The types that a schema allows, as far as it says; one that names none, but bounds or parts
/// of values of one type, means that type.
pub(super) fn types_of(schema: &Json, root: &Json, depth: usize) -> Types {
    let Json::Object(map) = schema else {
        return (schema == &Json::Bool(false)).then(BTreeSet::new);
    };
    if depth > MOST_REFERENCES {
        return None;
    }
    let named = match &schema["type"] {
        Json::String(name) => Some([named_type(name)].into_iter().flatten().collect()),
        Json::Array(names) => {
            let names = names.iter().filter_map(Json::as_str);
            Some(names.filter_map(named_type).collect())
        }
        _ => None,
    };
    let said = named.is_some();
    let mut types: Types = named;
    if let Some(listed) = schema["enum"].as_array() {
        types = both(types, Some(listed.iter().map(type_of).collect()));
    }
    if let Some(fixed) = schema.get("const") {
        types = both(types, Some([type_of(fixed)].into()));
    }
    if let Some(referred) = referred(schema, root) {
        types = both(types, types_of(referred, root, depth + 1));
    }
    for part in schema["allOf"].as_array().into_iter().flatten() {
        types = both(types, types_of(part, root, depth + 1));
    }
    for key in ["anyOf", "oneOf"] {
        if let Some(choices) = schema[key].as_array().filter(|list| !list.is_empty()) {
            let choices = choices
                .iter()
                .map(|choice| types_of(choice, root, depth + 1));
            types = both(types, choices.reduce(either).unwrap_or_default());
        }
    }
    if said || types.is_some() {
        return types;
    }
    let of = |(keys, name): &(&[&str], &'static str)| {
        keys.iter()
            .any(|key| map.contains_key(*key))
            .then_some(*name)
    };
    let implied: BTreeSet<_> = TYPES_OF_KEYS.iter().filter_map(of).collect();
    (!implied.is_empty()).then_some(implied)
}

/// Keys that say something of values of one type alone.
const TYPES_OF_KEYS: [(&[&str], &str); 4] = [
    (
        &[
            "properties",
            "required",
            "additionalProperties",
            "patternProperties",
            "minProperties",
            "maxProperties",
        ],
        "object",
    ),
    (
        &[
            "items",
            "prefixItems",
            "contains",
            "minItems",
            "maxItems",
            "uniqueItems",
        ],
        "array",
    ),
    (
        &[
            "minimum",
            "maximum",
            "exclusiveMinimum",
            "exclusiveMaximum",
            "multipleOf",
        ],
        "number",
    ),
    (&["pattern", "minLength", "maxLength", "format"], "string"),
];

fn both(a: Types, b: Types) -> Types {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.intersection(&b).copied().collect()),
        (one, None) | (None, one) => one,
    }
}

fn either(a: Types, b: Types) -> Types {
    Some(a?.union(&b?).copied().collect())
}

/// What a schema refers to, if that is there.
pub(super) fn referred<'s>(schema: &Json, root: &'s Json) -> Option<&'s Json> {
    let pointer = schema["$ref"].as_str()?.strip_prefix('#')?;
    root.pointer(pointer.trim_end_matches('/'))
}

fn named_type(name: &str) -> Option<&'static str> {
    let known = ["null", "boolean", "number", "string", "array", "object"];
    let name = if name == "integer" { "number" } else { name };
    known.into_iter().find(|known| *known == name)
}

fn type_of(value: &Json) -> &'static str {
    match value {
        Json::Null => "null",
        Json::Bool(_) => "boolean",
        Json::Number(_) => "number",
        Json::String(_) => "string",
        Json::Array(_) => "array",
        Json::Object(_) => "object",
    }
}

/// Reads the beginning of a call behind `<tool_call>`. The arguments are JSON, as far as it is
/// certain; more text makes them longer and changes none of it.
pub fn scan(text: &str, kinds: &ParameterKinds) -> Scan {
    let mut scan = Scan::default();
    let mut rest = Rest { text, at: 0 };
    if !rest.take(FUNCTION, &mut scan) {
        return scan;
    }
    let Some(name) = rest.name(&mut scan) else {
        return scan;
    };
    scan.name = Some(name.to_owned());
    let mut arguments = "{".to_owned();
    let mut seen = BTreeSet::new();
    loop {
        scan.understood = rest.at;
        scan.arguments = Some(arguments.clone());
        rest.skip_space();
        if rest.text().is_empty() {
            return scan;
        }
        if rest.begins(FUNCTION_END) {
            arguments.push('}');
            scan.arguments = Some(arguments);
            scan.end = Some(rest.at + FUNCTION_END.len());
            return scan;
        }
        if FUNCTION_END.starts_with(rest.text()) {
            return scan;
        }
        if !rest.take(PARAMETER, &mut scan) {
            return scan;
        }
        let Some(key) = rest.name(&mut scan) else {
            return scan;
        };
        if !seen.insert(key) {
            scan.wrong = true;
            return scan;
        }
        if seen.len() > 1 {
            arguments.push_str(", ");
        }
        arguments += &format!("{}: ", json!(key));
        let kind = kinds.kind(name, key);
        let value = rest.text();
        match value.find(PARAMETER_END) {
            Some(end) => {
                arguments += &value_of(&value[..end], kind);
                rest.at += end + PARAMETER_END.len();
            }
            None => {
                arguments += &beginning_of(value, kind);
                scan.arguments = Some(arguments);
                return scan;
            }
        }
    }
}

/// What is left of a call's text.
struct Rest<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Rest<'t> {
    fn text(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn begins(&self, marker: &str) -> bool {
        self.text().starts_with(marker)
    }

    fn skip_space(&mut self) {
        self.at = self.text.len() - self.text().trim_start().len();
    }

    /// Passes a marker behind white space; false where it is not there yet, and wrong where it
    /// will not be.
    fn take(&mut self, marker: &str, scan: &mut Scan) -> bool {
        self.skip_space();
        let is_there = self.begins(marker);
        if is_there {
            self.at += marker.len();
        } else {
            scan.wrong = !marker.starts_with(self.text());
        }
        is_there
    }

    /// Passes a name and the `>` behind it.
    fn name(&mut self, scan: &mut Scan) -> Option<&'t str> {
        let text = self.text();
        let end = text.find(['>', '<', '\n']);
        let name = &text[..end?];
        if name.is_empty() || !text[name.len()..].starts_with('>') {
            scan.wrong = true;
            return None;
        }
        self.at += name.len() + 1;
        Some(name)
    }
}

/// The JSON of a whole value.
fn value_of(text: &str, kind: Kind) -> String {
    let text = text.strip_prefix('\n').unwrap_or(text);
    let text = text.strip_suffix('\n').unwrap_or(text);
    let string = || json!(text).to_string();
    let trimmed = text.trim();
    match kind {
        Kind::Text => string(),
        Kind::TextOrNull if matches!(trimmed, "null" | "None") => "null".to_owned(),
        Kind::TextOrNull => string(),
        // Some models write Python's words.
        Kind::Json => match trimmed {
            "True" => "true".to_owned(),
            "False" => "false".to_owned(),
            "None" => "null".to_owned(),
            _ => match serde_json::from_str::<serde::de::IgnoredAny>(trimmed) {
                Ok(_) => trimmed.to_owned(),
                Err(_) => string(),
            },
        },
    }
}

/// The JSON of a value as far as it is certain before its end is there.
fn beginning_of(text: &str, kind: Kind) -> String {
    if kind != Kind::Text {
        return String::new();
    }
    let text = text.strip_prefix('\n').unwrap_or(text);
    // What may be the end, with the line break that belongs to it, waits.
    let end = format!("\n{PARAMETER_END}");
    let is_end = |length: &usize| {
        let tail = text.len() - length;
        text.is_char_boundary(tail)
            && [end.as_str(), PARAMETER_END]
                .iter()
                .any(|marker| marker.starts_with(&text[tail..]))
    };
    let held = (1..=end.len().min(text.len())).rev().find(is_end);
    let mut string = json!(text[..text.len() - held.unwrap_or(0)]).to_string();
    string.pop();
    string
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds() -> ParameterKinds {
        let schema = json!({
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "exact": {"type": "boolean"},
                "place": {"$ref": "#/$defs/place"},
                "note": {"type": ["string", "null"]},
                "unit": {"enum": ["C", "F"]},
                "any": {},
                "either": {"anyOf": [{"type": "number"}, {"type": "null"}]},
                "self": {"$ref": "#/$defs/self"},
            },
            "$defs": {
                "place": {"type": "object"},
                "self": {"$ref": "#/$defs/self"},
            },
        });
        ParameterKinds::new(&[("f".to_owned(), schema)])
    }

    fn written(parameters: &[(&str, &str)]) -> String {
        let parameters: Vec<String> = parameters
            .iter()
            .map(|(key, value)| format!("<parameter={key}>\n{value}\n</parameter>\n"))
            .collect();
        format!("\n<function=f>\n{}</function>\n", parameters.concat())
    }

    #[test]
    fn values_have_the_types_of_the_schema() {
        let text = written(&[
            ("city", "12 \"Rue\"\n<b>\n"),
            ("days", "3"),
            ("exact", "True"),
            ("place", "{\"a\": [1,\n2]}"),
            ("note", "null"),
            ("unit", "null"),
            ("any", "5"),
            ("either", "1.50"),
            ("self", "x"),
            ("unknown", "true"),
        ]);
        let whole = scan(&text, &kinds());
        assert!(!whole.wrong && whole.name.as_deref() == Some("f"));
        assert_eq!(whole.end, Some(text.trim_end().len()));
        let arguments: Json = serde_json::from_str(&whole.arguments.expect("some")).expect("JSON");
        let expected = json!({
            "city": "12 \"Rue\"\n<b>\n", "days": 3, "exact": true, "place": {"a": [1, 2]},
            "note": null, "unit": "null", "any": "5", "either": 1.5, "self": "x",
            "unknown": "true",
        });
        assert_eq!(arguments, expected);
        // What is not of its type is a string, and nothing at all an empty one.
        let text = written(&[("days", "three"), ("city", ""), ("note", "")]);
        let arguments = scan(&text, &kinds()).arguments.expect("some");
        assert_eq!(arguments, r#"{"days": "three", "city": "", "note": ""}"#);
        assert_eq!(
            scan(&written(&[]), &kinds()).arguments.as_deref(),
            Some("{}")
        );
    }

    #[test]
    fn what_is_certain_stays_and_grows() {
        let text = written(&[
            ("city", "ends\n\n</para\n</paramete>é"),
            ("days", "[3, 4]"),
            ("note", "x"),
        ]);
        let whole = scan(&text, &kinds()).arguments.expect("some");
        let mut before = String::new();
        for cut in (0..text.len()).filter(|&cut| text.is_char_boundary(cut)) {
            let part = scan(&text[..cut], &kinds());
            assert!(
                !part.wrong && part.end.is_none() || cut >= text.trim_end().len(),
                "{cut}"
            );
            let known = part.arguments.unwrap_or_default();
            assert!(
                known.starts_with(&before) && whole.starts_with(&known),
                "{known}"
            );
            before = known;
        }
        assert_eq!(before, whole);
        let begun = scan("<function=f>\n<parameter=city>\nPar", &kinds());
        assert_eq!(begun.arguments.as_deref(), Some("{\"city\": \"Par"));
    }

    #[test]
    fn what_is_no_call_is_known_as_soon_as_it_can_be() {
        for wrong in [
            "x",
            "{\"name\": \"f\"}",
            "<functions>",
            "<function=>",
            "<function=a\n",
            "<function=f>x",
            "<function=f><parameter=>",
            "<function=f></parameter>",
            "<function=f><parameter=a>1</parameter><parameter=a>",
        ] {
            assert!(scan(wrong, &kinds()).wrong, "{wrong}");
        }
    }
}
