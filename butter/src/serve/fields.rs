//! The fields of a request body, each of which is used, refused by name, or listed in the
//! answer's warnings (E32).

use serde_json::{Map, Value as Json};

use super::error::ApiError;

/// An object that is read field by field.
#[derive(Debug)]
pub struct Fields {
    map: Map<String, Json>,
    path: String,
    /// What the answer says about fields without effect.
    pub warnings: Vec<String>,
}

type Read<T> = Result<Option<T>, ApiError>;

impl Fields {
    /// The fields of a JSON value; `path` is where it stands in the body, empty for the body.
    pub fn of(json: Json, path: &str) -> Result<Fields, ApiError> {
        let found = describe(&json);
        match json {
            Json::Object(map) => Ok(Fields {
                map,
                path: path.to_owned(),
                warnings: Vec::new(),
            }),
            _ if path.is_empty() => Err(ApiError::new(
                axum::http::StatusCode::BAD_REQUEST,
                format!("the body is {found}, expected an object"),
            )),
            _ => Err(ApiError::field(
                path,
                format!("is {found}, expected an object"),
            )),
        }
    }

    /// The path of a field.
    pub fn path(&self, name: &str) -> String {
        if self.path.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.path)
        }
    }

    /// Whether a field is there; null is as good as absent.
    pub fn has(&self, name: &str) -> bool {
        self.map.get(name).is_some_and(|json| !json.is_null())
    }

    /// A field as it stands; null is as good as absent.
    pub fn take(&mut self, name: &str) -> Option<Json> {
        self.map.shift_remove(name).filter(|json| !json.is_null())
    }

    fn typed<T>(
        &mut self,
        name: &str,
        expected: &str,
        read: impl FnOnce(&Json) -> Option<T>,
    ) -> Read<T> {
        let Some(json) = self.take(name) else {
            return Ok(None);
        };
        match read(&json) {
            Some(value) => Ok(Some(value)),
            None => {
                let found = describe(&json);
                let problem = format!("is {found}, expected {expected}");
                Err(ApiError::field(self.path(name), problem))
            }
        }
    }

    /// A boolean.
    pub fn boolean(&mut self, name: &str) -> Read<bool> {
        self.typed(name, "a boolean", Json::as_bool)
    }

    /// A number; JSON has no NaN and no infinity.
    pub fn number(&mut self, name: &str) -> Read<f64> {
        self.typed(name, "a number", Json::as_f64)
    }

    /// A whole number from `least` to `most`.
    pub fn integer(&mut self, name: &str, least: u64, most: u64) -> Read<u64> {
        let expected = format!("a whole number from {least} to {most}");
        self.typed(name, &expected, |json| {
            whole(json).filter(|number| (least..=most).contains(number))
        })
    }

    /// A string.
    pub fn string(&mut self, name: &str) -> Read<String> {
        self.typed(name, "a string", |json| json.as_str().map(str::to_owned))
    }

    /// A list.
    pub fn list(&mut self, name: &str) -> Read<Vec<Json>> {
        self.typed(name, "a list", |json| json.as_array().cloned())
    }

    /// An object.
    pub fn object(&mut self, name: &str) -> Result<Option<Fields>, ApiError> {
        let path = self.path(name);
        self.take(name)
            .map(|json| Fields::of(json, &path))
            .transpose()
    }

    /// A list of token ids below `vocab_size`.
    pub fn tokens(&mut self, name: &str, vocab_size: usize) -> Read<Vec<u32>> {
        let path = self.path(name);
        self.list(name)?
            .map(|list| token_ids(&list, &path, vocab_size))
            .transpose()
    }

    /// Refuses a field, unless it has the value that changes nothing.
    pub fn refuse(&mut self, name: &str, neutral: &[Json], reason: &str) -> Result<(), ApiError> {
        match self.take(name) {
            Some(json) if !neutral.contains(&json) => {
                Err(ApiError::unsupported(self.path(name), reason))
            }
            _ => Ok(()),
        }
    }

    /// Takes a field that has no effect, and says so in the warnings.
    pub fn without_effect(&mut self, name: &str, reason: &str) {
        if self.take(name).is_some() {
            self.warn(name, reason);
        }
    }

    /// Says in the warnings that a field has no effect.
    pub fn warn(&mut self, name: &str, reason: &str) {
        let path = self.path(name);
        self.warnings
            .push(format!("`{path}` has no effect: {reason}"));
    }

    /// Takes a field if it has this value; whether it had.
    pub fn take_equal(&mut self, name: &str, value: &Json) -> bool {
        let equal = self.map.get(name) == Some(value);
        equal && self.take(name).is_some()
    }

    /// Everything that is left, unread.
    pub fn into_map(self) -> Map<String, Json> {
        self.map
    }

    /// Takes over the warnings of a field that is an object, and those about what is left in it.
    pub fn absorb(&mut self, inner: Fields) {
        self.warnings.extend(inner.finish());
    }

    /// Ends the reading: all warnings, those about unknown fields last.
    pub fn finish(mut self) -> Vec<String> {
        let unknown: Vec<String> = self
            .map
            .iter()
            .filter(|(_, json)| !json.is_null())
            .map(|(name, _)| shortened(&self.path(name)))
            .collect();
        self.warnings.extend(
            unknown
                .iter()
                .map(|path| format!("`{path}` is not known and was ignored")),
        );
        // A hostile body must not become a long answer.
        if self.warnings.len() > 32 {
            let more = self.warnings.len() - 32;
            self.warnings.truncate(32);
            self.warnings.push(format!("and {more} more"));
        }
        self.warnings
    }
}

