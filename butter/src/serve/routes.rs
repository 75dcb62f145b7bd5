//! The routes and what stands before them: keys, limits, bodies, errors.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use http_body_util::BodyExt;
use serde_json::{Value as Json, json};
use tokio::sync::mpsc;

use super::ServerState;
use super::answer::Answering;
use super::engine::check_length;
use super::error::{ApiError, json_response};
use super::fields::Fields;
use super::messages;
use super::metrics;
use super::options::duration;
use super::request::{ApiRequest, Endpoint, named_model};

type Shared = State<Arc<ServerState>>;

/// The page at `/`, whole: nothing is fetched from elsewhere.
const PAGE: &str = include_str!("page.html");
/// What browsers may do on the page: talk to this server.
const PAGE_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// How often a stream that waits shows that it is alive.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// Bytes that are read and thrown away after a body was too long, so that its sender reads why.
const MOST_DISCARDED: usize = 512 << 20;

/// All routes.
pub fn router(state: Arc<ServerState>) -> Router {
    let api = Router::new()
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(completions))
        .route("/v1/models", get(models))
        .route("/v1/models/{*name}", get(model))
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/metrics", get(show_metrics))
        .layer(from_fn_with_state(state.clone(), guard));
    Router::new()
        .route("/", get(page))
        .route("/health/live", get(live))
        .route("/health/ready", get(ready))
        .merge(api)
        .fallback(not_found)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(state.clone(), outermost))
        .with_state(state)
}

/// Counts answers, adds the headers of browsers' rules, answers their questions before calls.
async fn outermost(State(state): Shared, request: Request, next: Next) -> Response<Body> {
    let origin = request.headers().get(header::ORIGIN).cloned();
    let allowed = origin.filter(|origin| {
        let origins = &state.options.cors_origins;
        origins
            .iter()
            .any(|known| known == "*" || known.as_bytes() == origin.as_bytes())
    });
    let asks = request.method() == Method::OPTIONS
        && request
            .headers()
            .contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = if asks && allowed.is_some() {
        let mut response = StatusCode::NO_CONTENT.into_response();
        for (name, value) in [
            (header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST"),
            (
                header::ACCESS_CONTROL_ALLOW_HEADERS,
                "authorization, content-type",
            ),
            (header::ACCESS_CONTROL_MAX_AGE, "600"),
        ] {
            response
                .headers_mut()
                .insert(name, HeaderValue::from_static(value));
        }
        response
    } else {
        next.run(request).await
    };
    if let Some(origin) = allowed {
        let headers = response.headers_mut();
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.append(header::VARY, HeaderValue::from_static("origin"));
    }
    response.headers_mut().insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    state.http.answered(response.status().as_u16());
    response
}

/// Keys and rates.
async fn guard(State(state): Shared, request: Request, next: Next) -> Response<Body> {
    let caller = match state.access.caller(request.headers()) {
        Ok(caller) => caller,
        Err(error) => return error.into_response(),
    };
    if request.method() == Method::POST
        && let Err(error) = state.access.count(caller, Instant::now())
    {
        return error.into_response();
    }
    next.run(request).await
}

async fn page() -> Response<Body> {
    let mut response = Response::new(Body::from(PAGE));
    for (name, value) in [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, PAGE_POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
    ] {
        response
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    response
}

pub async fn live() -> Response<Body> {
    json_response(StatusCode::OK, &json!({"status": "live"}))
}

async fn ready(State(state): Shared) -> Response<Body> {
    let draining = state.draining.load(Relaxed);
    if !draining && state.engine.scheduler.metrics().ready.load(Relaxed) {
        return json_response(StatusCode::OK, &json!({"status": "ready"}));
    }
    let (why, code) = match draining {
        true => ("the server is shutting down", "shutting_down"),
        false => ("the device failed and does not answer yet", "not_ready"),
    };
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, why)
        .code(code)
        .retry_after(2)
        .into_response()
}

async fn not_found(request: Request) -> ApiError {
    let path: String = request.uri().path().chars().take(80).collect();
    ApiError::new(StatusCode::NOT_FOUND, format!("there is nothing at {path}")).code("not_found")
}

async fn wrong_method(request: Request) -> ApiError {
    let message = format!("{} is not answered here", request.method());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message).code("method_not_allowed")
}

async fn show_metrics(State(state): Shared) -> Response<Body> {
    let (reuse, _) = state.engine.prefix_reuse();
    let possible = !["off", "none"].contains(&reuse);
    let text = metrics::render(&state.engine.scheduler, &state.http, possible);
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"),
    );
    response
}

async fn models(State(state): Shared) -> Response<Body> {
    let model = state.engine.description(state.options.default_max_tokens);
    json_response(StatusCode::OK, &json!({"object": "list", "data": [model]}))
}

async fn model(State(state): Shared, request: Request) -> Result<Response<Body>, ApiError> {
    let path = request.uri().path();
    let name = percent_decoded(path.trim_start_matches("/v1/models/"));
    if name == state.engine.name.as_bytes() {
        let model = state.engine.description(state.options.default_max_tokens);
        return Ok(json_response(StatusCode::OK, &model));
    }
    let message = format!("this model is not served here, {:?} is", state.engine.name);
    Err(ApiError::new(StatusCode::NOT_FOUND, message).code("model_not_found"))
}

