//! Models of a hub (huggingface.co, or what `HF_ENDPOINT` names): fetched into the cache that
//! the hub's own tools use, and found there again.
//!
//! The cache has a folder `models--ORG--NAME` a model: `blobs/HASH` holds the files,
//! `snapshots/COMMIT/` links to them under their names, `refs/REVISION` says which commit a
//! branch or tag was when it was last fetched. A file gets its name in a snapshot only when it is
//! whole and its hash is right, `refs/REVISION` is written when all files have.
//!
//! Nothing but [`Hub::pull`] uses the network.
//!
//! Source: `huggingface_hub`, "Understand caching", and the hub's HTTP API (`/api/models/…`,
//! `/…/resolve/…`).

mod pull;
mod remote;

use std::fmt;
use std::path::{Component, Path, PathBuf};

pub use pull::{Progress, Pulled, PulledFile, Request};
use remote::Remote;

/// A hub and a cache.
pub struct Hub {
    remote: Remote,
    cache: PathBuf,
    offline: bool,
}

/// A model of a hub, at a revision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Repository {
    /// `org/name`, or a name alone.
    pub name: String,
    /// A branch, a tag or a commit.
    pub revision: String,
}

/// The revision where none is named.
const MAIN: &str = "main";

impl Repository {
    /// Reads `name`, `org/name` or one of them and `@revision`.
    pub fn parse(text: &str) -> Result<Self, HubError> {
        let (name, revision) = text.split_once('@').unwrap_or((text, MAIN));
        let repository = Self {
            name: name.to_owned(),
            revision: revision.to_owned(),
        };
        repository.check(text)?;
        Ok(repository)
    }

    /// The same at another revision.
    pub fn at(self, revision: &str) -> Result<Self, HubError> {
        let repository = Self {
            revision: revision.to_owned(),
            ..self
        };
        repository.check(revision)?;
        Ok(repository)
    }

    /// Names become paths: what could leave the cache is no name.
    fn check(&self, shown: &str) -> Result<(), HubError> {
        let plain = |part: &str| {
            !part.is_empty()
                && part.len() <= 96
                && !part.starts_with(['.', '-'])
                && !part.contains("..")
                && part
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        };
        let parts = || self.name.split('/');
        if parts().count() > 2 || !parts().all(plain) || self.name.contains("--") {
            return Err(HubError::Name {
                found: crate::quote::quoted(shown),
                expected: "ORG/NAME of letters, digits, `-`, `_` and `.`",
            });
        }
        if self.revision.split('/').count() > 8 || !self.revision.split('/').all(plain) {
            return Err(HubError::Name {
                found: crate::quote::quoted(shown),
                expected: "a branch, tag or commit",
            });
        }
        Ok(())
    }

    fn folder(&self) -> String {
        format!("models--{}", self.name.replace('/', "--"))
    }
}

impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        match self.revision.as_str() {
            MAIN => Ok(()),
            revision => write!(f, "@{revision}"),
        }
    }
}

impl Hub {
    /// The hub that the environment names: `HF_ENDPOINT`; the cache of `HF_HUB_CACHE` or
    /// `HF_HOME`, else `~/.cache/huggingface/hub`; the token of `HF_TOKEN`; no network if
    /// `HF_HUB_OFFLINE` is set.
    pub fn from_environment() -> Result<Self, HubError> {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let endpoint = set("HF_ENDPOINT");
        let endpoint = endpoint.as_deref().unwrap_or("https://huggingface.co");
        let offline = set("HF_HUB_OFFLINE")
            .is_some_and(|value| ["1", "on", "yes", "true"].contains(&&*value.to_lowercase()));
        Ok(Self {
            remote: Remote::new(endpoint, set("HF_TOKEN"))?,
            cache: cache_folder(),
            offline,
        })
    }

    /// The same without the network, if `offline`.
    pub fn offline(mut self, offline: bool) -> Self {
        self.offline |= offline;
        self
    }
}

/// Where fetched models lie.
fn cache_folder() -> PathBuf {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(folder) = set("HF_HUB_CACHE").or_else(|| set("HUGGINGFACE_HUB_CACHE")) {
        return folder.into();
    }
    let home = set("HF_HOME").map(PathBuf::from).unwrap_or_else(|| {
        let user = set("XDG_CACHE_HOME").map(PathBuf::from).unwrap_or_else(|| {
            let home = set("HOME").or_else(|| set("USERPROFILE"));
            PathBuf::from(home.unwrap_or_default()).join(".cache")
        });
        user.join("huggingface")
    });
    home.join("hub")
}

/// The folder of a model that was fetched, where `path` is the name of one and no file or folder
/// is there; else the path itself.
pub fn locate(path: PathBuf) -> PathBuf {
    match named(&path) {
        Some(repository) => snapshot(&cache_folder(), &repository).unwrap_or(path),
        None => path,
    }
}

/// The model that a path names where nothing is there.
pub(crate) fn named(path: &Path) -> Option<Repository> {
    if std::fs::symlink_metadata(path).is_ok() {
        return None;
    }
    Repository::parse(path.to_str()?).ok()
}

/// The model of the cache that a path leads to.
pub(crate) fn repository_of(path: &Path) -> Option<String> {
    let mut parents = path.ancestors();
    let folder = parents.find(|parent| {
        let above = parent.parent().and_then(Path::file_name);
        above.is_some_and(|name| name == "snapshots")
    })?;
    let model = folder.parent()?.parent()?.file_name()?.to_str()?;
    Some(model.strip_prefix("models--")?.replacen("--", "/", 1))
}

