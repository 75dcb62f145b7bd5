//! From the scheduler's events to answers, whole or in pieces.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use serde_json::{Value as Json, json};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::chooser::Chooser;
use super::engine::Engine;
use super::error::ApiError;
use super::options::{ServeOptions, duration};
use super::request::{ApiRequest, Endpoint, random};
use super::stitch::{Piece, Stitcher};
use crate::sampler::Sampler;
use crate::scheduler::{Choice, Event, Failure, Job, Receipt};
use crate::tokenizer::{StreamState, Tokenizer};

/// The answers to one request on their way. Dropping it cancels what still runs.
pub struct Answering {
    engine: Arc<Engine>,
    request: ApiRequest,
    id: String,
    created: u64,
    events: UnboundedReceiver<(usize, Event)>,
    answers: Vec<Answer>,
    open: usize,
}

/// One answer.
struct Answer {
    stitcher: Stitcher,
    enough: Arc<AtomicBool>,
    /// Tokens, the one that ended the answer not among them.
    tokens: usize,
    finish: Option<&'static str>,
    receipt: Receipt,
    /// Log-probabilities of tokens whose text has not been sent.
    logprobs: Vec<Json>,
    /// Ids of tokens that have not been sent, where they are asked for.
    ids: Vec<u32>,
    /// Where the text of the next token with log-probabilities begins.
    offsets: TextOffsets,
    started: bool,
}

/// Where the texts of an answer's tokens begin in it, in characters: of a token that holds a part of
/// a character, where that character does.
#[derive(Default)]
struct TextOffsets {
    stream: StreamState,
    characters: usize,
}

impl TextOffsets {
    /// That of the next token.
    fn next(&mut self, tokenizer: Option<&Tokenizer>, token: u32) -> usize {
        let at = self.characters;
        if let Some(tokenizer) = tokenizer {
            self.characters += self.stream.push(tokenizer, token).chars().count();
        }
        at
    }
}

/// What came of one event.
struct Delta {
    index: usize,
    pieces: Vec<Piece>,
    logprobs: Vec<Json>,
    ids: Vec<u32>,
    finish: Option<&'static str>,
}

impl Answering {
    /// Hands a request to the scheduler. Compiling a grammar takes a core for a while.
    pub fn start(
        engine: Arc<Engine>,
        request: ApiRequest,
        options: &ServeOptions,
    ) -> Result<Answering, ApiError> {
        let (sender, events) = unbounded_channel();
        let deadline = Instant::now().checked_add(duration(options.request_timeout));
        let mut jobs = Vec::new();
        let mut answers = Vec::new();
        let count = request.prompts.len() * request.n;
        for index in 0..count {
            let prompt = &request.prompts[index / request.n].ids;
            let mut sampling = request.sampling.clone();
            // A seed that is given gives each prompt what it gets alone.
            let place = if request.is_seeded {
                index % request.n
            } else {
                index
            };
            sampling.seed = sampling.seed.wrapping_add(place as u64);
            let sampler = Sampler::new(sampling, engine.vocab_size)?;
            let mask = match &request.grammar {
                None => None,
                Some((field, spec)) => Some(engine.compile(spec).map_err(|problem| {
                    ApiError::field(*field, format!("cannot be compiled: {problem}"))
                        .code("invalid_grammar")
                })?),
            };
            let enough = Arc::new(AtomicBool::new(false));
            jobs.push(Job {
                prompt: prompt.clone(),
                max_tokens: request.max_tokens,
                stop_tokens: request.stop_tokens.clone(),
                chooser: Box::new(Chooser::new(sampler, prompt, mask, request.top_logprobs)),
                salt: request.salt,
                deadline,
                index,
                events: sender.clone(),
                enough: enough.clone(),
            });
            answers.push(Answer {
                stitcher: Stitcher::new(
                    engine.tokenizer.clone(),
                    &request.stops,
                    request.parts.clone(),
                ),
                enough,
                tokens: 0,
                finish: None,
                receipt: Receipt::default(),
                logprobs: Vec::new(),
                ids: Vec::new(),
                offsets: TextOffsets::default(),
                started: false,
            });
        }
        let prefix = match request.endpoint {
            Endpoint::Chat => "chatcmpl",
            Endpoint::Text => "cmpl",
        };
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let mut answering = Answering {
            id: format!("{prefix}-{:016x}", random()),
            created: since.map_or(0, |since| since.as_secs()),
            events,
            open: count,
            answers,
            request,
            engine,
        };
        if answering.request.max_tokens == 0 {
            // Nothing is to be computed: what the answer repeats is the answer.
            answering.open = 0;
            for answer in &mut answering.answers {
                answer.finish = Some("length");
            }
            return Ok(answering);
        }
        answering.engine.scheduler.submit(jobs)?;
        Ok(answering)
    }

