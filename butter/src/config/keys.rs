//! One view of GGUF metadata and of JSON objects that remembers which keys were
//! looked at, so that the rest can be refused.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::Value as Json;

use super::ConfigFault;
use crate::gguf::{GgufHeader, Value as GgufValue};
use crate::quote::quoted;

/// A scalar or something else, from either kind of file.
pub(crate) enum Found {
    Unsigned(u64),
    Float(f64),
    Bool(bool),
    String(String),
    Other(String),
}

impl Found {
    fn of_gguf(value: &GgufValue) -> Self {
        match value {
            GgufValue::Bool(v) => Self::Bool(*v),
            GgufValue::String(v) => Self::String(v.to_string()),
            other => match (other.as_u64(), other.as_f64()) {
                (Some(v), _) => Self::Unsigned(v),
                (_, Some(v)) => Self::Float(v),
                _ => Self::Other(other.describe()),
            },
        }
    }

    /// `None` for `null`, which is as if the key were absent.
    fn of_json(value: &Json) -> Option<Self> {
        Some(match value {
            Json::Null => return None,
            Json::Bool(v) => Self::Bool(*v),
            Json::String(v) => Self::String(v.clone()),
            Json::Number(v) => match (v.as_u64(), v.as_f64()) {
                (Some(v), _) => Self::Unsigned(v),
                (_, Some(v)) => Self::Float(v),
                _ => Self::Other(v.to_string()),
            },
            Json::Array(v) => Self::Other(format!("a list of {}", v.len())),
            Json::Object(_) => Self::Other("an object".to_owned()),
        })
    }

    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Unsigned(v) => v.to_string(),
            Self::Float(v) => v.to_string(),
            Self::Bool(v) => v.to_string(),
            Self::String(v) => quoted(v),
            Self::Other(v) => v.clone(),
        }
    }
}

/// Keys of a configuration with typed access. Absent and `null` are the same.
pub(crate) struct Keys<'a> {
    source: Source<'a>,
    /// Prepended to key names in errors.
    prefix: String,
    seen: RefCell<BTreeSet<String>>,
}

