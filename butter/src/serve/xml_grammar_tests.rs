//! What the grammars let through, byte by byte.

use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value as Json, json};

use super::super::xml_call::{Kind, ParameterKinds, scan};
use super::grammar;

/// Every byte as a token, and an end.
fn matcher(lark: String) -> Result<Matcher, String> {
    let mut words: Vec<Vec<u8>> = (0..=255u8).map(|byte| vec![byte]).collect();
    words.push(Vec::new());
    let trie = TokTrie::from(&TokRxInfo::new(257, 256), &words).with_eos_tokens(&[256]);
    let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
    let capabilities = InferenceCapabilities::default();
    let mut factory = ParserFactory::new(&environment, capabilities, &[]).expect("a factory");
    factory.quiet();
    let parser = factory.create_parser(TopLevelGrammar::from_lark(lark));
    Ok(Matcher::new(Ok(parser.map_err(|error| error.to_string())?)))
}

/// Whether a grammar of the function `f` takes a call with these parameters, and lets it end.
fn takes(schema: &Json, parameters: &[(&str, &str)]) -> bool {
    let lark = grammar(&[("f".to_owned(), schema.clone())]).expect("held");
    let mut matcher = matcher(lark.clone()).unwrap_or_else(|error| panic!("{error}\n{lark}"));
    let parameters: Vec<String> = parameters
        .iter()
        .map(|(key, value)| format!("<parameter={key}>\n{value}\n</parameter>\n"))
        .collect();
    let parameters = parameters.concat();
    let call = format!("<tool_call>\n<function=f>\n{parameters}</function>\n</tool_call>");
    let taken = call.bytes().all(|byte| {
        let mask = matcher.compute_mask().expect("a mask");
        mask.is_allowed(u32::from(byte)) && matcher.consume_token(u32::from(byte)).is_ok()
    });
    taken && matcher.is_accepting().expect("a state")
}

#[test]
fn texts_keep_what_their_schemas_say() {
    let of = |property: Json| json!({"properties": {"a": property}, "required": ["a"]});
    for (property, right, wrong) in [
        (
            json!({"type": "string"}),
            vec!["", "x\ny", "</param"],
            vec![],
        ),
        (
            json!({"enum": ["k1", "k2"]}),
            vec!["k1", "k2"],
            vec!["k", "k3", "k11"],
        ),
        (json!({"const": "é\n"}), vec!["é\n"], vec!["é"]),
        (
            json!({"type": ["string", "null"], "enum": ["p", null]}),
            vec!["p", "null"],
            vec!["x"],
        ),
        (
            json!({"type": "string", "pattern": "^[0-9]{5}$"}),
            vec!["12345"],
            vec!["VALUE", "1234", "123456"],
        ),
        (
            json!({"type": "string", "pattern": "\\d/x"}),
            vec!["a1/x!", "1/x"],
            vec!["1x", "٣/x"],
        ),
        (
            json!({"type": "string", "maxLength": 3}),
            vec!["", "éaé"],
            vec!["VALUE"],
        ),
        (
            json!({"type": "string", "minLength": 2, "pattern": "^a"}),
            vec!["ab", "a\n"],
            vec!["a", "ba"],
        ),
        (
            json!({"type": ["string", "null"], "maxLength": 2}),
            vec!["ab", "null"],
            vec!["nul"],
        ),
        (
            json!({"anyOf": [{"type": "string", "pattern": "^x+$"}, {"type": "null"}]}),
            vec!["xx", "null"],
            vec!["xy", ""],
        ),
        (
            json!({"allOf": [{"type": "string", "minLength": 1}, {"pattern": "^b*$"}]}),
            vec!["b"],
            vec!["", "c"],
        ),
        (
            json!({"type": "integer", "minimum": 3}),
            vec!["3", "40"],
            vec!["2", "x"],
        ),
        (json!({"type": "boolean"}), vec!["true"], vec!["True"]),
        (
            json!({"minimum": 5, "maximum": 7}),
            vec!["5", "7"],
            vec!["8", "x"],
        ),
        (
            json!({"items": {"type": "integer"}, "minItems": 1}),
            vec!["[1]"],
            vec!["[]", "VALUE"],
        ),
        (
            json!({"type": "string", "enum": [null, "a"]}),
            vec!["a"],
            vec!["null"],
        ),
        (
            json!({"allOf": [{"type": ["string", "integer"]}, {"type": "integer"}]}),
            vec!["3"],
            vec!["x"],
        ),
    ] {
        let schema = of(property);
        for text in right {
            assert!(
                takes(&schema, &[("a", text)]),
                "{schema} takes not {text:?}"
            );
        }
        for text in wrong {
            assert!(!takes(&schema, &[("a", text)]), "{schema} takes {text:?}");
        }
        assert!(!takes(&schema, &[]), "{schema} takes nothing");
    }
}