/// A whole number, also if it is written as `3.0`.
pub fn whole(json: &Json) -> Option<u64> {
    json.as_u64().or_else(|| {
        let number = json.as_f64()?;
        ((0.0..9e15).contains(&number) && number.fract() == 0.0).then_some(number as u64)
    })
}

/// Token ids below `vocab_size`.
pub fn token_ids(list: &[Json], path: &str, vocab_size: usize) -> Result<Vec<u32>, ApiError> {
    list.iter()
        .enumerate()
        .map(|(i, json)| match json.as_u64() {
            Some(id) if (id as usize) < vocab_size => Ok(id as u32),
            _ => Err(ApiError::field(
                format!("{path}[{i}]"),
                format!(
                    "is {}, expected a token id below {vocab_size}",
                    describe(json)
                ),
            )),
        })
        .collect()
}

/// What a JSON value is, in few words.
pub fn describe(json: &Json) -> String {
    match json {
        Json::Null => "null".to_owned(),
        Json::Bool(value) => value.to_string(),
        Json::Number(number) => number.to_string(),
        Json::String(text) => format!("the string {:?}", shortened(text)),
        Json::Array(list) => format!("a list of {}", list.len()),
        Json::Object(_) => "an object".to_owned(),
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fields(json: Json) -> Fields {
        Fields::of(json, "").expect("an object")
    }

    // E31
    #[test]
    fn wrong_values_name_the_field_and_what_it_may_be() {
        let wrong = [
            json!("5"),
            json!(-1),
            json!(1.5),
            json!(1e300),
            json!([]),
            json!(9),
        ];
        for json in wrong {
            let mut fields = fields(json!({"n": json}));
            let error = fields.integer("n", 1, 8).expect_err("wrong");
            assert_eq!(error.param.as_deref(), Some("n"));
            assert!(error.message.contains("from 1 to 8"), "{error}");
        }
        assert_eq!(fields(json!({"n": 3.0})).integer("n", 1, 8), Ok(Some(3)));
        assert_eq!(fields(json!({"n": null})).integer("n", 1, 8), Ok(None));
        assert!(fields(json!({"t": "NaN"})).number("t").is_err());
        let error = fields(json!({"ids": [1, 300]}))
            .tokens("ids", 259)
            .expect_err("wrong");
        assert_eq!(error.param.as_deref(), Some("ids[1]"));
    }

    // E32
    #[test]
    fn what_is_left_over_is_said() {
        let mut fields = fields(json!({"user": "me", "suffix": null, "odd": 1, "best_of": 1}));
        fields.without_effect("user", "requests are not told apart by it");
        fields
            .refuse("best_of", &[json!(1)], "no")
            .expect("neutral");
        let warnings = fields.finish();
        assert_eq!(warnings.len(), 2);
        assert!(warnings[0].starts_with("`user` has no effect"));
        assert!(warnings[1].starts_with("`odd` is not known"));
    }
}