    /// The request's number.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Whether the answer is a stream.
    pub fn streams(&self) -> bool {
        self.request.stream
    }

    /// Whether this request's prompt and answer, if any were kept, can be told.
    pub fn usage(&self) -> Json {
        let prompt: usize = self
            .request
            .prompts
            .iter()
            .map(|prompt| prompt.ids.len())
            .sum();
        let answer: usize = self.answers.iter().map(|answer| answer.tokens).sum();
        let reused = self
            .answers
            .iter()
            .map(|answer| answer.receipt.reused_tokens);
        json!({
            "prompt_tokens": prompt,
            "completion_tokens": answer,
            "total_tokens": prompt + answer,
            "prompt_tokens_details": {"cached_tokens": reused.max().unwrap_or(0)},
        })
    }

    /// The whole answer, when it is complete.
    pub async fn whole(mut self) -> Result<Json, ApiError> {
        let mut texts = vec![String::new(); self.answers.len()];
        let mut reasoning = texts.clone();
        let mut calls: Vec<Vec<(String, String)>> = vec![Vec::new(); self.answers.len()];
        let mut logprobs: Vec<Vec<Json>> = vec![Vec::new(); self.answers.len()];
        let mut ids: Vec<Vec<u32>> = vec![Vec::new(); self.answers.len()];
        while let Some(delta) = self.next().await? {
            let index = delta.index;
            for piece in delta.pieces {
                match piece {
                    Piece::Content(text) => texts[index] += &text,
                    Piece::Reasoning(text) => reasoning[index] += &text,
                    Piece::ToolCall { name, .. } => calls[index].push((name, String::new())),
                    Piece::ToolArguments { index: call, text } => {
                        if let Some((_, arguments)) = calls[index].get_mut(call) {
                            *arguments += &text;
                        }
                    }
                }
            }
            logprobs[index].extend(delta.logprobs);
            ids[index].extend(delta.ids);
        }
        let mut choices = Vec::new();
        for (index, text) in texts.into_iter().enumerate() {
            let answer = &self.answers[index];
            let listed = std::mem::take(&mut logprobs[index]);
            let listed = self
                .request
                .top_logprobs
                .map(|_| self.logprobs_object(listed, &mut TextOffsets::default()));
            let mut choice = json!({"index": index});
            match self.request.endpoint {
                Endpoint::Text => {
                    let echoed = self.echo(index);
                    choice["text"] = format!("{echoed}{text}").into();
                }
                Endpoint::Chat => {
                    let calls = std::mem::take(&mut calls[index]);
                    let mut message =
                        json!({"role": "assistant", "content": text, "refusal": null});
                    if !reasoning[index].is_empty() {
                        message["reasoning_content"] = std::mem::take(&mut reasoning[index]).into();
                    }
                    if !calls.is_empty() {
                        if text.is_empty() {
                            message["content"] = Json::Null;
                        }
                        let calls =
                            calls
                                .into_iter()
                                .enumerate()
                                .map(|(call, (name, arguments))| {
                                    json!({
                                        "id": self.call_id(index, call),
                                        "type": "function",
                                        "function": {"name": name, "arguments": arguments},
                                    })
                                });
                        message["tool_calls"] = calls.collect();
                    }
                    choice["message"] = message;
                }
            }
            choice["logprobs"] = listed.unwrap_or(Json::Null);
            choice["finish_reason"] = answer.finish.into();
            if self.request.return_token_ids {
                choice["token_ids"] = std::mem::take(&mut ids[index]).into();
            }
            choices.push(choice);
        }
        let mut whole = self.envelope(match self.request.endpoint {
            Endpoint::Chat => "chat.completion",
            Endpoint::Text => "text_completion",
        });
        whole["choices"] = choices.into();
        whole["usage"] = self.usage();
        self.add_notes(&mut whole);
        Ok(whole)
    }

