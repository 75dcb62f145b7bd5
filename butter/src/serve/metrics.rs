//! `/metrics` in Prometheus' text format.
//!
//! | name | type | what |
//! |---|---|---|
//! | `butter_ready` | gauge | 1 while requests are taken |
//! | `butter_requests_queued`, `butter_requests_running` | gauge | requests that wait, and that hold a sequence |
//! | `butter_requests_total{outcome}` | counter | `submitted`, `completed`, `cancelled`, `failed` |
//! | `butter_http_responses_total{status}` | counter | answers by HTTP status |
//! | `butter_connections` | gauge | open connections |
//! | `butter_sequences_leased`, `butter_sequences_kept` | gauge | sequences of the model that are out; of these, kept for their prefix |
//! | `butter_leases_total{event}` | counter | `taken`, `released`, `leaked`; the last stays 0 |
//! | `butter_cache_positions_reserved`, `butter_cache_positions` | gauge | positions of the cache that are reserved, and all |
//! | `butter_prefix_reuse_possible` | gauge | 1 if a prompt's beginning can come from an earlier request |
//! | `butter_prompt_tokens_total`, `butter_reused_tokens_total`, `butter_generated_tokens_total` | counter | tokens |
//! | `butter_steps_total`, `butter_step_rows_total`, `butter_failed_steps_total` | counter | steps of the device |
//! | `butter_preemptions_total` | counter | times that a request lost its place |
//! | `butter_speculation_verifications_total`, `butter_speculation_proposed_tokens_total`, `butter_speculation_accepted_tokens_total` | counter | steps of a request that held proposals, the proposals, and those accepted (vLLM's `spec_decode_num_drafts`, `…_num_draft_tokens`, `…_num_accepted_tokens`) |
//! | `butter_draft_leases_total{event}` | counter | sequences of the draft model |
//! | `butter_queue_seconds`, `butter_first_token_seconds`, `butter_between_tokens_seconds` | histogram | clocks of requests |
//! | `butter_decode_step_seconds`, `butter_prefill_step_seconds`, `butter_turn_seconds` | histogram | steps of the device, and turns of the scheduler, which hold them |

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use crate::scheduler::{BUCKETS, Histogram, SchedulerThread};

/// What the HTTP side counts.
#[derive(Default, Debug)]
pub struct HttpMetrics {
    /// Answers by status.
    pub responses: Mutex<BTreeMap<u16, u64>>,
    /// Open connections.
    pub connections: AtomicU64,
}

impl HttpMetrics {
    /// Counts an answer.
    pub fn answered(&self, status: u16) {
        let mut responses = self
            .responses
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *responses.entry(status).or_default() += 1;
    }
}

/// The text of `/metrics`.
pub fn render(scheduler: &SchedulerThread, http: &HttpMetrics, reuse: bool) -> String {
    let metrics = scheduler.metrics();
    let leases = &metrics.leases;
    let mut out = String::new();
    let get = |value: &AtomicU64| value.load(Relaxed);
    for (name, value) in [
        ("ready", u64::from(metrics.ready.load(Relaxed))),
        ("requests_queued", scheduler.queued() as u64),
        ("requests_running", get(&metrics.running)),
        ("connections", get(&http.connections)),
        ("sequences_leased", leases.out()),
        ("sequences_kept", get(&metrics.kept)),
        ("cache_positions_reserved", get(&leases.positions)),
        ("cache_positions", scheduler.capacity().positions as u64),
        ("prefix_reuse_possible", u64::from(reuse)),
    ] {
        let _ = writeln!(out, "# TYPE butter_{name} gauge\nbutter_{name} {value}");
    }
    for (name, value) in [
        ("prompt_tokens", &metrics.prompt_tokens),
        ("reused_tokens", &metrics.reused_tokens),
        ("generated_tokens", &metrics.generated_tokens),
        ("steps", &metrics.steps),
        ("step_rows", &metrics.rows),
        ("failed_steps", &metrics.failed_steps),
        ("preemptions", &metrics.preemptions),
        ("speculation_verifications", &metrics.verifications),
        ("speculation_proposed_tokens", &metrics.proposed),
        ("speculation_accepted_tokens", &metrics.accepted),
    ] {
        let value = get(value);
        let _ = writeln!(
            out,
            "# TYPE butter_{name}_total counter\nbutter_{name}_total {value}"
        );
    }
    let outcomes = [
        ("submitted", &metrics.submitted),
        ("completed", &metrics.completed),
        ("cancelled", &metrics.cancelled),
        ("failed", &metrics.failed),
    ];
    labelled(
        &mut out,
        "requests",
        "outcome",
        outcomes.map(|(l, v)| (l, get(v))),
    );
    for (name, leases) in [("leases", leases), ("draft_leases", &metrics.draft_leases)] {
        let events = [
            ("taken", &leases.taken),
            ("released", &leases.released),
            ("leaked", &leases.leaked),
        ];
        labelled(&mut out, name, "event", events.map(|(l, v)| (l, get(v))));
    }
    let responses = http
        .responses
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    labelled(&mut out, "http_responses", "status", responses);
    for (name, histogram) in [
        ("queue", &metrics.queue_time),
        ("first_token", &metrics.first_token),
        ("between_tokens", &metrics.between_tokens),
        ("decode_step", &metrics.decode_step),
        ("prefill_step", &metrics.prefill_step),
        ("turn", &metrics.turn),
    ] {
        write_histogram(&mut out, &format!("butter_{name}_seconds"), histogram);
    }
    out
}

fn labelled(
    out: &mut String,
    name: &str,
    label: &str,
    values: impl IntoIterator<Item = (impl std::fmt::Display, u64)>,
) {
    let _ = writeln!(out, "# TYPE butter_{name}_total counter");
    for (key, value) in values {
        let _ = writeln!(out, "butter_{name}_total{{{label}=\"{key}\"}} {value}");
    }
}

fn write_histogram(out: &mut String, name: &str, histogram: &Histogram) {
    let _ = writeln!(out, "# TYPE {name} histogram");
    let mut count = 0;
    for (i, bucket) in histogram.buckets.iter().enumerate() {
        count += bucket.load(Relaxed);
        let bound = BUCKETS.get(i).map_or("+Inf".to_owned(), f64::to_string);
        let _ = writeln!(out, "{name}_bucket{{le=\"{bound}\"}} {count}");
    }
    let sum = histogram.microseconds.load(Relaxed) as f64 / 1e6;
    let _ = writeln!(out, "{name}_sum {sum}\n{name}_count {count}");
}
