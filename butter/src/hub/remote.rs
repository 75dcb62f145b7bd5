//! The hub's side: addresses, redirects, the token, and the list of a revision's files.

use std::time::Duration;

use serde::Deserialize;
use ureq::http::{Response, StatusCode, Uri};
use ureq::{Agent, Body};

use super::{HubError, Repository, is_inside};
use crate::quote::quoted;

/// Redirects that are followed.
const MOST_REDIRECTS: usize = 8;
/// Bytes of a list of files that are read.
const MOST_LISTING: u64 = 64 << 20;
/// Files of a list that are read.
const MOST_FILES: usize = 100_000;

/// A hub.
pub(super) struct Remote {
    agent: Agent,
    /// Without a slash at the end.
    endpoint: String,
    /// Its scheme and authority, the only place that the token goes to.
    origin: Origin,
    token: Option<String>,
}

/// Scheme and authority.
type Origin = (String, String);

/// A revision's files.
pub(super) struct Listing {
    pub(super) commit: String,
    pub(super) files: Vec<RemoteFile>,
}

/// A file of a revision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RemoteFile {
    /// Its path in the repository, which stays below any folder that it is joined to.
    pub(super) name: String,
    pub(super) size: u64,
    /// Name of its blob in the cache: its SHA-256, or what git calls it.
    pub(super) blob: String,
    /// In hexadecimal, where the hub knows it: of files outside git.
    pub(super) sha256: Option<String>,
}

#[derive(Deserialize)]
struct Answer {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
    size: u64,
}

impl Remote {
    pub(super) fn new(endpoint: &str, token: Option<String>) -> Result<Self, HubError> {
        let wrong = || HubError::Endpoint {
            found: quoted(endpoint),
        };
        let endpoint = endpoint.trim_end_matches('/');
        let origin = origin(endpoint).ok_or_else(wrong)?;
        if endpoint.contains(['?', '#', '@']) {
            return Err(wrong());
        }
        if token
            .as_ref()
            .is_some_and(|token| !token.chars().all(|c| c.is_ascii_graphic()))
        {
            return Err(HubError::Name {
                found: "HF_TOKEN".to_owned(),
                expected: "a token: it has spaces or other characters that no header may have",
            });
        }
        // Redirects are followed here, so that the token's way is seen; failures are statuses.
        let agent = Agent::config_builder()
            .max_redirects(0)
            .http_status_as_error(false)
            .timeout_connect(Some(Duration::from_secs(15)))
            .timeout_recv_response(Some(Duration::from_secs(60)))
            .timeout_per_read(Some(Duration::from_secs(60)))
            .user_agent(concat!("butter/", env!("CARGO_PKG_VERSION")))
            .build()
            .into();
        Ok(Self {
            agent,
            endpoint: endpoint.to_owned(),
            origin,
            token,
        })
    }

    /// The files of a revision, and its commit.
    pub(super) fn list(&self, repository: &Repository) -> Result<Listing, HubError> {
        let url = format!(
            "{}/api/models/{}/revision/{}?blobs=true",
            self.endpoint,
            repository.name,
            encoded(&repository.revision, false)
        );
        let mut answer = self.get(&url, 0)?;
        self.check_status(&url, repository, &answer, answer.status())?;
        let wrong = |problem: String| HubError::Listing {
            repository: repository.clone(),
            problem,
        };
        let text = answer
            .body_mut()
            .with_config()
            .limit(MOST_LISTING)
            .read_to_vec();
        let text = text.map_err(|error| network(&url, &error.to_string()))?;
        let answer: Answer = serde_json::from_slice(&text).map_err(|e| wrong(e.to_string()))?;
        if !is_hex(&answer.sha, 40) {
            return Err(wrong(format!("its commit is {}", quoted(&answer.sha))));
        }
        if answer.siblings.len() > MOST_FILES {
            return Err(wrong(format!("it has {} files", answer.siblings.len())));
        }
        let files = answer
            .siblings
            .into_iter()
            .map(|sibling| sibling.check().map_err(wrong));
        Ok(Listing {
            commit: answer.sha.to_lowercase(),
            files: files.collect::<Result<_, _>>()?,
        })
    }

    /// Where a file of a commit is fetched.
    pub(super) fn url_of(&self, repository: &Repository, commit: &str, name: &str) -> String {
        let (endpoint, model) = (&self.endpoint, &repository.name);
        format!(
            "{endpoint}/{model}/resolve/{commit}/{}",
            encoded(name, true)
        )
    }