    /// The next chunks of a stream; `None` when it is complete.
    pub async fn chunks(&mut self) -> Result<Option<Vec<Json>>, ApiError> {
        let mut chunks = Vec::new();
        if self.request.endpoint == Endpoint::Text && self.request.max_tokens == 0 {
            for index in 0..self.answers.len() {
                if !std::mem::replace(&mut self.answers[index].started, true) {
                    chunks.push(self.chunk(
                        index,
                        json!({"text": self.echo(index)}),
                        (vec![], vec![]),
                        Some("length"),
                    ));
                }
            }
            return Ok((!chunks.is_empty()).then_some(chunks));
        }
        let Some(delta) = self.next().await? else {
            return Ok(None);
        };
        let index = delta.index;
        let mut bodies = Vec::new();
        let first = !std::mem::replace(&mut self.answers[index].started, true);
        match self.request.endpoint {
            Endpoint::Text => {
                let mut text = if first {
                    self.echo(index).to_owned()
                } else {
                    String::new()
                };
                for piece in delta.pieces {
                    if let Piece::Content(more) = piece {
                        text += &more;
                    }
                }
                let listed = !delta.logprobs.is_empty() || !delta.ids.is_empty();
                if !text.is_empty() || listed || delta.finish.is_some() {
                    bodies.push(json!({"text": text}));
                }
            }
            Endpoint::Chat => {
                if first {
                    bodies.push(json!({"role": "assistant", "content": ""}));
                }
                for piece in delta.pieces {
                    bodies.push(match piece {
                        Piece::Content(text) => json!({"content": text}),
                        Piece::Reasoning(text) => json!({"reasoning_content": text}),
                        Piece::ToolCall { index: call, name } => json!({"tool_calls": [{
                            "index": call,
                            "id": self.call_id(index, call),
                            "type": "function",
                            "function": {"name": name, "arguments": ""},
                        }]}),
                        Piece::ToolArguments { index: call, text } => json!({"tool_calls": [{
                            "index": call,
                            "function": {"arguments": text},
                        }]}),
                    });
                }
                let listed = !delta.logprobs.is_empty() || !delta.ids.is_empty();
                if listed && bodies.len() == usize::from(first) {
                    bodies.push(json!({"content": ""}));
                }
                if delta.finish.is_some() {
                    bodies.push(json!({}));
                }
            }
        }
        let last = bodies.len().saturating_sub(1);
        // Log-probabilities and ids stand beside the last text, the finish beside the end.
        let beside =
            if delta.finish.is_some() && self.request.endpoint == Endpoint::Chat && last > 0 {
                last - 1
            } else {
                last
            };
        let mut listed = Some((delta.logprobs, delta.ids));
        for (i, body) in bodies.into_iter().enumerate() {
            let listed = if i == beside {
                listed.take().unwrap_or_default()
            } else {
                (Vec::new(), Vec::new())
            };
            let finish = if i == last { delta.finish } else { None };
            chunks.push(self.chunk(index, body, listed, finish));
        }
        Ok(Some(chunks))
    }

    /// The chunk at the end of a stream that says what it took, if wanted.
    pub fn closing(&self) -> Option<Json> {
        let noted = !self.request.warnings.is_empty() || self.request.receipt;
        if !self.request.include_usage && !noted {
            return None;
        }
        let mut chunk = self.envelope(self.chunk_kind());
        chunk["choices"] = json!([]);
        if self.request.include_usage {
            chunk["usage"] = self.usage();
        }
        self.add_notes(&mut chunk);
        Some(chunk)
    }

