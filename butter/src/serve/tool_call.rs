//! Calls of tools as models write them, read while they are written.

use serde_json::{Value as Json, json};

use super::rebase::rebased;
use super::xml_grammar;

/// How a family of models writes calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ToolFormat {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, as Hermes and Qwen do.
    Hermes,
    /// `{"name": …, "parameters": {…}}` as the whole answer, as Llama 3 does.
    Llama,
    /// `<tool_call><function=…><parameter=…>…`, as Qwen3-Coder and Qwen3.5 do.
    Xml,
}

impl ToolFormat {
    /// The format that a chat template teaches its model, if it is one of those above.
    pub fn of_template(template: &str) -> Result<ToolFormat, &'static str> {
        if !template.contains("tools") {
            Err("the model's chat template has no tools")
        } else if template.contains("<function=") {
            Ok(ToolFormat::Xml)
        } else if template.contains("<tool_call>") {
            Ok(ToolFormat::Hermes)
        } else if template.contains("\"parameters\"") || template.contains("python_tag") {
            Ok(ToolFormat::Llama)
        } else {
            Err("the model's way to write calls is not known")
        }
    }

    /// A Lark grammar of one call of one of the functions, each with the JSON schema of its
    /// arguments. The error names the function whose schema a grammar cannot hold, and says why.
    pub fn grammar(self, functions: &[(String, Json)]) -> Result<String, (String, String)> {
        let key = match self {
            ToolFormat::Hermes => "arguments",
            ToolFormat::Llama => "parameters",
            ToolFormat::Xml => return xml_grammar::grammar(functions),
        };
        let names: Vec<String> = (0..functions.len()).map(|i| format!("call_{i}")).collect();
        let start = match self {
            ToolFormat::Hermes => "start: \"<tool_call>\\n\" call \"\\n</tool_call>\"",
            ToolFormat::Llama | ToolFormat::Xml => "start: call",
        };
        let mut grammar = format!("{start}\ncall: {}\n", names.join(" | "));
        for (rule, (name, schema)) in names.iter().zip(functions) {
            let call = json!({
                "type": "object",
                "properties": {
                    "name": {"const": name},
                    key: of_object(rebased(schema, &format!("/properties/{key}")))
                        .map_err(|problem| (name.clone(), problem))?,
                },
                "required": ["name", key],
                "additionalProperties": false,
                "x-guidance": {"whitespace_flexible": false},
            });
            grammar += &format!("{rule}: %json {call}\n");
        }
        Ok(grammar)
    }
}

/// A schema of arguments that allows objects alone, as calls have them.
fn of_object(schema: Json) -> Result<Json, String> {
    let refused = |what: &Json| Err(format!("arguments are an object, not {what}"));
    match schema {
        Json::Object(mut map) => {
            match map.get("type") {
                None => {}
                Some(Json::String(name)) if name == "object" => {}
                Some(Json::Array(names)) if names.contains(&json!("object")) => {}
                Some(other) => return refused(other),
            }
            map.insert("type".to_owned(), json!("object"));
            Ok(Json::Object(map))
        }
        Json::Bool(true) => Ok(json!({"type": "object"})),
        other => refused(&other),
    }
}

/// What is known of a call from its text so far.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Scan {
    /// The function's name, once it is complete.
    pub name: Option<String>,
    /// The arguments as JSON, up to what is certain.
    pub arguments: Option<String>,
    /// How far the text is in name and arguments.
    pub understood: usize,
    /// Where the call's object ends.
    pub end: Option<usize>,
    /// Whether this cannot become a call.
    pub wrong: bool,
}

/// Reads the beginning of a call's object.
pub fn scan(text: &str) -> Scan {
    let mut scan = Scan::default();
    let mut at = skip_space(text, 0);
    let bytes = text.as_bytes();
    match bytes.get(at) {
        None => return scan,
        Some(b'{') => at += 1,
        Some(_) => {
            scan.wrong = true;
            return scan;
        }
    }
    loop {
        at = skip_space(text, at);
        match bytes.get(at) {
            None => return scan,
            Some(b'}') => {
                scan.end = Some(at + 1);
                return scan;
            }
            Some(b',') => at = skip_space(text, at + 1),
            Some(_) => {}
        }
        if at == text.len() {
            return scan;
        }
        let key = match value_end(text, at) {
            Ok(Some(end)) if bytes[at] == b'"' => &text[at..end],
            Ok(None) if bytes[at] == b'"' => return scan,
            _ => {
                scan.wrong = true;
                return scan;
            }
        };
        let Ok(key) = serde_json::from_str::<String>(key).map(|name| (name, key.len())) else {
            scan.wrong = true;
            return scan;
        };
        at = skip_space(text, at + key.1);
        match bytes.get(at) {
            None => return scan,
            Some(b':') => at = skip_space(text, at + 1),
            Some(_) => {
                scan.wrong = true;
                return scan;
            }
        }
        let Some(&first) = bytes.get(at) else {
            return scan;
        };
        let end = match value_end(text, at) {
            Ok(end) => end,
            Err(()) => {
                scan.wrong = true;
                return scan;
            }
        };
        match key.0.as_str() {
            // What was passed on cannot be taken back.
            "arguments" | "parameters" if scan.arguments.is_some() => scan.wrong = true,
            "name" if scan.name.is_some() => scan.wrong = true,
            "name" => match end.map(|end| serde_json::from_str::<String>(&text[at..end])) {
                Some(Ok(name)) => scan.name = Some(name),
                Some(Err(_)) => scan.wrong = true,
                None => scan.wrong = first != b'"',
            },
            "arguments" | "parameters" => {
                scan.wrong = first != b'{';
                if !scan.wrong {
                    scan.understood = end.unwrap_or(text.len());
                    scan.arguments = Some(text[at..scan.understood].to_owned());
                }
            }
            _ => {}
        }
        match end {
            Some(end) if !scan.wrong => at = end,
            _ => return scan,
        }
    }
}

