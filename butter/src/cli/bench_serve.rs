//! `butter bench-serve`: load on a server, and the clocks of what it answers.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hash::{BuildHasher, RandomState};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value as Json, json};

use super::limits::{POSITIONS, REPETITIONS, SEQUENCES, count, counts, rate, temperature};
use super::{CommandError, report_file::ReportFile};
use crate::sampler::uniform;

#[derive(Args, Debug)]
pub(super) struct BenchServeArguments {
    /// The server; its key, if it wants one, is taken from `BUTTER_API_KEY`.
    #[arg(long, default_value = "http://127.0.0.1:8080")]
    url: String,
    /// The served model; the server's first by default.
    #[arg(long)]
    model: Option<String>,
    /// Requests at once, each client asking again when it is answered (a closed loop); 16 where it
    /// is not said.
    #[arg(long, value_parser = count::<1, SEQUENCES>)]
    clients: Option<usize>,
    /// Requests in all.
    #[arg(long, default_value_t = 64, value_parser = count::<1, REPETITIONS>)]
    requests: usize,
    /// Arrivals a second at random times, however many are under way (an open loop, which has no
    /// `--clients`); 0: a closed loop.
    #[arg(long, default_value_t = 0.0, value_parser = rate, allow_negative_numbers = true)]
    rate: f64,
    /// Tokens of a prompt: one number, or the least and the most as `16-512`.
    #[arg(long, default_value = "128", value_parser = counts::<1, POSITIONS>)]
    prompt_tokens: (usize, usize),
    /// How much of each prompt, in percent, is the beginning that all prompts share.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
    shared: u8,
    /// Tokens of an answer, in the same way.
    #[arg(long, default_value = "64", value_parser = counts::<1, POSITIONS>)]
    answer_tokens: (usize, usize),
    /// Temperature of the answers: above 0 the server samples, each request with its own seed.
    #[arg(long, default_value_t = 0.0, value_parser = temperature, allow_negative_numbers = true)]
    temperature: f64,
    /// Seconds that a server may be silent.
    #[arg(long, default_value_t = 600, value_parser = count::<1, 86_400>)]
    timeout: usize,
    /// Seed of lengths, prompts and arrivals. Prompts of an earlier run are computed again: each run
    /// has a `cache_salt` of its own.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Writes the numbers to a file as JSON, too.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Writes the report as Markdown to this file, not to standard output.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

impl BenchServeArguments {
    fn clients(&self) -> usize {
        self.clients.unwrap_or(16)
    }
}

/// What one request took. Times are seconds.
#[derive(Default)]
struct Measured {
    /// When it was to begin, since the load began.
    begun: f64,
    /// When each token came since then; a server that names no ids has one entry an event.
    times: Vec<f64>,
    total: f64,
    /// As the server's receipt says.
    queue: f64,
    reused_tokens: u64,
    prompt_tokens: u64,
    answer_tokens: u64,
}

pub(super) fn run(arguments: &BenchServeArguments) -> Result<(), CommandError> {
    let wrong = |problem: String| CommandError::Option {
        option: "bench-serve",
        problem,
    };
    if arguments.rate > 0.0 && arguments.clients.is_some() {
        return Err(CommandError::Usage {
            option: "--clients",
            problem:
                "requests of `--rate` come at random times, whoever is under way: give one of \
                      the two"
                    .to_owned(),
        });
    }
    let server = Server::parse(&arguments.url, arguments.timeout as u64).map_err(wrong)?;
    let files = ReportFile::open_both(&arguments.json, &arguments.markdown)?;
    let described = server.describe().map_err(wrong)?;
    let named = described["id"].as_str().unwrap_or_default().to_owned();
    let load = Load {
        arguments,
        server: &server,
        model: arguments.model.clone().unwrap_or(named),
        vocab: described["vocab_size"].as_u64().unwrap_or(1000).max(2),
        // The standard library seeds this from the system's randomness.
        salt: format!("bench-serve-{:016x}", RandomState::new().hash_one(0)),
        begun: Instant::now(),
        done: Mutex::default(),
        failed: Mutex::default(),
    };
    if arguments.rate > 0.0 {
        load.open_loop();
    } else {
        load.closed_loop();
    }
    let seconds = load.begun.elapsed().as_secs_f64();
    let done = load
        .done
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    let failed = load
        .failed
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    let report = report(arguments, &load.model, &done, &failed, seconds);
    ReportFile::write_both(files, &format!("{report:#}\n"), &markdown(&report))?;
    match failed.first() {
        Some(error) => Err(wrong(format!(
            "{} of {} requests failed, the first: {error}",
            failed.len(),
            failed.len() + done.len()
        ))),
        None => Ok(()),
    }
}

/// The requests on their way.
struct Load<'a> {
    arguments: &'a BenchServeArguments,
    server: &'a Server,
    model: String,
    vocab: u64,
    /// What keeps this run's prompts apart from those of others.
    salt: String,
    begun: Instant,
    done: Mutex<Vec<Measured>>,
    failed: Mutex<Vec<String>>,
}