/// The bytes that a part of a path stands for: clients encode what names have, as `/`.
fn percent_decoded(text: &str) -> Vec<u8> {
    let digit = |byte: Option<&u8>| (*byte? as char).to_digit(16);
    let (bytes, mut decoded, mut i) = (text.as_bytes(), Vec::new(), 0);
    while i < bytes.len() {
        let code = (bytes[i] == b'%')
            .then(|| Some(digit(bytes.get(i + 1))? * 16 + digit(bytes.get(i + 2))?))
            .flatten();
        decoded.push(code.map_or(bytes[i], |code| code as u8));
        i += if code.is_some() { 3 } else { 1 };
    }
    decoded
}

async fn tokenize(State(state): Shared, request: Request) -> Result<Response<Body>, ApiError> {
    let body = read_body(request, &state).await?;
    aside(state, move |state| tokenized(parse(&body)?, state)).await
}

fn tokenized(body: Json, state: &ServerState) -> Result<Response<Body>, ApiError> {
    let engine = &state.engine;
    let most = state.options.max_prompt_bytes;
    let mut fields = Fields::of(body, "")?;
    named_model(&mut fields, engine)?;
    let ids = match fields.string("prompt")? {
        Some(_) if fields.take("messages").is_some() => {
            let problem = "stands beside `prompt`: give one of them";
            return Err(ApiError::field("messages", problem));
        }
        Some(text) => {
            let special = fields.boolean("add_special_tokens")?.unwrap_or(true);
            match &engine.tokenizer {
                Some(tokenizer) if !special => {
                    check_length(&text, "prompt", most)?;
                    tokenizer
                        .encode_text(&text)
                        .map_err(|error| ApiError::field("prompt", error.to_string()))?
                }
                _ => engine.encode_prompt(&text, "prompt", most)?,
            }
        }
        None if !fields.has("messages") => {
            return Err(ApiError::field(
                "prompt",
                "is missing, and so is `messages`",
            ));
        }
        None => messages::prompt(&mut fields, engine, Vec::new(), most)?.0,
    };
    let answer = json!({
        "count": ids.len(),
        "max_model_len": engine.scheduler.options().max_positions,
        "tokens": ids,
    });
    Ok(with_warnings(answer, fields))
}

async fn detokenize(State(state): Shared, request: Request) -> Result<Response<Body>, ApiError> {
    let body = read_body(request, &state).await?;
    aside(state, move |state| detokenized(parse(&body)?, state)).await
}

fn detokenized(body: Json, state: &ServerState) -> Result<Response<Body>, ApiError> {
    let engine = &state.engine;
    let mut fields = Fields::of(body, "")?;
    named_model(&mut fields, engine)?;
    let ids = fields
        .tokens("tokens", engine.vocab_size)?
        .ok_or_else(|| ApiError::field("tokens", "is missing"))?;
    let Some(tokenizer) = &engine.tokenizer else {
        let reason = "the checkpoint has no tokenizer that Butter reads";
        return Err(ApiError::unsupported("tokens", reason));
    };
    let answer = json!({"prompt": tokenizer.decode_all(&ids)});
    Ok(with_warnings(answer, fields))
}

fn with_warnings(mut answer: Json, fields: Fields) -> Response<Body> {
    let warnings = fields.finish();
    if !warnings.is_empty() {
        answer["warnings"] = warnings.into();
    }
    json_response(StatusCode::OK, &answer)
}

async fn chat(State(state): Shared, request: Request) -> Result<Response<Body>, ApiError> {
    complete(Endpoint::Chat, state, request).await
}

async fn completions(State(state): Shared, request: Request) -> Result<Response<Body>, ApiError> {
    complete(Endpoint::Text, state, request).await
}

async fn complete(
    endpoint: Endpoint,
    state: Arc<ServerState>,
    request: Request,
) -> Result<Response<Body>, ApiError> {
    if state.draining.load(Relaxed) {
        let message = "the server is shutting down";
        return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message)
            .code("shutting_down")
            .retry_after(5));
    }
    let body = read_body(request, &state).await?;
    let answering = aside(state.clone(), move |state| {
        let body = parse(&body)?;
        if state.options.log_prompts {
            tracing::info!(%body, "request");
        }
        let parsed = ApiRequest::parse(endpoint, body, &state.engine, &state.options)?;
        Answering::start(state.engine.clone(), parsed, &state.options)
    })
    .await?;
    if answering.streams() {
        return Ok(stream(answering));
    }
    let id = HeaderValue::from_str(answering.id());
    let whole = answering.whole().await?;
    if state.options.log_prompts {
        tracing::info!(%whole, "answer");
    }
    let mut response = json_response(StatusCode::OK, &whole);
    if let Ok(id) = id {
        response.headers_mut().insert("x-request-id", id);
    }
    Ok(response)
}

