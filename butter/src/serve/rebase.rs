//! JSON schemas at another place: references that begin at a document's root follow it there.

use serde_json::{Map, Value as Json};

/// Keys whose value is a schema, or a list of schemas.
const SCHEMAS: [&str; 17] = [
    "items",
    "prefixItems",
    "additionalItems",
    "unevaluatedItems",
    "contains",
    "additionalProperties",
    "unevaluatedProperties",
    "propertyNames",
    "contentSchema",
    "not",
    "if",
    "then",
    "else",
    "anyOf",
    "oneOf",
    "allOf",
    "extends",
];

/// Keys whose value holds schemas under names.
const NAMED_SCHEMAS: [&str; 6] = [
    "properties",
    "patternProperties",
    "$defs",
    "definitions",
    "dependentSchemas",
    "dependencies",
];

/// A schema that was a document and stands at `place` of another, a JSON pointer such as
/// `/properties/arguments`: `#/$defs/x` becomes `#/properties/arguments/$defs/x`. Values that are
/// no schemas (`const`, `enum`, `default`) stay as they are.
pub fn rebased(schema: &Json, place: &str) -> Json {
    match schema {
        Json::Object(map) => Json::Object(map.iter().filter_map(|e| entry(e, place)).collect()),
        Json::Array(list) => list.iter().map(|schema| rebased(schema, place)).collect(),
        other => other.clone(),
    }
}

fn entry((key, value): (&String, &Json), place: &str) -> Option<(String, Json)> {
    let moved = match (key.as_str(), value) {
        // They would make the schema a document again.
        ("$id" | "id", Json::String(_)) => return None,
        ("$ref", Json::String(target)) => match target.strip_prefix('#') {
            Some(pointer) if pointer.is_empty() || pointer.starts_with('/') => {
                format!("#{place}{}", pointer.trim_end_matches('/')).into()
            }
            _ => value.clone(),
        },
        (key, Json::Object(named)) if NAMED_SCHEMAS.contains(&key) => {
            let moved = |(name, schema): (&String, &Json)| (name.clone(), rebased(schema, place));
            Json::Object(named.iter().map(moved).collect::<Map<_, _>>())
        }
        (key, value) if SCHEMAS.contains(&key) => rebased(value, place),
        _ => value.clone(),
    };
    Some((key.clone(), moved))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn references_follow_and_values_stay() {
        let schema = json!({
            "$id": "https://example.org/x",
            "type": "object",
            "properties": {
                "$ref": {"$ref": "#/$defs/x"},
                "self": {"type": "array", "items": {"anyOf": [{"$ref": "#"}, {"$ref": "other"}]}},
                "id": {"const": {"$ref": "#/$defs/x"}},
            },
            "$defs": {"x": {"enum": ["#/$defs/x"], "default": {"$ref": "#/y"}}},
        });
        let expected = json!({
            "type": "object",
            "properties": {
                "$ref": {"$ref": "#/p/a/$defs/x"},
                "self": {"type": "array", "items": {"anyOf": [{"$ref": "#/p/a"}, {"$ref": "other"}]}},
                "id": {"const": {"$ref": "#/$defs/x"}},
            },
            "$defs": {"x": {"enum": ["#/$defs/x"], "default": {"$ref": "#/y"}}},
        });
        assert_eq!(rebased(&schema, "/p/a"), expected);
    }
}