impl Load<'_> {
    fn closed_loop(&self) {
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..self.arguments.clients() {
                scope.spawn(|| {
                    loop {
                        let number = next.fetch_add(1, Relaxed);
                        if number >= self.arguments.requests {
                            return;
                        }
                        self.one(number as u64, self.begun.elapsed().as_secs_f64());
                    }
                });
            }
        });
    }

    /// Exponential pauses. A request's clocks start when it was to arrive, so that a load
    /// generator that is late hides nothing.
    fn open_loop(&self) {
        let (arguments, mut at) = (self.arguments, 0.0);
        std::thread::scope(|scope| {
            for number in 0..arguments.requests as u64 {
                let pause = -(1.0 - uniform(arguments.seed ^ 0xa1, number)).ln();
                at += pause / arguments.rate;
                let due = Duration::try_from_secs_f64(at).unwrap_or(Duration::MAX);
                std::thread::sleep(due.saturating_sub(self.begun.elapsed()));
                let arrival = at;
                let spawned = std::thread::Builder::new()
                    .stack_size(256 << 10)
                    .spawn_scoped(scope, move || self.one(number, arrival));
                if let Err(error) = spawned {
                    self.fail(format!("no thread for request {number}: {error}"));
                }
            }
        });
    }

    fn one(&self, number: u64, begun: f64) {
        let body = self.request(number);
        let mut measured = Measured {
            begun,
            ..Measured::default()
        };
        let since = || self.begun.elapsed().as_secs_f64() - begun;
        match self.server.stream(&body, since, &mut measured) {
            Ok(()) => {
                let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
                done.push(measured);
            }
            Err(error) => self.fail(format!("{}: {error}", self.server.url)),
        }
    }

    fn fail(&self, error: String) {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.push(error);
    }

    /// Random ids: what prompts do not share begins differently in each.
    fn request(&self, number: u64) -> Json {
        let arguments = self.arguments;
        let seed = arguments.seed;
        let draw = |stream: u64, index: u64| uniform(seed ^ (stream << 32) ^ (number << 40), index);
        let between = |(least, most): (usize, usize), stream: u64| {
            least + (draw(stream, 0) * (most - least + 1) as f64) as usize
        };
        let length = between(arguments.prompt_tokens, 1) as u64;
        let shared = length * u64::from(arguments.shared) / 100;
        let prompt: Vec<u64> = (0..length)
            .map(|index| {
                let drawn = if index < shared {
                    uniform(seed ^ 0x5a, index)
                } else {
                    draw(2, index)
                };
                (drawn * self.vocab as f64) as u64
            })
            .collect();
        json!({
            "model": self.model,
            "prompt": prompt,
            "max_tokens": between(arguments.answer_tokens, 3),
            "temperature": arguments.temperature,
            "seed": number,
            "cache_salt": self.salt,
            "ignore_eos": true,
            "stream": true,
            "stream_options": {"include_usage": true},
            "return_token_ids": true,
            "receipt": true,
        })
    }
}