enum Source<'a> {
    Gguf(&'a GgufHeader),
    Json(&'a serde_json::Map<String, Json>),
}

impl<'a> Keys<'a> {
    /// The keys of a GGUF file below `prefix` (`llama.`).
    pub(crate) fn gguf(header: &'a GgufHeader, prefix: &str) -> Self {
        Self {
            source: Source::Gguf(header),
            prefix: prefix.to_owned(),
            seen: RefCell::default(),
        }
    }

    /// The keys of a JSON object that lies at `prefix` (empty, or `rope_scaling.`).
    pub(crate) fn json(object: &'a serde_json::Map<String, Json>, prefix: &str) -> Self {
        Self {
            source: Source::Json(object),
            prefix: prefix.to_owned(),
            seen: RefCell::default(),
        }
    }

    /// The key's full name, for errors.
    pub(crate) fn name(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    fn find(&self, key: &str) -> Option<Found> {
        self.seen.borrow_mut().insert(key.to_owned());
        match self.source {
            Source::Gguf(header) => header.get(&self.name(key)).map(Found::of_gguf),
            Source::Json(object) => Found::of_json(object.get(key)?),
        }
    }

    /// What stands under a key, for messages; in JSON, dots lead into objects.
    pub(crate) fn given(&self, path: &str) -> Option<String> {
        let found = match self.source {
            Source::Gguf(header) => header.get(&self.name(path)).map(Found::of_gguf),
            Source::Json(object) => {
                let (first, rest) = path.split_once('.').unwrap_or((path, ""));
                let steps = rest.split('.').filter(|step| !step.is_empty());
                let value = steps.fold(object.get(first), |value, step| value?.get(step));
                match value? {
                    Json::Array(list) if list.len() <= 8 => {
                        Some(Found::Other(quoted(&value?.to_string())))
                    }
                    value => Found::of_json(value),
                }
            }
        };
        found.map(|found| found.describe())
    }

    fn typed<T>(
        &self,
        key: &str,
        expected: &'static str,
        convert: impl Fn(&Found) -> Option<T>,
    ) -> Result<Option<T>, ConfigFault> {
        let Some(found) = self.find(key) else {
            return Ok(None);
        };
        match convert(&found) {
            Some(value) => Ok(Some(value)),
            None => Err(ConfigFault::Type {
                key: self.name(key),
                found: found.describe(),
                expected,
            }),
        }
    }

    pub(crate) fn size(&self, key: &str) -> Result<Option<usize>, ConfigFault> {
        self.typed(key, "a non-negative integer", |found| match found {
            Found::Unsigned(v) => usize::try_from(*v).ok(),
            _ => None,
        })
    }

    pub(crate) fn float(&self, key: &str) -> Result<Option<f64>, ConfigFault> {
        self.typed(key, "a number", |found| match found {
            Found::Unsigned(v) => Some(*v as f64),
            Found::Float(v) => Some(*v),
            _ => None,
        })
    }

    /// A number above 0 that stays one in f32, in which the graph computes.
    pub(crate) fn positive(&self, key: &str) -> Result<Option<f64>, ConfigFault> {
        let value = self.float(key)?;
        value
            .map(|value| self.check_positive(key, value))
            .transpose()
    }

    fn check_positive(&self, key: &str, value: f64) -> Result<f64, ConfigFault> {
        let single = value as f32;
        if single.is_finite() && single > 0.0 {
            return Ok(value);
        }
        Err(ConfigFault::Invalid {
            key: self.name(key),
            found: value.to_string(),
            rule: "it must be positive, and finite in f32".to_owned(),
        })
    }

    /// As [`Self::positive`], of what the graph multiplies by; 1 where it is absent.
    pub(crate) fn multiplier(&self, key: &str) -> Result<f32, ConfigFault> {
        Ok(self.positive(key)?.unwrap_or(1.0) as f32)
    }

    /// A list of so many multipliers; ones where it is absent.
    pub(crate) fn multipliers<const N: usize>(&self, key: &str) -> Result<[f32; N], ConfigFault> {
        let Some(list) = self.floats(key)? else {
            return Ok([1.0; N]);
        };
        let length = list.len();
        let list: Vec<f32> = list
            .into_iter()
            .map(|value| Ok(self.check_positive(key, value)? as f32))
            .collect::<Result<_, ConfigFault>>()?;
        list.try_into().map_err(|_| ConfigFault::Invalid {
            key: self.name(key),
            found: format!("a list of {length}"),
            rule: format!("it must have {N} entries"),
        })
    }

    /// What is added under the root of a norm: 0 or more.
    pub(crate) fn epsilon(&self, key: &str) -> Result<Option<f32>, ConfigFault> {
        match self.float(key)? {
            Some(value) if !(value >= 0.0 && (value as f32).is_finite()) => {
                Err(ConfigFault::Invalid {
                    key: self.name(key),
                    found: value.to_string(),
                    rule: "it must be finite and not negative".to_owned(),
                })
            }
            value => Ok(value.map(|value| value as f32)),
        }
    }

    pub(crate) fn bool(&self, key: &str) -> Result<Option<bool>, ConfigFault> {
        self.typed(key, "true or false", |found| match found {
            Found::Bool(v) => Some(*v),
            _ => None,
        })
    }

    pub(crate) fn string(&self, key: &str) -> Result<Option<String>, ConfigFault> {
        self.typed(key, "a string", |found| match found {
            Found::String(v) => Some(v.clone()),
            _ => None,
        })
    }

    /// A JSON value as it is; absent and `null` are the same.
    pub(crate) fn json_value(&self, key: &str) -> Option<&'a Json> {
        self.seen.borrow_mut().insert(key.to_owned());
        match self.source {
            Source::Gguf(_) => None,
            Source::Json(object) => object.get(key).filter(|value| !value.is_null()),
        }
    }

    /// A JSON list whose every entry converts.
    fn list<T>(
        &self,
        key: &str,
        expected: &'static str,
        convert: impl Fn(&Json) -> Option<T>,
    ) -> Result<Option<Vec<T>>, ConfigFault> {
        let Some(value) = self.json_value(key) else {
            return Ok(None);
        };
        let list: Option<Vec<T>> = value
            .as_array()
            .and_then(|entries| entries.iter().map(convert).collect());
        match list {
            Some(list) => Ok(Some(list)),
            None => Err(ConfigFault::Type {
                key: self.name(key),
                found: quoted(&value.to_string()),
                expected,
            }),
        }
    }

    pub(crate) fn strings(&self, key: &str) -> Result<Option<Vec<String>>, ConfigFault> {
        self.list(key, "a list of strings", |entry| {
            entry.as_str().map(str::to_owned)
        })
    }

    pub(crate) fn sizes(&self, key: &str) -> Result<Option<Vec<usize>>, ConfigFault> {
        self.list(key, "a list of non-negative integers", |entry| {
            entry.as_u64().and_then(|v| usize::try_from(v).ok())
        })
    }

    /// A list of numbers. Infinity, for which JSON has no number, may be written as
    /// transformers writes it: `{"__float__": "Infinity"}`.
    pub(crate) fn floats(&self, key: &str) -> Result<Option<Vec<f64>>, ConfigFault> {
        self.list(key, "a list of numbers", |entry| {
            entry
                .as_f64()
                .or_else(|| match entry.get("__float__")?.as_str()? {
                    "Infinity" => Some(f64::INFINITY),
                    "-Infinity" => Some(f64::NEG_INFINITY),
                    _ => None,
                })
        })
    }

    /// A size under any of several spellings, which must agree where more than one is there.
    pub(crate) fn size_of_any(&self, spellings: &[&str]) -> Result<Option<usize>, ConfigFault> {
        let mut found: Option<(&str, usize)> = None;
        for key in spellings {
            let Some(size) = self.size(key)? else {
                continue;
            };
            match found {
                Some((first_key, first)) if first != size => {
                    return Err(ConfigFault::Conflict {
                        first_key: self.name(first_key),
                        first: first.to_string(),
                        second_key: self.name(key),
                        second: size.to_string(),
                    });
                }
                _ => found = Some((key, size)),
            }
        }
        Ok(found.map(|(_, size)| size))
    }

    pub(crate) fn required<T>(&self, key: &str, value: Option<T>) -> Result<T, ConfigFault> {
        value.ok_or_else(|| ConfigFault::Missing {
            key: self.name(key),
        })
    }

    pub(crate) fn required_size(&self, key: &str) -> Result<usize, ConfigFault> {
        let value = self.size(key)?;
        self.required(key, value)
    }

    /// Refuses any value of a key that `accept` does not take; absent is fine.
    pub(crate) fn only(
        &self,
        key: &str,
        supported: &str,
        accept: impl Fn(&Found) -> bool,
    ) -> Result<(), ConfigFault> {
        match self.find(key) {
            Some(found) if !accept(&found) => Err(ConfigFault::Unsupported {
                key: self.name(key),
                found: found.describe(),
                supported: supported.to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// Whether a key was looked at.
    pub(crate) fn is_read(&self, key: &str) -> bool {
        self.seen.borrow().contains(key)
    }

    /// Refuses a size that is there and is not `expected`, which follows from `other`.
    pub(crate) fn must_be(
        &self,
        key: &str,
        expected: usize,
        other: &str,
    ) -> Result<(), ConfigFault> {
        match self.size(key)? {
            Some(found) if found != expected => Err(ConfigFault::Conflict {
                first_key: self.name(key),
                first: found.to_string(),
                second_key: self.name(other),
                second: expected.to_string(),
            }),
            _ => Ok(()),
        }
    }

    /// A nested JSON object; absent and `null` are the same.
    pub(crate) fn object(
        &self,
        key: &str,
    ) -> Result<Option<&'a serde_json::Map<String, Json>>, ConfigFault> {
        self.seen.borrow_mut().insert(key.to_owned());
        match self.source {
            Source::Gguf(_) => Ok(None),
            Source::Json(object) => match object.get(key) {
                None | Some(Json::Null) => Ok(None),
                Some(Json::Object(inner)) => Ok(Some(inner)),
                Some(other) => Err(ConfigFault::Type {
                    key: self.name(key),
                    found: quoted(&other.to_string()),
                    expected: "an object",
                }),
            },
        }
    }

    /// Errors if a key was neither looked at nor listed as irrelevant.
    pub(crate) fn finish(&self, irrelevant: &[&str]) -> Result<(), ConfigFault> {
        let seen = self.seen.borrow();
        let known = |key: &str| seen.contains(key) || irrelevant.contains(&key);
        let unknown: Vec<String> = match self.source {
            Source::Gguf(header) => header
                .metadata()
                .filter_map(|(key, _)| key.strip_prefix(&self.prefix))
                .filter(|key| !known(key))
                .map(|key| quoted(&self.name(key)))
                .collect(),
            Source::Json(object) => object
                .keys()
                .filter(|key| !known(key))
                .map(|key| quoted(&self.name(key)))
                .collect(),
        };
        if unknown.is_empty() {
            Ok(())
        } else {
            Err(ConfigFault::Unknown { keys: unknown })
        }
    }
}