    /// Asks for a file from a byte on; redirects followed, statuses checked. `None` where the
    /// server has nothing from there on.
    pub(super) fn fetch(
        &self,
        repository: &Repository,
        url: &str,
        start: u64,
    ) -> Result<Option<Response<Body>>, HubError> {
        let answer = self.get(url, start)?;
        match answer.status() {
            StatusCode::RANGE_NOT_SATISFIABLE => Ok(None),
            status => {
                self.check_status(url, repository, &answer, status)?;
                Ok(Some(answer))
            }
        }
    }

    fn get(&self, url: &str, start: u64) -> Result<Response<Body>, HubError> {
        let mut url = url.to_owned();
        for _ in 0..=MOST_REDIRECTS {
            let here = origin(&url).ok_or_else(|| network(&url, "is no address"))?;
            let mut request = self.agent.get(&url);
            if let Some(token) = self.token.as_ref().filter(|_| here == self.origin) {
                request = request.header("authorization", format!("Bearer {token}"));
            }
            if start > 0 {
                request = request.header("range", format!("bytes={start}-"));
            }
            let answer = request.call().map_err(|e| network(&url, &e.to_string()))?;
            if !matches!(answer.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok(answer);
            }
            let to = answer
                .headers()
                .get("location")
                .and_then(|to| to.to_str().ok());
            let to = match to {
                Some(path) if path.starts_with('/') && !path.starts_with("//") => {
                    format!("{}://{}{path}", here.0, here.1)
                }
                Some(to) => to.to_owned(),
                None => return Err(network(&url, "redirects to nowhere")),
            };
            match origin(&to) {
                Some((scheme, _)) if scheme == "https" || here.0 == "http" => url = to,
                _ => return Err(network(&url, &format!("redirects to {}", quoted(&to)))),
            }
        }
        Err(network(&url, "there are too many redirects"))
    }

    fn check_status(
        &self,
        url: &str,
        repository: &Repository,
        answer: &Response<Body>,
        status: StatusCode,
    ) -> Result<(), HubError> {
        if status.is_success() {
            return Ok(());
        }
        let code = answer.headers().get("x-error-code");
        let code = code.and_then(|code| code.to_str().ok()).unwrap_or_default();
        let Repository { name, revision } = repository;
        let token = match &self.token {
            Some(_) => "the token of HF_TOKEN may not read it",
            None => "it asks for a token (HF_TOKEN)",
        };
        let problem = match (code, status.as_u16()) {
            ("RevisionNotFound", _) => format!("{name} has no revision {revision}"),
            ("EntryNotFound", _) => format!("{name} has no such file at {revision}"),
            ("GatedRepo", _) => format!("{name} is gated: accept its terms on the hub; {token}"),
            (_, 401 | 403) => format!("there is no model {name}, or {token}"),
            (_, 404) => format!("there is no model {name}, or it has no revision {revision}"),
            (_, 429) => "too many requests, try again later".to_owned(),
            _ => "the hub does not answer the request".to_owned(),
        };
        Err(HubError::Status {
            url: url.to_owned(),
            status: status.as_u16(),
            problem,
        })
    }
}

impl Sibling {
    fn check(self) -> Result<RemoteFile, String> {
        let name = self.rfilename;
        if !is_inside(&name) {
            return Err(format!("{} is no path below a folder", quoted(&name)));
        }
        let (size, sha256) = match self.lfs {
            Some(lfs) => (Some(lfs.size), Some(lfs.sha256.to_lowercase())),
            None => (self.size, None),
        };
        let size = size.ok_or_else(|| format!("{} has no size", quoted(&name)))?;
        let right = |hash: &str| is_hex(hash, 64) || is_hex(hash, 40);
        let blob = sha256.clone().or(self.blob_id);
        let blob = blob.filter(|blob| right(blob) && (sha256.is_none() || blob.len() == 64));
        let blob = blob.ok_or_else(|| format!("{} has no hash", quoted(&name)))?;
        Ok(RemoteFile {
            name,
            size,
            blob,
            sha256,
        })
    }
}

/// Scheme and authority of an address of HTTP.
fn origin(url: &str) -> Option<Origin> {
    let uri: Uri = url.parse().ok()?;
    let scheme = uri
        .scheme_str()
        .filter(|scheme| matches!(*scheme, "http" | "https"))?;
    let authority = uri.authority()?.as_str().to_lowercase();
    (!authority.contains('@')).then(|| (scheme.to_owned(), authority))
}

fn network(url: &str, problem: &str) -> HubError {
    HubError::Network {
        url: url.to_owned(),
        problem: problem.to_owned(),
    }
}

fn is_hex(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// A part of an address: all but unreserved characters by their codes (RFC 3986, 2.3).
fn encoded(text: &str, keep_slashes: bool) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(char::from(byte));
            }
            b'/' if keep_slashes => encoded.push('/'),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}