fn report(
    arguments: &BenchServeArguments,
    model: &str,
    done: &[Measured],
    failed: &[String],
    seconds: f64,
) -> Json {
    let collect = |read: fn(&Measured) -> f64| done.iter().map(read).collect::<Vec<f64>>();
    let first = done.iter().filter_map(|m| m.times.first().copied());
    let between = done
        .iter()
        .flat_map(|m| m.times.windows(2).map(|pair| pair[1] - pair[0]));
    let prompt: u64 = done.iter().map(|m| m.prompt_tokens).sum();
    let reused: u64 = done.iter().map(|m| m.reused_tokens).sum();
    let answer: u64 = done.iter().map(|m| m.answer_tokens).sum();
    let mut errors: BTreeMap<&str, usize> = BTreeMap::new();
    for error in failed {
        *errors.entry(error).or_default() += 1;
    }
    let is_open = arguments.rate > 0.0;
    let (steady_seconds, steady_rate) = steady(done, arguments.clients().min(arguments.requests));
    json!({
        "url": arguments.url,
        "model": model,
        "loop": if is_open { "open" } else { "closed" },
        "clients": (!is_open).then(|| arguments.clients()),
        "rate": is_open.then_some(arguments.rate),
        "prompt_tokens": [arguments.prompt_tokens.0, arguments.prompt_tokens.1],
        "shared_percent": arguments.shared,
        "answer_tokens": [arguments.answer_tokens.0, arguments.answer_tokens.1],
        "temperature": arguments.temperature,
        "seed": arguments.seed,
        "answered": done.len(),
        "failed": failed.len(),
        "errors": errors,
        "seconds": seconds,
        "reused_prompt_tokens": reused,
        "answer_tokens_per_second": answer as f64 / seconds,
        "tokens_per_second": (prompt + answer) as f64 / seconds,
        // Of a closed loop: while every client's answer was on its way.
        "all_decoding": (!is_open).then(|| json!({
            "seconds": steady_seconds,
            "answer_tokens_per_second": steady_rate,
        })),
        "milliseconds": {
            "queue": percentiles(collect(|m| m.queue)),
            "first_token": percentiles(first.collect()),
            "between_tokens": percentiles(between.collect()),
            "whole": percentiles(collect(|m| m.total)),
        },
    })
}

/// Seconds in which `clients` answers were past their first token and before their last, and the
/// tokens a second that came then.
fn steady(done: &[Measured], clients: usize) -> (f64, f64) {
    let mut events: Vec<(f64, i64, usize)> = Vec::new();
    for measured in done {
        let at = |time: f64| measured.begun + time;
        if let [first, middle @ .., last] = measured.times.as_slice() {
            events.push((at(*first), 1, 0));
            events.extend(middle.iter().map(|&time| (at(time), 0, 1)));
            events.push((at(*last), -1, 1));
        }
    }
    events.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut active, mut before, mut seconds, mut tokens) = (0, 0.0, 0.0, 0);
    for (time, change, came) in events {
        if active >= clients as i64 {
            seconds += time - before;
            tokens += came;
        }
        active += change;
        before = time;
    }
    let rate = if seconds > 0.0 {
        tokens as f64 / seconds
    } else {
        0.0
    };
    (seconds, rate)
}

const POINTS: [(&str, f64); 5] = [
    ("p50", 0.5),
    ("p90", 0.9),
    ("p95", 0.95),
    ("p99", 0.99),
    ("max", 1.0),
];

