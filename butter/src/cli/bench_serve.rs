//! `butter bench-serve`: load on a server, and the clocks of what it answers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value as Json, json};

use super::CommandError;
use super::limits::{POSITIONS, REPETITIONS, SEQUENCES, count, counts, rate};
use crate::sampler::uniform;

#[derive(Args, Debug)]
pub(super) struct BenchServeArguments {
    /// The server; its key, if it wants one, is taken from `BUTTER_API_KEY`.
    #[arg(long, default_value = "http://127.0.0.1:8080")]
    url: String,
    /// The served model; the server's first by default.
    #[arg(long)]
    model: Option<String>,
    /// Requests at once.
    #[arg(long, default_value_t = 16, value_parser = count::<1, SEQUENCES>)]
    clients: usize,
    /// Requests in all.
    #[arg(long, default_value_t = 64, value_parser = count::<1, REPETITIONS>)]
    requests: usize,
    /// Arrivals a second over all clients, at random times; 0: each client asks again at once.
    #[arg(long, default_value_t = 0.0, value_parser = rate, allow_negative_numbers = true)]
    rate: f64,
    /// Tokens of a prompt: one number, or the least and the most as `16-512`.
    #[arg(long, default_value = "128", value_parser = counts::<1, POSITIONS>)]
    prompt_tokens: (usize, usize),
    /// Tokens of an answer, in the same way.
    #[arg(long, default_value = "64", value_parser = counts::<1, POSITIONS>)]
    answer_tokens: (usize, usize),
    /// Seed of lengths, prompts and arrivals.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Writes the numbers to a file as JSON, too.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// What one request took.
struct Measured {
    first: f64,
    between: Vec<f64>,
    total: f64,
    /// As the server's receipt says.
    queue: f64,
    prompt_tokens: u64,
    answer_tokens: u64,
}

pub(super) fn run(arguments: &BenchServeArguments) -> Result<(), CommandError> {
    let wrong = |problem: String| CommandError::Option {
        option: "bench-serve",
        problem,
    };
    let server = Server::parse(&arguments.url).map_err(wrong)?;
    let (status, models) = server.get("/v1/models").map_err(|e| wrong(e.to_string()))?;
    let described = &models["data"][0];
    if status != 200 || described.is_null() {
        return Err(wrong(format!(
            "{}/v1/models answers {status}: {models}",
            arguments.url
        )));
    }
    let named = described["id"].as_str().unwrap_or_default().to_owned();
    let model = arguments.model.clone().unwrap_or(named);
    let vocab = described["vocab_size"].as_u64().unwrap_or(1000).max(2);
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<Measured>> = Mutex::new(Vec::new());
    let failed: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let arrivals = arrivals(arguments);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..arguments.clients.min(arguments.requests) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Relaxed);
                    if number >= arguments.requests {
                        return;
                    }
                    let wait = arrivals[number].saturating_sub(begun.elapsed());
                    std::thread::sleep(wait);
                    let body = request(arguments, &model, vocab, number as u64);
                    let outcome = server.stream(&body);
                    match outcome {
                        Ok(measured) => done
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .push(measured),
                        Err(error) => failed
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .push(error),
                    }
                }
            });
        }
    });
    let seconds = begun.elapsed().as_secs_f64();
    let done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    let report = report(arguments, &model, &done, &failed, seconds);
    print_report(&report)?;
    if let Some(path) = &arguments.json {
        std::fs::write(path, format!("{report:#}\n")).map_err(|error| CommandError::File {
            path: path.clone(),
            problem: format!("cannot be written: {error}"),
        })?;
    }
    match failed.first() {
        Some(error) => Err(wrong(format!(
            "{} requests failed, the first: {error}",
            failed.len()
        ))),
        None => Ok(()),
    }
}

/// When each request arrives: at once, or with exponential pauses.
fn arrivals(arguments: &BenchServeArguments) -> Vec<Duration> {
    let mut at = 0.0;
    (0..arguments.requests as u64)
        .map(|number| {
            if arguments.rate > 0.0 {
                let pause = -(1.0 - uniform(arguments.seed ^ 0xa1, number)).ln();
                at += pause / arguments.rate;
            }
            Duration::try_from_secs_f64(at).unwrap_or(Duration::ZERO)
        })
        .collect()
}

/// Random ids, so that no prompt begins as another one does.
fn request(arguments: &BenchServeArguments, model: &str, vocab: u64, number: u64) -> Json {
    let draw =
        |stream: u64, index: u64| uniform(arguments.seed ^ (stream << 32) ^ (number << 40), index);
    let between = |(least, most): (usize, usize), stream: u64| {
        least + (draw(stream, 0) * (most - least + 1) as f64) as usize
    };
    let length = between(arguments.prompt_tokens, 1);
    let prompt: Vec<u64> = (0..length as u64)
        .map(|index| (draw(2, index) * vocab as f64) as u64)
        .collect();
    json!({
        "model": model,
        "prompt": prompt,
        "max_tokens": between(arguments.answer_tokens, 3),
        "temperature": 0,
        "ignore_eos": true,
        "stream": true,
        "stream_options": {"include_usage": true},
        "receipt": true,
    })
}

