//! Bodies of requests: every field is checked before the scheduler sees the request (E31, E32).

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::http::StatusCode;
use serde_json::{Value as Json, json};

use super::engine::Engine;
use super::error::ApiError;
use super::fields::{Fields, describe, token_ids, whole};
use super::grammar::GrammarSpec;
use super::messages;
use super::options::ServeOptions;
use super::stitch::Parts;
use super::tool_call::ToolFormat;
use super::xml_call::ParameterKinds;
use crate::sampler::{MOST_TOP_LOGPROBS, Sampler, SamplingParameters};

/// Which endpoint a request came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Endpoint {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Text,
}

/// A prompt.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// Its tokens.
    pub ids: Vec<u32>,
    /// What each answer repeats of it before its own text.
    pub echo: String,
}

/// A checked request.
#[derive(Clone, Debug)]
pub struct ApiRequest {
    /// Where it came to.
    pub endpoint: Endpoint,
    /// Prompts, at least one.
    pub prompts: Vec<Prompt>,
    /// Answers a prompt.
    pub n: usize,
    /// Most tokens of an answer, clipped to what fits behind the longest prompt.
    pub max_tokens: usize,
    /// How tokens are chosen; answer `i` takes the seed plus `i`: of a prompt, where the seed was
    /// given, and else of all.
    pub sampling: SamplingParameters,
    /// Whether the request names a seed.
    pub is_seeded: bool,
    /// Texts that end an answer.
    pub stops: Vec<String>,
    /// Tokens that end an answer.
    pub stop_tokens: Vec<u32>,
    /// Alternatives to list beside each token, if log-probabilities are wanted.
    pub top_logprobs: Option<usize>,
    /// Whether pieces are sent as they come.
    pub stream: bool,
    /// Whether a stream ends with the usage.
    pub include_usage: bool,
    /// What answers must look like, and the field that says so.
    pub grammar: Option<(&'static str, GrammarSpec)>,
    /// Whether answers list their tokens' ids.
    pub return_token_ids: bool,
    /// What answers may hold beside content.
    pub parts: Parts,
    /// Whether an answer may hold several calls.
    pub parallel_calls: bool,
    /// Tenant of the prefix cache.
    pub salt: u64,
    /// Whether the answer carries its receipt.
    pub receipt: bool,
    /// What the answer says about fields without effect.
    pub warnings: Vec<String>,
}

/// What the tool fields say.
struct Tools {
    /// As the template takes them.
    list: Vec<Json>,
    format: Option<ToolFormat>,
    kinds: Arc<ParameterKinds>,
    grammar: Option<GrammarSpec>,
    parallel: bool,
}

impl ApiRequest {
    /// Reads and checks a body.
    pub fn parse(
        endpoint: Endpoint,
        body: Json,
        engine: &Engine,
        options: &ServeOptions,
    ) -> Result<ApiRequest, ApiError> {
        let mut fields = Fields::of(body, "")?;
        check_model(&mut fields, engine)?;
        let n = fields
            .integer("n", 1, options.max_choices as u64)?
            .unwrap_or(1) as usize;
        let asked = read_max_tokens(&mut fields, endpoint)?;
        let (sampling, is_seeded) = read_sampling(&mut fields)?;
        Sampler::new(sampling.clone(), engine.vocab_size)?;
        let stops = read_stops(&mut fields, options)?;
        let ignore_eos = fields.boolean("ignore_eos")?.unwrap_or(false);
        let mut stop_tokens = fields
            .tokens("stop_token_ids", engine.vocab_size)?
            .unwrap_or_default();
        if stop_tokens.len() > 256 {
            let problem = format!("has {} tokens, at most 256 may be", stop_tokens.len());
            return Err(ApiError::field("stop_token_ids", problem));
        }
        let top_logprobs = read_logprobs(&mut fields, endpoint)?;
        let (stream, include_usage) = read_stream(&mut fields)?;
        let salt = fields.string("cache_salt")?.map_or(0, |salt| hash(&salt));
        let receipt = fields.boolean("receipt")?.unwrap_or(false);
        // Without a tokenizer the ids are all that an answer can hold.
        let return_token_ids = fields.boolean("return_token_ids")?;
        let return_token_ids = return_token_ids.unwrap_or(engine.tokenizer.is_none());
        let mut grammar = read_grammar(&mut fields, options)?;
        refuse_known(&mut fields, endpoint)?;

        let mut parts = Parts::default();
        let mut parallel_calls = true;
        let prompts = match endpoint {
            Endpoint::Chat => {
                let tools = read_tools(&mut fields, engine, options)?;
                parallel_calls = tools.parallel;
                parts.tools = tools.format;
                parts.kinds = tools.kinds;
                if let Some(required) = tools.grammar {
                    if grammar.is_some() {
                        let reason = "cannot be held beside a required call of a tool";
                        return Err(ApiError::unsupported("response_format", reason));
                    }
                    grammar = Some(("tools", required));
                }
                let most = options.max_prompt_bytes;
                let (ids, open) = messages::prompt(&mut fields, engine, tools.list, most)?;
                parts.reasoning = engine.reasoning && grammar.is_none();
                parts.reasoning_open = parts.reasoning && open;
                vec![Prompt {
                    ids,
                    echo: String::new(),
                }]
            }
            Endpoint::Text => read_prompts(&mut fields, engine, options)?,
        };
        if top_logprobs.is_some() && prompts.iter().any(|prompt| !prompt.echo.is_empty()) {
            let reason = "cannot stand beside `logprobs`: prompts have no log-probabilities";
            return Err(ApiError::unsupported("echo", reason));
        }
        if let Some((field, _)) = &grammar
            && engine.tokenizer.is_none()
        {
            let reason = "needs a tokenizer, and the checkpoint has none that Butter reads";
            return Err(ApiError::unsupported(*field, reason));
        }
        if !stops.is_empty() && engine.tokenizer.is_none() {
            let reason = "needs a tokenizer, and the checkpoint has none that Butter reads";
            return Err(ApiError::unsupported("stop", reason));
        }
        if prompts.len() * n > options.max_choices {
            let problem = format!(
                "{} prompts with {n} answers each are more than {} answers",
                prompts.len(),
                options.max_choices
            );
            return Err(ApiError::field("n", problem));
        }
        if grammar.is_some() || !ignore_eos {
            stop_tokens.extend(&engine.end_of_generation);
        }
        let max_tokens = clip_max_tokens(endpoint, &prompts, asked, engine, options)?;
        Ok(ApiRequest {
            endpoint,
            prompts,
            n,
            max_tokens,
            sampling,
            is_seeded,
            stops,
            stop_tokens,
            top_logprobs,
            stream,
            include_usage,
            grammar,
            return_token_ids,
            parts,
            parallel_calls,
            salt,
            receipt,
            warnings: fields.finish(),
        })
    }
}

fn check_model(fields: &mut Fields, engine: &Engine) -> Result<(), ApiError> {
    if named_model(fields, engine)? {
        return Ok(());
    }
    let problem = format!("is missing; {:?} is served", engine.name);
    Err(ApiError::field("model", problem))
}

/// Whether the model is named; a name must be that of the model that is served.
pub(super) fn named_model(fields: &mut Fields, engine: &Engine) -> Result<bool, ApiError> {
    match fields.string("model")? {
        Some(name) if name != engine.name => {
            let name: String = name.chars().take(80).collect();
            let message = format!(
                "the model {name:?} is not served here, {:?} is",
                engine.name
            );
            Err(ApiError {
                param: Some("model".to_owned()),
                ..ApiError::new(StatusCode::NOT_FOUND, message).code("model_not_found")
            })
        }
        name => Ok(name.is_some()),
    }
}

/// `max_completion_tokens` is the newer name of `max_tokens`.
fn read_max_tokens(fields: &mut Fields, endpoint: Endpoint) -> Result<Option<u64>, ApiError> {
    let least = u64::from(endpoint == Endpoint::Chat);
    let old = fields.integer("max_tokens", least, u64::MAX)?;
    let new = match endpoint {
        Endpoint::Chat => fields.integer("max_completion_tokens", 1, u64::MAX)?,
        Endpoint::Text => None,
    };
    match (old, new) {
        (Some(old), Some(new)) if old != new => Err(ApiError::field(
            "max_completion_tokens",
            format!("is {new}, and `max_tokens` is {old}: give one of them"),
        )),
        _ => Ok(new.or(old)),
    }
}

/// The answer gets what the request asks for or else the server's default, and no more than fits
/// behind the longest prompt (E26).
fn clip_max_tokens(
    endpoint: Endpoint,
    prompts: &[Prompt],
    asked: Option<u64>,
    engine: &Engine,
    options: &ServeOptions,
) -> Result<usize, ApiError> {
    let limit = engine.scheduler.options().max_positions;
    let longest = prompts
        .iter()
        .map(|prompt| prompt.ids.len())
        .max()
        .unwrap_or(0);
    let name = match endpoint {
        Endpoint::Chat => "messages",
        Endpoint::Text => "prompt",
    };
    if longest == 0 {
        return Err(ApiError::field(name, "has no tokens"));
    }
    if longest >= limit {
        let problem = format!(
            "has {longest} tokens, and prompt and answer together may have {limit}: shorten it"
        );
        return Err(ApiError::field(name, problem).code("context_length_exceeded"));
    }
    let asked = asked.map_or(options.default_max_tokens, |asked| {
        usize::try_from(asked).unwrap_or(usize::MAX)
    });
    Ok(asked.min(limit - longest))
}

/// OpenAI's defaults: temperature 1, nothing filtered, a random seed. And whether a seed is given.
fn read_sampling(fields: &mut Fields) -> Result<(SamplingParameters, bool), ApiError> {
    let neutral = SamplingParameters::default();
    let mut number = |name: &str, default: f64| fields.number(name).map(|n| n.unwrap_or(default));
    let mut sampling = SamplingParameters {
        temperature: number("temperature", 1.0)?,
        top_p: number("top_p", 1.0)?,
        min_p: number("min_p", neutral.min_p)?,
        typical_p: number("typical_p", neutral.typical_p)?,
        repetition_penalty: number("repetition_penalty", neutral.repetition_penalty)?,
        presence_penalty: number("presence_penalty", neutral.presence_penalty)?,
        frequency_penalty: number("frequency_penalty", neutral.frequency_penalty)?,
        ..neutral
    };
    // -1 and 0 both mean all tokens in the field's servers.
    sampling.top_k = match fields.take("top_k") {
        None => 0,
        Some(json) if json == json!(-1) => 0,
        Some(json) => match whole(&json).and_then(|k| u32::try_from(k).ok()) {
            Some(k) => k,
            None => {
                let problem = format!("is {}, expected a whole number of tokens", describe(&json));
                return Err(ApiError::field("top_k", problem));
            }
        },
    };
    let seed = fields.take("seed");
    let is_seeded = seed.is_some();
    sampling.seed = match seed {
        None => random(),
        Some(json) => match json.as_i64().map(|seed| seed as u64).or(json.as_u64()) {
            Some(seed) => seed,
            None => {
                let problem = format!("is {}, expected a whole number", describe(&json));
                return Err(ApiError::field("seed", problem));
            }
        },
    };
    sampling.logit_bias = read_bias(fields)?;
    Ok((sampling, is_seeded))
}

fn read_bias(fields: &mut Fields) -> Result<BTreeMap<u32, f32>, ApiError> {
    let Some(json) = fields.take("logit_bias") else {
        return Ok(BTreeMap::new());
    };
    let Json::Object(map) = json else {
        let problem = format!("is {}, expected an object of token ids", describe(&json));
        return Err(ApiError::field("logit_bias", problem));
    };
    if map.len() > 1024 {
        let problem = format!("has {} tokens, at most 1024 may be", map.len());
        return Err(ApiError::field("logit_bias", problem));
    }
    map.iter()
        .map(|(token, bias)| {
            const MOST: f64 = 100.0;
            let wrong = |problem: String| {
                let token: String = token.chars().take(20).collect();
                ApiError::field(format!("logit_bias.{token}"), problem)
            };
            // Only as a number is written, so that no id is there twice.
            let id = token.parse::<u32>().ok();
            let id = id.filter(|id| id.to_string() == *token);
            let id = id.ok_or_else(|| wrong("is not a token id".to_owned()))?;
            let value = bias.as_f64().filter(|value| value.abs() <= MOST);
            let value = value.ok_or_else(|| {
                wrong(format!(
                    "is {}, expected a number from -{MOST} to {MOST}",
                    describe(bias)
                ))
            })?;
            Ok((id, value as f32))
        })
        .collect()
}

fn read_stops(fields: &mut Fields, options: &ServeOptions) -> Result<Vec<String>, ApiError> {
    let list = match fields.take("stop") {
        None => return Ok(Vec::new()),
        Some(Json::String(stop)) => vec![Json::String(stop)],
        Some(Json::Array(list)) => list,
        Some(other) => {
            let problem = format!("is {}, expected a string or a list", describe(&other));
            return Err(ApiError::field("stop", problem));
        }
    };
    if list.len() > options.max_stops {
        let problem = format!(
            "has {} strings, at most {} may be",
            list.len(),
            options.max_stops
        );
        return Err(ApiError::field("stop", problem));
    }
    list.into_iter()
        .enumerate()
        .map(|(i, json)| match json {
            Json::String(stop) if stop.is_empty() => {
                Err(ApiError::field(format!("stop[{i}]"), "is empty"))
            }
            Json::String(stop) if stop.len() > options.max_stop_bytes => {
                let (bytes, most) = (stop.len(), options.max_stop_bytes);
                let problem = format!("has {bytes} bytes, at most {most} may be");
                Err(ApiError::field(format!("stop[{i}]"), problem))
            }
            Json::String(stop) => Ok(stop),
            other => {
                let problem = format!("is {}, expected a string", describe(&other));
                Err(ApiError::field(format!("stop[{i}]"), problem))
            }
        })
        .collect()
}

/// Chat has `logprobs: true` with `top_logprobs: n`; completions have `logprobs: n`.
fn read_logprobs(fields: &mut Fields, endpoint: Endpoint) -> Result<Option<usize>, ApiError> {
    let most = MOST_TOP_LOGPROBS as u64;
    match endpoint {
        Endpoint::Text => Ok(fields.integer("logprobs", 0, most)?.map(|top| top as usize)),
        Endpoint::Chat => {
            let wanted = fields.boolean("logprobs")?.unwrap_or(false);
            let top = fields.integer("top_logprobs", 0, most)?;
            match (wanted, top) {
                (true, top) => Ok(Some(top.unwrap_or(0) as usize)),
                (false, Some(1..)) => Err(ApiError::field(
                    "top_logprobs",
                    "needs `logprobs` to be true",
                )),
                (false, _) => Ok(None),
            }
        }
    }
}

fn read_stream(fields: &mut Fields) -> Result<(bool, bool), ApiError> {
    let stream = fields.boolean("stream")?.unwrap_or(false);
    let Some(mut options) = fields.object("stream_options")? else {
        return Ok((stream, false));
    };
    if !stream {
        return Err(ApiError::field(
            "stream_options",
            "needs `stream` to be true",
        ));
    }
    let usage = options.boolean("include_usage")?.unwrap_or(false);
    options.without_effect("include_obfuscation", "streams are not padded");
    fields.absorb(options);
    Ok((stream, usage))
}

fn read_grammar(
    fields: &mut Fields,
    options: &ServeOptions,
) -> Result<Option<(&'static str, GrammarSpec)>, ApiError> {
    let mut found: Vec<(&'static str, GrammarSpec)> = Vec::new();
    if let Some(mut format) = fields.object("response_format")? {
        let kind = format.string("type")?;
        match kind.as_deref() {
            Some("text") => {}
            Some("json_object") => found.push(("response_format", GrammarSpec::json_object())),
            Some("json_schema") => {
                let Some(mut named) = format.object("json_schema")? else {
                    return Err(ApiError::field("response_format.json_schema", "is missing"));
                };
                let path = "response_format.json_schema.schema";
                let schema = named
                    .take("schema")
                    .ok_or_else(|| ApiError::field(path, "is missing"))?;
                check_schema(&schema, path, options)?;
                let _name = named.string("name")?;
                // The answer follows the schema in either case.
                let _strict = named.boolean("strict")?;
                named.without_effect("description", "the schema alone is held");
                format.absorb(named);
                found.push(("response_format", GrammarSpec::JsonSchema(schema)));
            }
            _ => {
                let problem = "must be text, json_object or json_schema";
                return Err(ApiError::field("response_format.type", problem));
            }
        }
        fields.absorb(format);
    }
    if let Some(schema) = fields.take("guided_json") {
        check_schema(&schema, "guided_json", options)?;
        found.push(("guided_json", GrammarSpec::JsonSchema(schema)));
    }
    for (name, make) in [
        (
            "guided_regex",
            GrammarSpec::Regex as fn(String) -> GrammarSpec,
        ),
        ("guided_grammar", GrammarSpec::Lark),
    ] {
        if let Some(text) = fields.string(name)? {
            if text.len() > options.max_schema_bytes {
                let problem = format!(
                    "has {} bytes, at most {} may be",
                    text.len(),
                    options.max_schema_bytes
                );
                return Err(ApiError::field(name, problem));
            }
            found.push((name, make(text)));
        }
    }
    match found.len() {
        0 | 1 => Ok(found.pop()),
        _ => {
            let problem = format!(
                "stands beside `{}`, and one of them can be held",
                found[0].0
            );
            Err(ApiError::field(found[1].0, problem))
        }
    }
}

/// A schema within the limits; the compiler decides about the rest.
fn check_schema(schema: &Json, path: &str, options: &ServeOptions) -> Result<(), ApiError> {
    if !schema.is_object() {
        let problem = format!("is {}, expected an object", describe(schema));
        return Err(ApiError::field(path, problem));
    }
    let bytes = schema.to_string().len();
    if bytes > options.max_schema_bytes {
        let most = options.max_schema_bytes;
        return Err(ApiError::field(
            path,
            format!("has {bytes} bytes, at most {most} may be"),
        ));
    }
    let depth = depth(schema);
    if depth > options.max_schema_depth {
        let most = options.max_schema_depth;
        return Err(ApiError::field(
            path,
            format!("is {depth} levels deep, at most {most} may be"),
        ));
    }
    Ok(())
}

/// Levels of a JSON value; the parser bounds them.
fn depth(json: &Json) -> usize {
    match json {
        Json::Array(list) => 1 + list.iter().map(depth).max().unwrap_or(0),
        Json::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
        _ => 1,
    }
}

fn read_tools(
    fields: &mut Fields,
    engine: &Engine,
    options: &ServeOptions,
) -> Result<Tools, ApiError> {
    let list = fields.list("tools")?.unwrap_or_default();
    let choice = fields.take("tool_choice");
    let parallel = fields.boolean("parallel_tool_calls")?.unwrap_or(true);
    let mut tools = Tools {
        list: Vec::new(),
        format: None,
        kinds: Arc::default(),
        grammar: None,
        parallel,
    };
    if list.is_empty() {
        return match choice {
            None => Ok(tools),
            Some(json) if json == json!("none") || json == json!("auto") => Ok(tools),
            Some(_) => Err(ApiError::field(
                "tool_choice",
                "names tools, and `tools` has none",
            )),
        };
    }
    if list.len() > 128 {
        let problem = format!("has {} tools, at most 128 may be", list.len());
        return Err(ApiError::field("tools", problem));
    }
    let mut functions: Vec<(String, Json)> = Vec::new();
    for (i, tool) in list.iter().enumerate() {
        functions.push(read_function(fields, tool, i, options)?);
    }
    let required = match &choice {
        None => Vec::new(),
        Some(Json::String(choice)) => match choice.as_str() {
            "none" => return Ok(tools),
            "auto" => Vec::new(),
            "required" => functions.clone(),
            _ => {
                let problem = "must be none, auto, required or a function";
                return Err(ApiError::field("tool_choice", problem));
            }
        },
        Some(json) => {
            let name = json.pointer("/function/name").and_then(Json::as_str);
            let found = functions
                .iter()
                .find(|(function, _)| Some(function.as_str()) == name);
            let problem = "names no function of `tools`";
            let found = found.ok_or_else(|| ApiError::field("tool_choice", problem))?;
            vec![found.clone()]
        }
    };
    let template = engine
        .template
        .as_ref()
        .map_or("", |template| template.source());
    let format = ToolFormat::of_template(template)
        .map_err(|reason| ApiError::unsupported("tools", reason))?;
    tools.format = Some(format);
    if format == ToolFormat::Xml {
        tools.kinds = Arc::new(ParameterKinds::new(&functions));
    }
    if !required.is_empty() {
        let grammar = format.grammar(&required).map_err(|(name, problem)| {
            let index = functions.iter().position(|(known, _)| *known == name);
            let path = format!("tools[{}].function.parameters", index.unwrap_or(0));
            ApiError::unsupported(path, &problem)
        })?;
        tools.grammar = Some(GrammarSpec::Lark(grammar));
    }
    tools.list = list;
    Ok(tools)
}

fn read_function(
    fields: &mut Fields,
    tool: &Json,
    index: usize,
    options: &ServeOptions,
) -> Result<(String, Json), ApiError> {
    let path = format!("tools[{index}]");
    let mut tool = Fields::of(tool.clone(), &path)?;
    if tool.string("type")?.as_deref() != Some("function") {
        return Err(ApiError::field(tool.path("type"), "must be function"));
    }
    let missing = ApiError::field(tool.path("function"), "is missing");
    let mut function = tool.object("function")?.ok_or(missing)?;
    let name = function.string("name")?.unwrap_or_default();
    let right = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if name.is_empty() || name.len() > 64 || !name.chars().all(right) {
        let problem = "must be 1 to 64 letters, digits, _ or -";
        return Err(ApiError::field(function.path("name"), problem));
    }
    let _described = function.string("description")?;
    let _strict = function.boolean("strict")?;
    let parameters = function.take("parameters");
    let schema = parameters.unwrap_or_else(|| json!({"type": "object", "properties": {}}));
    check_schema(&schema, &function.path("parameters"), options)?;
    fields.absorb(function);
    fields.absorb(tool);
    Ok((name, schema))
}

/// Fields that OpenAI's API has and that mean something that is not done here.
fn refuse_known(fields: &mut Fields, endpoint: Endpoint) -> Result<(), ApiError> {
    let [no, none, one] = [json!(false), json!([]), json!(1)];
    match endpoint {
        Endpoint::Chat => {
            fields.refuse("modalities", &[json!(["text"])], "only text is answered")?;
            fields.refuse("audio", &[], "only text is answered")?;
            fields.refuse("prediction", &[], "predicted outputs are not used")?;
            fields.refuse("web_search_options", &[], "there is no search")?;
            if fields.take_equal("functions", &none) {
                fields.warn("functions", "it is empty; functions come as `tools`");
            }
            fields.refuse("functions", &[], "use `tools`")?;
            fields.refuse("function_call", &[json!("none")], "use `tool_choice`")?;
            let reason = "the model decides how much it reasons";
            fields.without_effect("reasoning_effort", reason);
            fields.without_effect("verbosity", "the model decides how much it says");
        }
        Endpoint::Text => {
            fields.refuse("best_of", &[one], "answers are not ranked; use `n`")?;
            fields.refuse("suffix", &[json!("")], "texts are not filled in")?;
        }
    }
    fields.refuse(
        "use_beam_search",
        std::slice::from_ref(&no),
        "there is no beam search",
    )?;
    fields.refuse("store", &[no], "answers are not stored")?;
    fields.refuse("prompt_logprobs", &[], "prompts have no log-probabilities")?;
    for (name, reason) in [
        (
            "user",
            "requests are not told apart by it; `cache_salt` keeps tenants apart",
        ),
        ("safety_identifier", "requests are not told apart by it"),
        (
            "prompt_cache_key",
            "prefixes are found by their tokens; `cache_salt` keeps tenants apart",
        ),
        ("metadata", "nothing is stored"),
        ("service_tier", "there is one tier"),
    ] {
        fields.without_effect(name, reason);
    }
    Ok(())
}

/// A prompt is a text, a list of ids, or a list of either.
fn read_prompts(
    fields: &mut Fields,
    engine: &Engine,
    options: &ServeOptions,
) -> Result<Vec<Prompt>, ApiError> {
    let echo = fields.boolean("echo")?.unwrap_or(false);
    if echo && engine.tokenizer.is_none() {
        let reason = "needs a tokenizer, and the checkpoint has none that Butter reads";
        return Err(ApiError::unsupported("echo", reason));
    }
    let json = fields
        .take("prompt")
        .ok_or_else(|| ApiError::field("prompt", "is missing"))?;
    let list = match json {
        Json::Array(list) if list.is_empty() => {
            return Err(ApiError::field("prompt", "is an empty list"));
        }
        Json::Array(list) if list.iter().all(|json| !json.is_number()) => list,
        one => vec![one],
    };
    if list.len() > options.max_choices {
        let problem = format!(
            "has {} prompts, at most {} may be",
            list.len(),
            options.max_choices
        );
        return Err(ApiError::field("prompt", problem));
    }
    let several = list.len() > 1;
    list.into_iter()
        .enumerate()
        .map(|(i, json)| {
            let path = if several {
                format!("prompt[{i}]")
            } else {
                "prompt".to_owned()
            };
            let (ids, text) = match json {
                Json::String(text) => {
                    let most = options.max_prompt_bytes;
                    (engine.encode_prompt(&text, &path, most)?, text)
                }
                Json::Array(ids) => {
                    let ids = token_ids(&ids, &path, engine.vocab_size)?;
                    let text = engine.tokenizer.as_ref().map(|t| t.decode_all(&ids));
                    (ids, text.unwrap_or_default())
                }
                other => {
                    let problem =
                        format!("is {}, expected a string or token ids", describe(&other));
                    return Err(ApiError::field(path, problem));
                }
            };
            if ids.is_empty() {
                return Err(ApiError::field(path, "has no tokens"));
            }
            let echo = if echo { text } else { String::new() };
            Ok(Prompt { ids, echo })
        })
        .collect()
}

/// A number that no caller can foresee.
pub fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    // The standard library seeds this from the system's randomness.
    RandomState::new().hash_one(std::time::Instant::now())
}

/// A salt's number: keyed by this process, so that no caller can look for one that collides.
fn hash(text: &str) -> u64 {
    use std::hash::{BuildHasher, RandomState};
    static KEY: std::sync::OnceLock<RandomState> = std::sync::OnceLock::new();
    // 0 is the salt of those who name none.
    KEY.get_or_init(RandomState::new).hash_one(text).max(1)
}