fn percentiles(mut seconds: Vec<f64>) -> Json {
    seconds.sort_by(f64::total_cmp);
    let at = |part: f64| {
        let index = (part * seconds.len() as f64).ceil() as usize;
        seconds
            .get(index.saturating_sub(1))
            .map(|value| value * 1000.0)
    };
    POINTS
        .iter()
        .map(|&(name, part)| (name.to_owned(), at(part).into()))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// The report as Markdown.
fn markdown(report: &Json) -> String {
    let number = |value: &Json| value.as_f64().unwrap_or_default();
    let range = |value: &Json| match (value[0].as_u64(), value[1].as_u64()) {
        (Some(least), Some(most)) if least != most => format!("{least} to {most}"),
        (least, _) => least.unwrap_or_default().to_string(),
    };
    let how = match report["clients"].as_u64() {
        Some(clients) => format!("{clients} clients in a closed loop"),
        None => format!("{} arrivals a second in an open loop", report["rate"]),
    };
    let mut text = format!(
        "{how} on {} at {}; prompts of {} tokens, {}% shared, answers of {}; seed {}, \
         temperature {}\n\n{} answered and {} failed in {:.2} s: {:.1} answer tokens/s, {:.1} tokens/s with prompts, \
         {} prompt tokens reused\n\n",
        report["model"].as_str().unwrap_or_default(),
        report["url"].as_str().unwrap_or_default(),
        range(&report["prompt_tokens"]),
        report["shared_percent"],
        range(&report["answer_tokens"]),
        report["seed"],
        report["temperature"],
        report["answered"],
        report["failed"],
        number(&report["seconds"]),
        number(&report["answer_tokens_per_second"]),
        number(&report["tokens_per_second"]),
        report["reused_prompt_tokens"],
    );
    let steady = &report["all_decoding"];
    if steady.is_object() {
        let _ = writeln!(
            text,
            "while every client's answer was on its way ({:.2} s): {:.1} answer tokens/s\n",
            number(&steady["seconds"]),
            number(&steady["answer_tokens_per_second"]),
        );
    }
    let names = POINTS.map(|(name, _)| name).join(" | ");
    let _ = writeln!(
        text,
        "| milliseconds | {names} |\n|---|{}",
        "---|".repeat(POINTS.len())
    );
    for (name, values) in report["milliseconds"].as_object().into_iter().flatten() {
        let cells = POINTS.map(|(point, _)| match values[point].as_f64() {
            Some(value) => format!("{value:.1}"),
            None => "-".to_owned(),
        });
        let _ = writeln!(
            text,
            "| {} | {} |",
            name.replace('_', " "),
            cells.join(" | ")
        );
    }
    for (error, count) in report["errors"].as_object().into_iter().flatten() {
        let _ = writeln!(text, "\n{count} failed: {error}");
    }
    text
}

/// Where requests go.
struct Server {
    url: String,
    host: String,
    key: Option<String>,
    timeout: Duration,
}

impl Server {
    fn parse(url: &str, timeout: u64) -> Result<Server, String> {
        let url = url.trim_end_matches('/');
        let host = url.strip_prefix("http://");
        match host {
            Some(host) if !host.is_empty() && !host.contains('/') => Ok(Server {
                url: url.to_owned(),
                host: match host.rsplit_once(':') {
                    Some((_, port)) if port.parse::<u16>().is_ok() => host.to_owned(),
                    _ => format!("{host}:80"),
                },
                key: std::env::var("BUTTER_API_KEY").ok(),
                timeout: Duration::from_secs(timeout),
            }),
            _ => Err(format!("--url {url}: expected http://HOST:PORT")),
        }
    }

    /// The server's first model.
    fn describe(&self) -> Result<Json, String> {
        let url = format!("{}/v1/models", self.url);
        let (status, models) = self
            .get("/v1/models")
            .map_err(|error| format!("{url}: {error}"))?;
        let described = &models["data"][0];
        if status == 200 && described.is_object() {
            return Ok(described.clone());
        }
        let hint = match status {
            401 => " (BUTTER_API_KEY holds the key)",
            _ => "",
        };
        let answer: String = models.to_string().chars().take(300).collect();
        Err(format!("{url} answers {status}{hint}: {answer}"))
    }

    fn send(&self, method: &str, path: &str, body: &str) -> std::io::Result<BufReader<TcpStream>> {
        let mut socket = TcpStream::connect(&self.host)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(self.timeout))?;
        socket.set_write_timeout(Some(self.timeout))?;
        let key = self.key.as_ref();
        let key = key.map_or(String::new(), |key| {
            format!("authorization: Bearer {key}\r\n")
        });
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\n{key}connection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            self.host,
            body.len()
        );
        socket.write_all(format!("{head}{body}").as_bytes())?;
        Ok(BufReader::new(socket))
    }

    fn get(&self, path: &str) -> std::io::Result<(u16, Json)> {
        let mut reader = self.send("GET", path, "")?;
        let status = read_head(&mut reader)?;
        let mut text = String::new();
        reader.read_to_string(&mut text)?;
        Ok((
            status,
            serde_json::from_str(&text).unwrap_or(Json::String(text)),
        ))
    }

    /// One request whose tokens are timed as they come.
    fn stream(
        &self,
        body: &Json,
        since: impl Fn() -> f64,
        measured: &mut Measured,
    ) -> Result<(), String> {
        let text = |error: std::io::Error| error.to_string();
        let mut reader = self
            .send("POST", "/v1/completions", &body.to_string())
            .map_err(text)?;
        let status = read_head(&mut reader).map_err(text)?;
        if status != 200 {
            let mut answer = String::new();
            let _ = reader.read_to_string(&mut answer);
            let answer: String = answer.trim().chars().take(300).collect();
            return Err(format!("status {status}: {answer}"));
        }
        let mut last = Json::Null;
        let mut line = String::new();
        loop {
            line.clear();
            if reader.read_line(&mut line).map_err(text)? == 0 {
                return Err("the stream ended without [DONE]".to_owned());
            }
            // Lines between events are blank or say how long the next chunk is.
            let Some(data) = line.trim_end().strip_prefix("data: ") else {
                continue;
            };
            if data == "[DONE]" {
                break;
            }
            let now = since();
            let event: Json = serde_json::from_str(data).map_err(|error| error.to_string())?;
            if let Some(message) = event["error"]["message"].as_str() {
                return Err(message.to_owned());
            }
            let choice = &event["choices"][0];
            let tokens = match choice["token_ids"].as_array() {
                Some(ids) => ids.len(),
                None => usize::from(choice["text"].as_str().is_some_and(|text| !text.is_empty())),
            };
            measured.times.extend(std::iter::repeat_n(now, tokens));
            last = event;
        }
        let tokens = |name: &str| last["usage"][name].as_u64().unwrap_or(0);
        let receipt = &last["receipt"]["answers"][0];
        measured.total = since();
        measured.queue = receipt["queue_seconds"].as_f64().unwrap_or(0.0);
        measured.reused_tokens = receipt["reused_tokens"].as_u64().unwrap_or(0);
        measured.prompt_tokens = tokens("prompt_tokens");
        measured.answer_tokens = tokens("completion_tokens");
        Ok(())
    }
}