fn report(
    arguments: &BenchServeArguments,
    model: &str,
    done: &[Measured],
    failed: &[String],
    seconds: f64,
) -> Json {
    let collect = |read: fn(&Measured) -> f64| done.iter().map(read).collect::<Vec<f64>>();
    let between: Vec<f64> = done
        .iter()
        .flat_map(|m| m.between.iter().copied())
        .collect();
    let prompt: u64 = done.iter().map(|m| m.prompt_tokens).sum();
    let answer: u64 = done.iter().map(|m| m.answer_tokens).sum();
    json!({
        "url": arguments.url,
        "model": model,
        "clients": arguments.clients,
        "rate": arguments.rate,
        "prompt_tokens": [arguments.prompt_tokens.0, arguments.prompt_tokens.1],
        "answer_tokens": [arguments.answer_tokens.0, arguments.answer_tokens.1],
        "seed": arguments.seed,
        "answered": done.len(),
        "failed": failed.len(),
        "seconds": seconds,
        "answer_tokens_per_second": answer as f64 / seconds,
        "tokens_per_second": (prompt + answer) as f64 / seconds,
        "milliseconds": {
            "queue": percentiles(collect(|m| m.queue)),
            "first_token": percentiles(collect(|m| m.first)),
            "between_tokens": percentiles(between),
            "whole": percentiles(collect(|m| m.total)),
        },
    })
}

const POINTS: [(&str, f64); 4] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0)];

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

fn print_report(report: &Json) -> Result<(), CommandError> {
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{} clients on {}, {} answered and {} failed in {:.1} s: {:.1} answer tokens/s, {:.1} tokens/s\n",
        report["clients"],
        report["model"].as_str().unwrap_or_default(),
        report["answered"],
        report["failed"],
        report["seconds"].as_f64().unwrap_or_default(),
        report["answer_tokens_per_second"]
            .as_f64()
            .unwrap_or_default(),
        report["tokens_per_second"].as_f64().unwrap_or_default(),
    )?;
    writeln!(
        out,
        "| milliseconds | p50 | p90 | p99 | max |\n|---|---|---|---|---|"
    )?;
    let clocks = report["milliseconds"].as_object();
    for (name, values) in clocks.into_iter().flatten() {
        let cells = POINTS.map(|(point, _)| match values[point].as_f64() {
            Some(value) => format!("{value:.1}"),
            None => "-".to_owned(),
        });
        writeln!(
            out,
            "| {} | {} |",
            name.replace('_', " "),
            cells.join(" | ")
        )?;
    }
    Ok(())
}

/// Where requests go.
struct Server {
    host: String,
    key: Option<String>,
}

impl Server {
    fn parse(url: &str) -> Result<Server, String> {
        let host = url
            .strip_prefix("http://")
            .map(|rest| rest.trim_end_matches('/'));
        match host {
            Some(host) if !host.is_empty() && !host.contains('/') => Ok(Server {
                host: if host.contains(':') {
                    host.to_owned()
                } else {
                    format!("{host}:80")
                },
                key: std::env::var("BUTTER_API_KEY").ok(),
            }),
            _ => Err(format!("--url {url}: expected http://HOST:PORT")),
        }
    }

    fn send(&self, method: &str, path: &str, body: &str) -> std::io::Result<BufReader<TcpStream>> {
        let mut socket = TcpStream::connect(&self.host)?;
        socket.set_nodelay(true)?;
        let key = self.key.as_ref();
        let key = key.map_or(String::new(), |key| {
            format!("authorization: Bearer {key}\r\n")
        });
        write!(
            socket,
            "{method} {path} HTTP/1.1\r\nhost: {}\r\n{key}connection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            self.host,
            body.len()
        )?;
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

    /// One request whose events are timed as they come.
    fn stream(&self, body: &Json) -> Result<Measured, String> {
        let text = |error: std::io::Error| error.to_string();
        let begun = Instant::now();
        let mut reader = self
            .send("POST", "/v1/completions", &body.to_string())
            .map_err(text)?;
        let status = read_head(&mut reader).map_err(text)?;
        if status != 200 {
            let mut answer = String::new();
            let _ = reader.read_to_string(&mut answer);
            return Err(format!("status {status}: {answer}"));
        }
        let mut times: Vec<f64> = Vec::new();
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
            let event: Json = serde_json::from_str(data).map_err(|error| error.to_string())?;
            if let Some(message) = event["error"]["message"].as_str() {
                return Err(message.to_owned());
            }
            if event["choices"][0]["text"]
                .as_str()
                .is_some_and(|text| !text.is_empty())
            {
                times.push(begun.elapsed().as_secs_f64());
            }
            last = event;
        }
        let tokens = |name: &str| last["usage"][name].as_u64().unwrap_or(0);
        Ok(Measured {
            first: times.first().copied().unwrap_or_default(),
            between: times.windows(2).map(|pair| pair[1] - pair[0]).collect(),
            total: begun.elapsed().as_secs_f64(),
            queue: last["receipt"]["answers"][0]["queue_seconds"]
                .as_f64()
                .unwrap_or(0.0),
            prompt_tokens: tokens("prompt_tokens"),
            answer_tokens: tokens("completion_tokens"),
        })
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
    let status = status.ok_or_else(|| std::io::Error::other(format!("no HTTP: {line:?}")))?;
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
}