fn skip_space(text: &str, at: usize) -> usize {
    let rest = &text[at..];
    at + rest.len() - rest.trim_start_matches([' ', '\t', '\n', '\r']).len()
}

/// Where the JSON value at `at` ends; `None` if it does not yet.
fn value_end(text: &str, at: usize) -> Result<Option<usize>, ()> {
    let bytes = text.as_bytes();
    let mut open: Vec<u8> = Vec::new();
    let mut in_string = false;
    let mut i = at;
    while let Some(&byte) = bytes.get(i) {
        if in_string {
            match byte {
                b'\\' => i += 1,
                b'"' => {
                    in_string = false;
                    if open.is_empty() {
                        return Ok(Some(i + 1));
                    }
                }
                _ => {}
            }
            i += 1;
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'{' => open.push(b'}'),
            b'[' => open.push(b']'),
            b'}' | b']' => match open.pop() {
                Some(expected) if expected == byte => {
                    if open.is_empty() {
                        return Ok(Some(i + 1));
                    }
                }
                Some(_) => return Err(()),
                // A number or a word ends where its object does.
                None if i > at => return Ok(Some(i)),
                None => return Err(()),
            },
            b',' if open.is_empty() => return if i > at { Ok(Some(i)) } else { Err(()) },
            _ => {}
        }
        i += 1;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_may_come_last() {
        let found = scan(r#"{"arguments": {"a": 1}, "name": "f"}"#);
        assert_eq!((found.name.as_deref(), found.wrong), (Some("f"), false));
    }

    #[test]
    fn arguments_are_objects() {
        for (schema, held) in [
            (json!({}), json!({"type": "object"})),
            (json!(true), json!({"type": "object"})),
            (
                json!({"$ref": "#/x"}),
                json!({"$ref": "#/x", "type": "object"}),
            ),
            (
                json!({"type": ["object", "null"]}),
                json!({"type": "object"}),
            ),
        ] {
            assert_eq!(of_object(schema), Ok(held));
        }
        for schema in [
            json!({"type": "array"}),
            json!({"type": ["null"]}),
            json!(false),
        ] {
            let functions = [("f".to_owned(), schema)];
            let (function, problem) = ToolFormat::Hermes.grammar(&functions).expect_err("refused");
            assert_eq!(function, "f");
            assert!(problem.contains("arguments are an object"), "{problem}");
        }
    }

    #[test]
    fn a_call_is_known_as_far_as_it_is_written() {
        let text = r#" {"id": 7, "name": "f\"}", "arguments": {"a": [1, "}"], "b": {}}} x"#;
        let end = text.rfind('}').expect("an end") + 1;
        let whole = scan(text);
        assert_eq!((whole.end, whole.wrong), (Some(end), false));
        assert_eq!(whole.name.as_deref(), Some("f\"}"));
        let arguments = whole.arguments.as_deref();
        assert_eq!(arguments, Some(r#"{"a": [1, "}"], "b": {}}"#));
        for cut in (0..text.len()).filter(|&cut| text.is_char_boundary(cut)) {
            let part = scan(&text[..cut]);
            assert!(!part.wrong, "{cut}");
            assert!(part.name.is_none() || part.name == whole.name);
            assert_eq!(part.end.is_some(), cut >= end);
        }
        for wrong in [
            "x",
            "[1]",
            "{x",
            r#"{"name": 3,"#,
            r#"{"arguments": "a""#,
            "{\"a\": ]",
            r#"{"name": "f", "name": "g"#,
            r#"{"arguments": {"a": 1}, "parameters": {"#,
        ] {
            assert!(scan(wrong).wrong, "{wrong}");
        }
    }
}