    /// What the log says of the request.
    pub fn log(&self) {
        let receipt = self.answers.iter().map(|answer| answer.receipt);
        let receipt = receipt.max_by(|a, b| a.decode_seconds.total_cmp(&b.decode_seconds));
        let receipt = receipt.unwrap_or_default();
        tracing::info!(
            id = self.id,
            answers = self.answers.len(),
            prompt_tokens = self
                .request
                .prompts
                .iter()
                .map(|prompt| prompt.ids.len())
                .sum::<usize>(),
            answer_tokens = self
                .answers
                .iter()
                .map(|answer| answer.tokens)
                .sum::<usize>(),
            reused_tokens = receipt.reused_tokens,
            queue_seconds = receipt.queue_seconds,
            prefill_seconds = receipt.prefill_seconds,
            decode_seconds = receipt.decode_seconds,
            finish = self.answers.first().and_then(|answer| answer.finish),
            "answered"
        );
    }

    /// The next event that shows; `None` when every answer is complete.
    async fn next(&mut self) -> Result<Option<Delta>, ApiError> {
        loop {
            if self.open == 0 {
                return Ok(None);
            }
            let Some((index, event)) = self.events.recv().await else {
                return Err(Failure::Shutdown.into());
            };
            if self.answers[index].finish.is_some() {
                // It had enough, and the scheduler's last words come late.
                if let Event::Finished { receipt, .. } = event {
                    self.answers[index].receipt = receipt;
                    self.open -= 1;
                }
                continue;
            }
            if let Some(delta) = self.take(index, event)? {
                return Ok(Some(delta));
            }
        }
    }

    fn take(&mut self, index: usize, event: Event) -> Result<Option<Delta>, ApiError> {
        let entry = match &event {
            Event::Token(choice) if self.request.top_logprobs.is_some() => {
                Some(self.logprob_entry(choice))
            }
            _ => None,
        };
        let answer = &mut self.answers[index];
        let mut delta = Delta {
            index,
            pieces: Vec::new(),
            logprobs: Vec::new(),
            ids: Vec::new(),
            finish: None,
        };
        match event {
            Event::Token(choice) => {
                answer.tokens += 1;
                answer.logprobs.extend(entry);
                if self.request.return_token_ids {
                    answer.ids.push(choice.token);
                }
                delta.pieces = answer.stitcher.push(choice.token);
                let one_call = !self.request.parallel_calls && answer.stitcher.complete_calls() > 0;
                if answer.stitcher.is_stopped() || one_call {
                    answer.enough.store(true, Relaxed);
                    delta.pieces.extend(answer.stitcher.finish());
                    let called = answer.stitcher.has_calls();
                    answer.finish = Some(if called { "tool_calls" } else { "stop" });
                    delta.finish = answer.finish;
                }
            }
            Event::Finished { stopped, receipt } => {
                answer.receipt = receipt;
                self.open -= 1;
                delta.pieces = answer.stitcher.finish();
                answer.finish = Some(match (stopped, answer.stitcher.has_calls()) {
                    (true, true) => "tool_calls",
                    (true, false) => "stop",
                    (false, _) if answer.stitcher.is_stopped() => "stop",
                    (false, _) => "length",
                });
                delta.finish = answer.finish;
            }
            Event::Failed { failure, receipt } => {
                answer.receipt = receipt;
                return Err(failure.into());
            }
        }
        // Log-probabilities go out with the text of their tokens.
        if !delta.pieces.is_empty() || (delta.finish.is_some() && !answer.stitcher.is_stopped()) {
            delta.logprobs = std::mem::take(&mut answer.logprobs);
        }
        // Ids go out as they come, also where their text is still held back.
        delta.ids = std::mem::take(&mut answer.ids);
        let shows = !delta.pieces.is_empty() || !delta.ids.is_empty() || delta.finish.is_some();
        Ok(shows.then_some(delta))
    }

