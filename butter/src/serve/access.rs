//! Who may call: keys, rates, origins.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use axum::http::{HeaderMap, StatusCode, header};

use super::error::ApiError;

/// Checks keys and counts calls.
#[derive(Debug)]
pub struct Access {
    keys: Vec<String>,
    /// Calls a minute; 0: any number.
    rate: u32,
    buckets: Mutex<HashMap<usize, Bucket>>,
}

#[derive(Debug)]
struct Bucket {
    tokens: f64,
    filled: Instant,
}

impl Access {
    /// Access for some keys, or for anyone if there are none.
    pub fn new(keys: Vec<String>, rate: u32) -> Access {
        Access {
            keys,
            rate,
            buckets: Mutex::new(HashMap::new()),
        }
    }

    /// The number of the caller's key; 0 where there are no keys.
    pub fn caller(&self, headers: &HeaderMap) -> Result<usize, ApiError> {
        if self.keys.is_empty() {
            return Ok(0);
        }
        let given = headers
            .get(header::AUTHORIZATION)
            .map(|value| value.as_bytes())
            .and_then(|value| {
                let (scheme, key) = value.split_at_checked(7)?;
                scheme
                    .eq_ignore_ascii_case(b"bearer ")
                    .then(|| key.trim_ascii())
            });
        let Some(given) = given else {
            let message = "no API key: send `Authorization: Bearer KEY`";
            return Err(ApiError::new(StatusCode::UNAUTHORIZED, message).code("missing_api_key"));
        };
        let mut found = None;
        // All keys are compared, each to its end, so that time tells nothing of them.
        for (number, key) in self.keys.iter().enumerate() {
            if same(key.as_bytes(), given) {
                found = Some(number);
            }
        }
        found.ok_or_else(|| {
            ApiError::new(StatusCode::UNAUTHORIZED, "the API key is not known")
                .code("invalid_api_key")
        })
    }

    /// Counts a call; an error if the caller has had its share of this minute.
    pub fn count(&self, caller: usize, now: Instant) -> Result<(), ApiError> {
        if self.rate == 0 {
            return Ok(());
        }
        let rate = f64::from(self.rate);
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let bucket = buckets.entry(caller).or_insert(Bucket {
            tokens: rate,
            filled: now,
        });
        let seconds = now.saturating_duration_since(bucket.filled).as_secs_f64();
        bucket.tokens = (bucket.tokens + seconds * rate / 60.0).min(rate);
        bucket.filled = now;
        if bucket.tokens < 1.0 {
            let wait = ((1.0 - bucket.tokens) * 60.0 / rate).ceil() as u64;
            let message = format!("more than {} requests a minute from this key", self.rate);
            return Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, message)
                .code("rate_limit_exceeded")
                .retry_after(wait.max(1)));
        }
        bucket.tokens -= 1.0;
        Ok(())
    }
}

fn same(key: &[u8], given: &[u8]) -> bool {
    let mut difference = key.len() ^ given.len();
    for (i, byte) in key.iter().enumerate() {
        difference |= usize::from(byte ^ given.get(i).copied().unwrap_or(0));
    }
    difference == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn headers(value: &str) -> HeaderMap {
        let value = value.parse().expect("a header");
        HeaderMap::from_iter([(header::AUTHORIZATION, value)])
    }

    #[test]
    fn only_known_keys_enter() {
        let access = Access::new(vec!["one".into(), "two".into()], 0);
        assert_eq!(access.caller(&headers("Bearer two")), Ok(1));
        assert_eq!(access.caller(&headers("bearer one")), Ok(0));
        for wrong in [
            "Bearer",
            "Bearer ",
            "Bearer on",
            "Bearer onee",
            "Basic one",
            "one",
        ] {
            let error = access.caller(&headers(wrong)).expect_err("refused");
            assert_eq!(error.status, StatusCode::UNAUTHORIZED, "{wrong}");
        }
        assert!(access.caller(&HeaderMap::new()).is_err());
        assert_eq!(Access::new(vec![], 0).caller(&HeaderMap::new()), Ok(0));
    }

    #[test]
    fn each_key_has_its_share_of_a_minute() {
        let access = Access::new(vec!["one".into(), "two".into()], 2);
        let now = Instant::now();
        for _ in 0..2 {
            assert_eq!(access.count(0, now), Ok(()));
        }
        let error = access.count(0, now).expect_err("too many");
        assert_eq!((error.status.as_u16(), error.retry_after), (429, Some(30)));
        assert_eq!(access.count(1, now), Ok(()), "another key");
        assert_eq!(access.count(0, now + Duration::from_secs(30)), Ok(()));
    }
}
