//! JSON in which no key stands twice: where one does, readers disagree about which value counts.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Parses an object. A key that stands twice, at any depth, is an error that names it.
pub(crate) fn unique_object(bytes: &[u8]) -> Result<Map<String, Value>, serde_json::Error> {
    match serde_json::from_slice::<Unique>(bytes)?.0 {
        Value::Object(object) => Ok(object),
        _ => Err(serde_json::Error::custom("expected an object")),
    }
}

struct Unique(Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UniqueVisitor)
    }
}

struct UniqueVisitor;

impl<'de> Visitor<'de> for UniqueVisitor {
    type Value = Unique;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Unique, E> {
        Ok(Unique(Value::Null))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Unique, E> {
        Ok(Unique(value.into()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Unique, E> {
        Ok(Unique(value.into()))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Unique, E> {
        Ok(Unique(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Unique, E> {
        Ok(Unique(value.into()))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Unique, E> {
        Ok(Unique(value.into()))
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Unique, E> {
        Ok(Unique(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Unique, A::Error> {
        let mut list = Vec::new();
        while let Some(Unique(entry)) = entries.next_element()? {
            list.push(entry);
        }
        Ok(Unique(list.into()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Unique, A::Error> {
        let mut object = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if object.contains_key(&key) {
                let key = crate::quote::quoted(&key);
                return Err(A::Error::custom(format_args!("key {key} stands twice")));
            }
            let Unique(value) = entries.next_value()?;
            object.insert(key, value);
        }
        Ok(Unique(object.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_once_is_what_the_library_reads() {
        let text = r#"{"a": [1, -2, 3.5, 1e300, null, true, "x\u00e9"], "b": {"a": {}}, "c": ""}"#;
        let library: Value = serde_json::from_str(text).expect("JSON");
        let found = unique_object(text.as_bytes()).expect("JSON");
        assert_eq!(Value::Object(found), library);
        let twice = unique_object(br#"{"a": [{"k": 1, "b": 2, "k": 1}]}"#);
        assert!(
            twice
                .expect_err("twice")
                .to_string()
                .contains("`k` stands twice")
        );
        assert!(unique_object(b"[]").is_err() && unique_object(b"{} {}").is_err());
    }
}