    /// A token with its log-probability.
    fn logprob_entry(&self, choice: &Choice) -> Json {
        let entry = |token: u32, logprob: f64| {
            let bytes = self.engine.tokenizer.as_ref().map(|tokenizer| {
                if tokenizer.is_control(token) {
                    tokenizer.token(token).unwrap_or_default().into_bytes()
                } else {
                    tokenizer.token_bytes(token)
                }
            });
            let text = bytes.as_deref().map(String::from_utf8_lossy);
            // JSON has no infinity; this is what OpenAI gives for what is impossible.
            json!({
                "token": text.unwrap_or_else(|| format!("token_id:{token}").into()),
                "logprob": logprob.max(-9999.0),
                "bytes": bytes,
                "id": token,
            })
        };
        let mut listed = entry(choice.token, choice.logprob.unwrap_or(0.0));
        let top = choice
            .top
            .iter()
            .map(|&(token, logprob)| entry(token, logprob));
        listed["top_logprobs"] = top.collect();
        listed
    }

    /// Entries as the endpoint has them.
    fn logprobs_object(&self, entries: Vec<Json>, offsets: &mut TextOffsets) -> Json {
        if self.request.endpoint == Endpoint::Chat {
            return json!({"content": entries, "refusal": null});
        }
        let column = |name: &str| {
            entries
                .iter()
                .map(|entry| entry[name].clone())
                .collect::<Json>()
        };
        let tops = entries.iter().map(|entry| {
            let top = entry["top_logprobs"]
                .as_array()
                .map(Vec::as_slice)
                .unwrap_or_default();
            let pairs = top.iter().map(|entry| {
                let token = entry["token"].as_str().unwrap_or_default().to_owned();
                (token, entry["logprob"].clone())
            });
            Json::Object(pairs.collect())
        });
        let tokenizer = self.engine.tokenizer.as_deref();
        let ids = entries
            .iter()
            .map(|entry| entry["id"].as_u64().unwrap_or(0) as u32);
        let offsets = ids.map(|id| offsets.next(tokenizer, id));
        json!({
            "tokens": column("token"),
            "token_logprobs": column("logprob"),
            "top_logprobs": tops.collect::<Json>(),
            "text_offset": offsets.collect::<Json>(),
        })
    }

    fn chunk(
        &mut self,
        index: usize,
        body: Json,
        (logprobs, ids): (Vec<Json>, Vec<u32>),
        finish: Option<&str>,
    ) -> Json {
        let mut choice = json!({"index": index});
        match self.request.endpoint {
            Endpoint::Text => choice["text"] = body["text"].clone(),
            Endpoint::Chat => choice["delta"] = body,
        }
        let mut listed = Json::Null;
        if self.request.top_logprobs.is_some() && !logprobs.is_empty() {
            let mut offsets = std::mem::take(&mut self.answers[index].offsets);
            listed = self.logprobs_object(logprobs, &mut offsets);
            self.answers[index].offsets = offsets;
        }
        choice["logprobs"] = listed;
        choice["finish_reason"] = finish.into();
        if self.request.return_token_ids {
            choice["token_ids"] = ids.into();
        }
        let mut chunk = self.envelope(self.chunk_kind());
        chunk["choices"] = json!([choice]);
        if self.request.include_usage {
            chunk["usage"] = Json::Null;
        }
        chunk
    }

    fn chunk_kind(&self) -> &'static str {
        match self.request.endpoint {
            Endpoint::Chat => "chat.completion.chunk",
            Endpoint::Text => "text_completion",
        }
    }

    fn envelope(&self, object: &str) -> Json {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.engine.name,
            "system_fingerprint": concat!("butter-", env!("CARGO_PKG_VERSION")),
        })
    }

    fn add_notes(&self, json: &mut Json) {
        if !self.request.warnings.is_empty() {
            json["warnings"] = self.request.warnings.clone().into();
        }
        if self.request.receipt {
            let receipts: Vec<&Receipt> =
                self.answers.iter().map(|answer| &answer.receipt).collect();
            let (reuse, _) = self.engine.prefix_reuse();
            json["receipt"] = json!({"prefix_reuse": reuse, "answers": receipts});
        }
    }

    fn echo(&self, index: usize) -> &str {
        &self.request.prompts[index / self.request.n].echo
    }

    fn call_id(&self, index: usize, call: usize) -> String {
        let number = self.id.rsplit('-').next().unwrap_or_default();
        format!("call_{number}_{index}_{call}")
    }
}
