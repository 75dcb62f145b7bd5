//! A chat's messages: checked, rendered by the model's template, encoded.

use axum::http::StatusCode;
use serde_json::{Map, Value as Json};

use super::engine::{Engine, check_length};
use super::error::ApiError;
use super::fields::{Fields, describe};

/// Roles that messages may have; `developer` is the newer name of `system`.
const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// The ids of a chat, whose text may have `most_bytes` bytes, and whether its last words open the
/// model's reasoning.
pub fn prompt(
    fields: &mut Fields,
    engine: &Engine,
    tools: Vec<Json>,
    most_bytes: usize,
) -> Result<(Vec<u32>, bool), ApiError> {
    let (Some(template), Some(tokenizer)) = (&engine.template, &engine.tokenizer) else {
        let reason = "this model has no chat template; use /v1/completions";
        return Err(ApiError::unsupported("messages", reason));
    };
    let list = fields
        .list("messages")?
        .ok_or_else(|| ApiError::field("messages", "is missing"))?;
    if list.is_empty() {
        return Err(ApiError::field("messages", "is an empty list"));
    }
    let messages = list
        .into_iter()
        .enumerate()
        .map(|(i, json)| message(fields, json, &format!("messages[{i}]")))
        .collect::<Result<Vec<_>, _>>()?;
    let mut names = match fields.object("chat_template_kwargs")? {
        Some(inner) => inner.into_map(),
        None => Map::new(),
    };
    for (reserved, reason) in [
        ("messages", "is the request's own `messages`"),
        ("tools", "is the request's own `tools`"),
        ("add_generation_prompt", "is always true here"),
        ("bos_token", "is the model's"),
        ("eos_token", "is the model's"),
    ] {
        match names.shift_remove(reserved) {
            None | Some(Json::Null) => {}
            Some(Json::Bool(true)) if reserved == "add_generation_prompt" => {}
            Some(_) => {
                let path = format!("chat_template_kwargs.{reserved}");
                return Err(ApiError::unsupported(path, reason));
            }
        }
    }
    if !tools.is_empty() {
        names.insert("tools".to_owned(), Json::Array(tools));
    }
    let refused = |message: String| ApiError {
        param: Some("messages".to_owned()),
        ..ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, message).code("template_refused")
    };
    let rendered = template
        .render_with(&messages, true, &tokenizer.control_texts(), names)
        .map_err(|error| refused(error.to_string()))?;
    check_length(rendered.text(), "messages", most_bytes)?;
    let ids = tokenizer
        .encode_chat(&rendered)
        .map_err(|error| refused(error.to_string()))?;
    let open = rendered.text().trim_end().ends_with("<think>");
    Ok((engine.one_bos(ids), open))
}

/// A message as templates take it.
fn message(fields: &mut Fields, json: Json, path: &str) -> Result<Map<String, Json>, ApiError> {
    let mut given = Fields::of(json, path)?;
    let role = given
        .string("role")?
        .ok_or_else(|| ApiError::field(given.path("role"), "is missing"))?;
    if !ROLES.contains(&role.as_str()) {
        let role: String = role.chars().take(40).collect();
        let problem = format!("is {role:?}, expected one of {}", ROLES.join(", "));
        return Err(ApiError::field(given.path("role"), problem));
    }
    let mut message = Map::new();
    let known = if role == "developer" {
        "system"
    } else {
        role.as_str()
    };
    message.insert("role".to_owned(), known.into());
    let calls = given.list("tool_calls")?.unwrap_or_default();
    if !calls.is_empty() && role != "assistant" {
        return Err(ApiError::field(
            given.path("tool_calls"),
            "only an assistant calls tools",
        ));
    }
    let content = match given.take("content") {
        Some(Json::String(text)) => Some(text),
        Some(Json::Array(parts)) => Some(text_of_parts(&parts, &given.path("content"))?),
        None if !calls.is_empty() => None,
        None => {
            let problem = "is missing or null; only an assistant's calls go without";
            return Err(ApiError::field(given.path("content"), problem));
        }
        Some(other) => {
            let problem = format!(
                "is {}, expected a string or a list of parts",
                describe(&other)
            );
            return Err(ApiError::field(given.path("content"), problem));
        }
    };
    message.insert("content".to_owned(), content.unwrap_or_default().into());
    if !calls.is_empty() {
        let calls = calls
            .into_iter()
            .enumerate()
            .map(|(i, call)| tool_call(call, &format!("{path}.tool_calls[{i}]")))
            .collect::<Result<Vec<_>, _>>()?;
        message.insert("tool_calls".to_owned(), Json::Array(calls));
    }
    for name in ["name", "tool_call_id", "reasoning_content"] {
        if let Some(text) = given.string(name)? {
            message.insert(name.to_owned(), text.into());
        }
    }
    if role == "assistant" {
        // As the server's own answers have them, sent back by clients.
        for name in ["refusal", "annotations", "audio", "function_call"] {
            given.without_effect(name, "the model does not see it");
        }
    }
    fields.absorb(given);
    Ok(message)
}

/// Parts of text, joined.
fn text_of_parts(parts: &[Json], path: &str) -> Result<String, ApiError> {
    let mut text = String::new();
    for (i, part) in parts.iter().enumerate() {
        let kind = part.get("type").and_then(Json::as_str);
        match (kind, part.get("text").and_then(Json::as_str)) {
            (Some("text"), Some(part)) => text += part,
            (Some("text"), None) => {
                return Err(ApiError::field(format!("{path}[{i}].text"), "is no string"));
            }
            _ => {
                let reason = "only parts of type text are read";
                return Err(ApiError::unsupported(format!("{path}[{i}].type"), reason));
            }
        }
    }
    Ok(text)
}

/// A call with its arguments as an object, which templates write as JSON themselves.
fn tool_call(json: Json, path: &str) -> Result<Json, ApiError> {
    let mut call = json;
    let Some(Json::Object(function)) = call.get_mut("function") else {
        return Err(ApiError::field(format!("{path}.function"), "is no object"));
    };
    if function.get("name").and_then(Json::as_str).is_none() {
        return Err(ApiError::field(
            format!("{path}.function.name"),
            "is no string",
        ));
    }
    let arguments = match function.get("arguments") {
        Some(Json::String(text)) => serde_json::from_str(text).ok(),
        Some(Json::Object(map)) => Some(Json::Object(map.clone())),
        _ => None,
    };
    let Some(Json::Object(arguments)) = arguments else {
        let problem = "is no JSON object, as text or as it is";
        return Err(ApiError::field(
            format!("{path}.function.arguments"),
            problem,
        ));
    };
    function.insert("arguments".to_owned(), Json::Object(arguments));
    Ok(call)
}