#[test]
fn a_free_text_ends_where_the_reader_ends_it() {
    let schema = json!({"properties": {"a": {}}, "required": ["a"]});
    assert!(takes(&schema, &[("a", "x\ny")]));
    // The value and its end are on one line.
    let kinds = ParameterKinds::new(&[("f".to_owned(), schema.clone())]);
    let lark = grammar(&[("f".to_owned(), schema)]).expect("held");
    for (parameter, argument) in [("</parameter>\n", ""), ("x</parameter>\n", "x")] {
        let mut matcher = matcher(lark.clone()).expect("a grammar");
        let call = format!("<function=f>\n<parameter=a>\n{parameter}</function>\n");
        for byte in format!("<tool_call>\n{call}</tool_call>").bytes() {
            matcher.consume_token(u32::from(byte)).expect("taken");
        }
        assert!(matcher.is_accepting().expect("a state"));
        let read = scan(&call, &kinds).arguments.expect("a whole call");
        assert_eq!(read, format!("{{\"a\": \"{argument}\"}}"));
    }
    let mut matcher = matcher(lark).expect("a grammar");
    for byte in "<tool_call>\n<function=f>\n<parameter=a>\nx</parameter>".bytes() {
        matcher.consume_token(u32::from(byte)).expect("taken");
    }
    let mask = matcher.compute_mask().expect("a mask");
    let allowed: Vec<u8> = (0..=255)
        .filter(|byte| mask.is_allowed(u32::from(*byte)))
        .collect();
    assert_eq!(allowed, b"\n");
}

#[test]
fn properties_behind_references_have_the_kind_that_the_grammar_holds() {
    let parts = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
    for schema in [
        json!({"$ref": "#/$defs/x", "$defs": {"x": parts.clone()}}),
        json!({"allOf": [parts.clone()]}),
        json!({"anyOf": [parts.clone(), {"properties": {"m": {}}}]}),
    ] {
        let kinds = ParameterKinds::new(&[("f".to_owned(), schema.clone())]);
        assert_eq!(kinds.kind("f", "n"), Kind::Json, "{schema}");
        grammar(&[("f".to_owned(), schema)]).expect("held");
    }
}

#[test]
fn references_and_choices_of_the_whole_are_followed() {
    let schema = json!({
        "$ref": "#/$defs/x",
        "$defs": {
            "x": {
                "type": "object",
                "properties": {
                    "a": {"$ref": "#/$defs/k"},
                    "b": {"type": "array", "items": {"$ref": "#/$defs/k"}},
                },
                "required": ["a"],
            },
            "k": {"enum": ["k1", "k2"]},
        },
    });
    assert!(takes(&schema, &[("a", "k1")]));
    assert!(takes(&schema, &[("a", "k2"), ("b", r#"["k1"]"#)]));
    assert!(!takes(&schema, &[]));
    assert!(!takes(&schema, &[("a", "x")]));
    assert!(!takes(&schema, &[("a", "k2"), ("b", r#"["x"]"#)]));
    let schema = json!({
        "type": "object",
        "anyOf": [
            {"properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"properties": {"b": {"const": "z"}}, "required": ["b"]},
        ],
        "allOf": [{"required": ["c"]}],
    });
    assert!(takes(&schema, &[("c", "any"), ("a", "1")]));
    assert!(takes(&schema, &[("c", ""), ("b", "z")]));
    assert!(!takes(&schema, &[("c", "")]));
    assert!(!takes(&schema, &[("c", ""), ("b", "y")]));
}

#[test]
fn what_cannot_be_held_is_refused() {
    for (schema, problem) in [
        (
            json!({"properties": {"a>b": {}}}),
            "\"a>b\" cannot be written",
        ),
        (json!({"properties": {"": {}}}), "\"\" cannot be written"),
        (json!({"required": ["a\nb"]}), "\"a\\nb\" cannot be written"),
        (
            json!({"properties": {"a": {"const": "q</parameter>z"}}}),
            "cannot be written",
        ),
        (
            json!({"properties": {"a": {"type": "string", "not": {}}}}),
            "`not` of a text",
        ),
        (
            json!({"properties": {"a": {"type": "string", "pattern": "^a|b$"}}}),
            "alternative",
        ),
        (
            json!({"properties": {"a": {"type": "string", "pattern": "(?=a)"}}}),
            "looks around",
        ),
        (
            json!({"properties": {"a": {"type": "string", "$ref": "#/$defs/x"}}}),
            "leads nowhere",
        ),
        (
            json!({"patternProperties": {}}),
            "`patternProperties` of an object",
        ),
        (
            json!({"properties": {"a": false}, "required": ["a"]}),
            "allows no value",
        ),
        (
            json!({"properties": {"a": {"type": "string", "minLength": 2.5}}}),
            "`minLength` is 2.5",
        ),
        (
            json!({"properties": {"a": {"type": "string", "maxLength": -1}}}),
            "`maxLength` is -1",
        ),
        (
            json!({"properties": {"a": {"type": "string", "enum": [1]}}}),
            "no text is among",
        ),
        (
            json!({"anyOf": [
                {"properties": {"a": {"type": "integer"}}},
                {"properties": {"a": {"type": "string"}}},
            ]}),
            "other alternatives",
        ),
        (json!({"$ref": "#"}), "refers to itself"),
        (json!({"type": "string"}), "arguments are an object"),
        (json!([1]), "no schema"),
    ] {
        let (function, found) = grammar(&[("f".to_owned(), schema.clone())]).expect_err("refused");
        assert_eq!(function, "f");
        assert!(found.contains(problem), "{schema}: {found}");
    }
}