/// Reads an answer's head; gives its status.
fn read_head(reader: &mut impl BufRead) -> std::io::Result<u16> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let status = line
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| {
        let line: String = line.trim_end().chars().take(80).collect();
        std::io::Error::other(format!("the answer is not HTTP, it begins with {line:?}"))
    })?;
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
            return Ok(status);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let found = percentiles((1..=100).map(f64::from).rev().collect());
        assert_eq!(found["p50"], 50_000.0);
        assert_eq!(
            (&found["p99"], &found["max"]),
            (&json!(99_000.0), &json!(100_000.0))
        );
        assert_eq!(percentiles(vec![])["p50"], Json::Null);
    }

    #[test]
    fn the_steady_rate_counts_while_all_decode() {
        let measured = |begun: f64, times: &[f64]| Measured {
            begun,
            times: times.to_vec(),
            ..Measured::default()
        };
        // Together from 2 s to 4 s: tokens at 2.5 and 3 of one, at 3.5 and 4 of the other.
        let both = [
            measured(0.0, &[1.0, 1.5, 2.5, 3.0, 5.0]),
            measured(1.0, &[1.0, 2.5, 3.0]),
        ];
        assert_eq!(steady(&both, 2), (2.0, 2.0));
        assert_eq!(steady(&both, 3), (0.0, 0.0));
        assert_eq!(steady(&[], 1), (0.0, 0.0));
    }
}