/// The folder of a revision that was fetched.
fn snapshot(cache: &Path, repository: &Repository) -> Option<PathBuf> {
    let folder = cache.join(repository.folder());
    let commit = match std::fs::read_to_string(folder.join("refs").join(&repository.revision)) {
        Ok(commit) => commit.trim().to_owned(),
        Err(_) => repository.revision.clone(),
    };
    let found = folder.join("snapshots").join(commit);
    found.is_dir().then_some(found)
}

/// Whether a name from a listing stays below the folder that it is joined to.
fn is_inside(name: &str) -> bool {
    let path = Path::new(name);
    let plain = |component: Component<'_>| matches!(component, Component::Normal(_));
    !name.is_empty()
        && name.len() <= 512
        && !name.contains(['\\', ':'])
        && !name.chars().any(char::is_control)
        && name.split('/').all(|part| !matches!(part, "" | "." | ".."))
        && path.components().all(plain)
}

/// A model could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// Something that is no name of a model or of a revision.
    #[error("{found} is not {expected}")]
    Name {
        /// What was given, quoted.
        found: String,
        /// What it should be.
        expected: &'static str,
    },
    /// `HF_ENDPOINT` is no address.
    #[error("HF_ENDPOINT is {found}, expected https://HOST or http://HOST:PORT")]
    Endpoint {
        /// Its value, quoted.
        found: String,
    },
    /// There is no network, and the cache lacks the model.
    #[error("{repository} is not in {}, and nothing is fetched offline (--offline, HF_HUB_OFFLINE)", cache.display())]
    Offline {
        /// The model.
        repository: Repository,
        /// The cache.
        cache: PathBuf,
    },
    /// The hub could not be reached, or answered no HTTP.
    #[error("{url}: {problem}")]
    Network {
        /// The address.
        url: String,
        /// What happened.
        problem: String,
    },
    /// The hub refuses.
    #[error("{url} answers status {status}: {problem}")]
    Status {
        /// The address.
        url: String,
        /// The status.
        status: u16,
        /// What it means for the request.
        problem: String,
    },
    /// The hub's list of files cannot be used.
    #[error("the hub's list of the files of {repository} cannot be used: {problem}")]
    Listing {
        /// The model.
        repository: Repository,
        /// What is wrong.
        problem: String,
    },
    /// No file, or no single one, is what was asked for.
    #[error("{repository}: {problem}")]
    Selection {
        /// The model.
        repository: Repository,
        /// What there is, and what to do.
        problem: String,
    },
    /// A transfer ended early, again and again.
    #[error(
        "{file}: the transfer ended after {have} of {size} bytes ({problem}); the same command goes on from there"
    )]
    Cut {
        /// The file.
        file: String,
        /// Bytes that are there.
        have: u64,
        /// Bytes of the whole.
        size: u64,
        /// What happened last.
        problem: String,
    },
    /// A file has another length than the list says.
    #[error("{file}: the server sends {found} bytes, the hub's list says {size}")]
    Size {
        /// The file.
        file: String,
        /// Length that the server names, or that is exceeded.
        found: u64,
        /// Length in the list.
        size: u64,
    },
    /// A file is not the one that the list describes; it was removed.
    #[error("{file}: its SHA-256 is {found}, the hub's list says {expected}; the file was removed")]
    Checksum {
        /// The file.
        file: String,
        /// Hash of what came.
        found: String,
        /// Hash in the list.
        expected: String,
    },
    /// Another process fetches the same file.
    #[error("{}: another process writes it", path.display())]
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// The file system refuses.
    #[error("{}: {problem}", path.display())]
    File {
        /// The path.
        path: PathBuf,
        /// What happened.
        problem: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_leave_the_cache_are_none() {
        let parsed = Repository::parse("org/na.me-1_B").expect("a name");
        assert_eq!(
            (parsed.folder().as_str(), &*parsed.revision),
            ("models--org--na.me-1_B", "main")
        );
        let parsed = Repository::parse("gpt2@refs/pr/1").expect("a name");
        assert_eq!(parsed.to_string(), "gpt2@refs/pr/1");
        for wrong in [
            "",
            "/",
            "org/",
            "/name",
            "a/b/c",
            "../x",
            "a/..",
            "a b/c",
            "a/b@",
            "a/b@../x",
            "a/b@x//y",
            "a--b/c",
            "org/na\u{7f}me",
            "org/näme",
            "-a/b",
            "a/b@-x",
            "C:\\x",
        ] {
            let error = Repository::parse(wrong).expect_err(wrong).to_string();
            assert!(!error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn names_of_a_listing_stay_below_their_folder() {
        for right in ["config.json", "sub/x.safetensors", "a..b", ".gitattributes"] {
            assert!(is_inside(right), "{right}");
        }
        for wrong in [
            "",
            "/etc/passwd",
            "../x",
            "a/../../x",
            "a//b",
            "./a",
            "a/",
            "a\\..\\b",
            "C:x",
            "a\nb",
        ] {
            assert!(!is_inside(wrong), "{wrong}");
        }
    }

    #[test]
    fn a_path_into_the_cache_gives_the_name_of_its_model() {
        let path = Path::new("/c/models--org--na-me/snapshots/0123/model.gguf");
        for path in [path, path.parent().expect("a folder")] {
            assert_eq!(repository_of(path).as_deref(), Some("org/na-me"));
        }
        assert_eq!(repository_of(Path::new("/models/snapshots/x")), None);
    }
}