/// Runs what takes a core for a while (JSON, templates, tokenizers, grammars) beside the threads
/// that serve everybody's sockets, as many at once as there are cores.
async fn aside<T: Send + 'static>(
    state: Arc<ServerState>,
    work: impl FnOnce(&ServerState) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let place = state.readers.clone().acquire_owned().await;
    let worked = tokio::task::spawn_blocking(move || {
        let _place = place;
        work(&state)
    });
    worked.await.unwrap_or_else(|_| {
        let message = "the request could not be read: a check failed within the server";
        Err(ApiError::new(StatusCode::BAD_REQUEST, message).code("not_readable"))
    })
}

/// Server-sent events. The task that writes them ends when the client is gone, and with it the
/// request.
fn stream(mut answering: Answering) -> Response<Body> {
    let id = HeaderValue::from_str(answering.id());
    // Few events wait for a slow reader; the rest waits as tokens.
    let (sender, receiver) = mpsc::channel::<Bytes>(16);
    tokio::spawn(async move {
        loop {
            let next = tokio::select! {
                () = sender.closed() => return,
                () = tokio::time::sleep(HEARTBEAT) => None,
                next = answering.chunks() => Some(next),
            };
            let mut text = String::new();
            let done = match next {
                None => {
                    text += ": waiting\n\n";
                    false
                }
                Some(Ok(Some(chunks))) => {
                    for chunk in chunks {
                        text += &format!("data: {chunk}\n\n");
                    }
                    false
                }
                Some(Ok(None)) => {
                    if let Some(chunk) = answering.closing() {
                        text += &format!("data: {chunk}\n\n");
                    }
                    text += "data: [DONE]\n\n";
                    answering.log();
                    true
                }
                // The status is out already, so the error is an event; clients raise it.
                Some(Err(error)) => {
                    text = format!("data: {}\n\n", error.object());
                    true
                }
            };
            if sender.send(Bytes::from(text)).await.is_err() || done {
                return;
            }
        }
    });
    let mut response = Response::new(Body::from_stream(Events(receiver)));
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if let Ok(id) = id {
        headers.insert("x-request-id", id);
    }
    response
}

/// A channel as the body of a response.
struct Events(mpsc::Receiver<Bytes>);

impl futures_core::Stream for Events {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|bytes| bytes.map(Ok))
    }
}

/// A body within the limits of size and time.
async fn read_body(request: Request, state: &ServerState) -> Result<Vec<u8>, ApiError> {
    check_type(request.headers())?;
    let (limit, most) = (
        duration(state.options.body_timeout),
        state.options.max_body_bytes,
    );
    let stated = request.headers().get(header::CONTENT_LENGTH);
    let stated = stated.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    let is_too_long = stated.is_some_and(|length| length > most as u64);
    // Who asks first sends nothing yet; and nobody reads what would take for ever.
    let asks = request.headers().contains_key(header::EXPECT);
    if is_too_long && (asks || stated > Some(MOST_DISCARDED as u64)) {
        return Err(too_long(most));
    }
    let bytes = tokio::time::timeout(limit, read_bytes(request, most));
    bytes.await.map_err(|_| {
        if is_too_long {
            return too_long(most);
        }
        let message = format!("the body did not come within {} s", limit.as_secs_f64());
        ApiError::new(StatusCode::REQUEST_TIMEOUT, message).code("body_timeout")
    })?
}

/// A body's JSON.
fn parse(bytes: &[u8]) -> Result<Json, ApiError> {
    let wrong =
        |message: String| ApiError::new(StatusCode::BAD_REQUEST, message).code("invalid_json");
    if bytes.is_empty() {
        return Err(wrong(
            "the body is empty, expected a JSON object".to_owned(),
        ));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        wrong(format!(
            "the body is not UTF-8 from byte {}",
            error.valid_up_to()
        ))
    })?;
    serde_json::from_str(text).map_err(|error| wrong(format!("the body is not JSON: {error}")))
}

fn check_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let given = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    let kind = given.map(|kind| kind.split(|&byte| byte == b';').next().unwrap_or_default());
    match kind {
        Some(kind) if kind.trim_ascii().eq_ignore_ascii_case(b"application/json") => Ok(()),
        _ => {
            let message = "send JSON with the header `Content-Type: application/json`";
            Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message).code("not_json"))
        }
    }
}

/// A request's body; of a longer one what is too long is thrown away.
pub async fn read_bytes(request: Request, most: usize) -> Result<Vec<u8>, ApiError> {
    let mut body = request.into_body();
    let mut bytes = Vec::new();
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            ApiError::new(
                StatusCode::BAD_REQUEST,
                format!("the body broke off: {error}"),
            )
        })?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        length += data.len();
        if length <= most {
            bytes.extend_from_slice(&data);
        } else {
            bytes = Vec::new();
            if length > MOST_DISCARDED {
                break;
            }
        }
    }
    if length > most {
        return Err(too_long(most));
    }
    Ok(bytes)
}

fn too_long(most: usize) -> ApiError {
    let message = format!("the body has more than {most} bytes");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message).code("body_too_large")
}
