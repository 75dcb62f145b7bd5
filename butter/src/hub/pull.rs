//! Fetching: which files, from which byte on, and whether they are right.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::remote::RemoteFile;
use super::{Hub, HubError, Repository, snapshot};
use crate::quote::quoted;

/// Times that a transfer is taken up again without having come further.
const MOST_ATTEMPTS: u32 = 5;
/// Pause before the second attempt; it doubles.
const PAUSE: Duration = Duration::from_millis(200);
/// Files that an error names.
const MOST_NAMED: usize = 12;

/// What is to be fetched.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The model.
    pub repository: &'a Repository,
    /// Patterns of files, in which `*` stands for any characters and `?` for one; none: what a
    /// checkpoint is made of.
    pub include: &'a [String],
    /// A folder for the files, instead of the cache.
    pub to: Option<&'a Path>,
}

/// A model that is there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pulled {
    /// The folder with its files.
    pub folder: PathBuf,
    /// The commit; empty where nothing was asked of the hub.
    pub commit: String,
    /// The files that were asked for.
    pub files: Vec<PulledFile>,
}

/// A file that is there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PulledFile {
    /// Its path in the folder.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// Bytes that were transferred for it now.
    pub fetched: u64,
}

/// How far a file is.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// Its path in the folder.
    pub name: &'a str,
    /// Bytes that are there.
    pub have: u64,
    /// Bytes of the whole.
    pub size: u64,
}

impl Hub {
    /// Fetches the files of a model that are not there yet, and checks them.
    ///
    /// A transfer that ends early goes on from where it ended, at once and by the next call. Files
    /// that the hub keeps outside git (weights) must have the SHA-256 of its list, all files its
    /// length. Offline, the result is what the cache has of them.
    pub fn pull(
        &self,
        request: &Request<'_>,
        on_progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Pulled, HubError> {
        let repository = request.repository;
        if self.offline {
            let found = snapshot(&self.cache, repository).filter(|_| request.to.is_none());
            let folder = found.ok_or_else(|| HubError::Offline {
                repository: repository.clone(),
                cache: self.cache.clone(),
            })?;
            let mut cached = Vec::new();
            list_files(&folder, "", &mut cached)?;
            // What is there of a checkpoint may be what earlier calls chose.
            let mut files = Vec::new();
            for file in match request.include {
                [] => cached.iter().collect(),
                include => choose(repository, &cached, include)?,
            } {
                files.push(PulledFile {
                    name: file.name.clone(),
                    bytes: file.size,
                    fetched: 0,
                });
            }
            return Ok(Pulled {
                folder,
                commit: String::new(),
                files,
            });
        }
        let listing = self.remote.list(repository)?;
        let chosen = choose(repository, &listing.files, request.include)?;
        let model = self.cache.join(repository.folder());
        let folder = match request.to {
            Some(folder) => folder.to_owned(),
            None => model.join("snapshots").join(&listing.commit),
        };
        let mut files = Vec::new();
        for file in chosen {
            let name = folder.join(&file.name);
            let place = match request.to {
                Some(_) => name.clone(),
                None => model.join("blobs").join(&file.blob),
            };
            // A blob of the cache was checked before it got its name; any other file is anybody's.
            let trusted = request.to.is_none();
            let mut fetched = 0;
            if !is_there(file, &place, trusted)? {
                let url = self.remote.url_of(repository, &listing.commit, &file.name);
                fetched = self.fetch(repository, &url, file, &place, on_progress)?;
            }
            if request.to.is_none() {
                link(&file.blob, &file.name, &place, &name)?;
            }
            files.push(PulledFile {
                name: file.name.clone(),
                bytes: file.size,
                fetched,
            });
        }
        if request.to.is_none() && repository.revision != listing.commit {
            let path = model.join("refs").join(&repository.revision);
            make_parent(&path)?;
            in_file(&path, fs::write(&path, &listing.commit))?;
        }
        Ok(Pulled {
            folder,
            commit: listing.commit,
            files,
        })
    }

    /// Fetches a file to `place`, from the byte on that an earlier call came to; gives the bytes
    /// that came.
    fn fetch(
        &self,
        repository: &Repository,
        url: &str,
        file: &RemoteFile,
        place: &Path,
        on_progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<u64, HubError> {
        make_parent(place)?;
        // Named by its content, so that it never goes on as a newer revision of the file.
        let mut partial = place.as_os_str().to_owned();
        partial.push(format!(".{}.incomplete", &file.blob[..12]));
        let partial = PathBuf::from(partial);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let mut out = in_file(&partial, options.open(&partial))?;
        if let Err(TryLockError::WouldBlock) = out.try_lock() {
            return Err(HubError::Busy { path: partial });
        }
        let mut have = in_file(&partial, out.metadata())?.len();
        if have > file.size {
            in_file(&partial, out.set_len(0))?;
            have = 0;
        }
        let (mut fetched, mut attempts) = (0, 0);
        // What counts as progress: a server that makes it begin again must not keep it at it.
        let mut furthest = have;
        while have < file.size {
            let before = have;
            let mut on_bytes = |have| {
                on_progress(Progress {
                    name: &file.name,
                    have,
                    size: file.size,
                });
            };
            let mut transfer = Transfer {
                file,
                path: &partial,
                out: &mut out,
                have: &mut have,
                fetched: &mut fetched,
            };
            let ended = match self.remote.fetch(repository, url, before) {
                Ok(answer) => transfer.run(answer, &mut on_bytes)?,
                Err(HubError::Network { problem, .. }) => Some(problem),
                Err(HubError::Status {
                    status, problem, ..
                }) if status >= 500 => Some(format!("status {status}, {problem}")),
                Err(error) => return Err(error),
            };
            attempts = if have > furthest { 0 } else { attempts + 1 };
            furthest = furthest.max(have);
            if let Some(problem) = ended.filter(|_| attempts >= MOST_ATTEMPTS) {
                return Err(HubError::Cut {
                    file: file.name.clone(),
                    have,
                    size: file.size,
                    problem,
                });
            }
            if have < file.size {
                std::thread::sleep(PAUSE * (1 << attempts));
            }
        }
        in_file(&partial, out.sync_all())?;
        if let Err(error) = check(file, &partial) {
            drop(out);
            in_file(&partial, fs::remove_file(&partial))?;
            return Err(error);
        }
        in_file(place, fs::rename(&partial, place))?;
        Ok(fetched)
    }
}

/// A file on its way.
struct Transfer<'a> {
    file: &'a RemoteFile,
    path: &'a Path,
    out: &'a mut File,
    have: &'a mut u64,
    fetched: &'a mut u64,
}

impl Transfer<'_> {
    /// Writes what comes; gives why it ended, if before the file did.
    fn run(
        &mut self,
        answer: Option<ureq::http::Response<ureq::Body>>,
        on_bytes: &mut dyn FnMut(u64),
    ) -> Result<Option<String>, HubError> {
        let Some(mut answer) = answer else {
            // What is there belongs to another file.
            self.restart()?;
            return Ok(Some("the server has no byte from there on".to_owned()));
        };
        if answer.status().as_u16() == 206 {
            let header = answer.headers().get("content-range");
            let start = header.and_then(|range| range_start(range.to_str().ok()?));
            if start != Some(*self.have) {
                self.restart()?;
                return Ok(Some("the server sends another part".to_owned()));
            }
        } else {
            self.restart()?;
        }
        if let Some(length) = answer.body().content_length() {
            self.check_size(self.have.saturating_add(length), |found, size| {
                found != size
            })?;
        }
        in_file(self.path, self.out.seek(SeekFrom::Start(*self.have)))?;
        let mut reader = answer.body_mut().as_reader();
        let mut buffer = vec![0; 1 << 16];
        loop {
            let count = match reader.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) => return Ok(Some(error.to_string())),
            };
            self.check_size(*self.have + count as u64, |found, size| found > size)?;
            in_file(self.path, self.out.write_all(&buffer[..count]))?;
            *self.have += count as u64;
            *self.fetched += count as u64;
            on_bytes(*self.have);
        }
        let whole = *self.have == self.file.size;
        Ok((!whole).then(|| "the connection was closed".to_owned()))
    }

    fn restart(&mut self) -> Result<(), HubError> {
        *self.have = 0;
        in_file(self.path, self.out.set_len(0))
    }

    fn check_size(&self, found: u64, is_wrong: fn(u64, u64) -> bool) -> Result<(), HubError> {
        if is_wrong(found, self.file.size) {
            return Err(HubError::Size {
                file: self.file.name.clone(),
                found,
                size: self.file.size,
            });
        }
        Ok(())
    }
}

/// The first byte of `bytes FIRST-LAST/SIZE`.
fn range_start(range: &str) -> Option<u64> {
    range
        .strip_prefix("bytes ")?
        .split_once('-')?
        .0
        .parse()
        .ok()
}

/// Whether a file is there and, unless it is `trusted`, right.
fn is_there(file: &RemoteFile, place: &Path, trusted: bool) -> Result<bool, HubError> {
    let whole = fs::metadata(place).is_ok_and(|found| found.is_file() && found.len() == file.size);
    if !whole || trusted {
        return Ok(whole);
    }
    // Without a hash to compare, the length says too little.
    match check(file, place) {
        Ok(()) => Ok(file.sha256.is_some()),
        Err(HubError::Checksum { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Compares the hash, where the hub knows one.
fn check(file: &RemoteFile, path: &Path) -> Result<(), HubError> {
    let Some(expected) = &file.sha256 else {
        return Ok(());
    };
    let mut reader = in_file(path, File::open(path))?;
    let mut hash = Sha256::new();
    in_file(path, std::io::copy(&mut reader, &mut hash))?;
    let found: String = hash
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    if found == *expected {
        return Ok(());
    }
    Err(HubError::Checksum {
        file: file.name.clone(),
        found,
        expected: expected.clone(),
    })
}

/// Gives a blob its name in a snapshot.
fn link(blob: &str, name: &str, place: &Path, link: &Path) -> Result<(), HubError> {
    if fs::symlink_metadata(link).is_ok() {
        in_file(link, fs::remove_file(link))?;
    }
    make_parent(link)?;
    #[cfg(unix)]
    {
        let _ = place;
        // From `snapshots/COMMIT/…` back to the model's folder.
        let up = "../".repeat(2 + name.matches('/').count());
        in_file(
            link,
            std::os::unix::fs::symlink(format!("{up}blobs/{blob}"), link),
        )
    }
    #[cfg(not(unix))]
    {
        let _ = (blob, name);
        in_file(link, fs::hard_link(place, link))
    }
}

/// The files below a folder, by their paths in it.
fn list_files(folder: &Path, below: &str, found: &mut Vec<RemoteFile>) -> Result<(), HubError> {
    let mut entries = Vec::new();
    for entry in in_file(folder, fs::read_dir(folder))? {
        entries.push(in_file(folder, entry)?.path());
    }
    entries.sort();
    for path in entries {
        let Some(own) = path.file_name().and_then(|name| name.to_str()) else {
            continue;
        };
        let name = format!("{below}{own}");
        if path.is_dir() && !path.is_symlink() {
            list_files(&path, &format!("{name}/"), found)?;
        }
        // A link of the cache may have lost its blob.
        let Ok(metadata) = fs::metadata(&path) else {
            continue;
        };
        if metadata.is_file() {
            found.push(RemoteFile {
                name,
                size: metadata.len(),
                blob: String::new(),
                sha256: None,
            });
        }
    }
    Ok(())
}

/// The files that a pattern names, or that a checkpoint is made of: weights, configs, tokenizer and
/// template at the top, and the licence.
fn choose<'a>(
    repository: &Repository,
    files: &'a [RemoteFile],
    include: &[String],
) -> Result<Vec<&'a RemoteFile>, HubError> {
    let wrong = |problem: String| HubError::Selection {
        repository: repository.clone(),
        problem,
    };
    let of = |patterns: &[&str]| -> Vec<&'a RemoteFile> {
        let named = |file: &&RemoteFile| patterns.iter().any(|p| matches(p, &file.name));
        files.iter().filter(named).collect()
    };
    let list = |files: &[&RemoteFile]| -> String {
        let names: Vec<String> = files
            .iter()
            .take(MOST_NAMED)
            .map(|f| quoted(&f.name))
            .collect();
        let more = files.len().saturating_sub(MOST_NAMED);
        match more {
            0 => names.join(", "),
            more => format!("{} and {more} more", names.join(", ")),
        }
    };
    if !include.is_empty() {
        let patterns: Vec<&str> = include.iter().map(String::as_str).collect();
        let chosen = of(&patterns);
        if chosen.is_empty() {
            let all: Vec<&RemoteFile> = files.iter().collect();
            let patterns = quoted(&patterns.join(", "));
            return Err(wrong(format!(
                "no file is named {patterns}; there are {}",
                list(&all)
            )));
        }
        return Ok(chosen);
    }
    let top = |patterns: &[&str]| -> Vec<&'a RemoteFile> {
        of(patterns)
            .into_iter()
            .filter(|file| !file.name.contains('/'))
            .collect()
    };
    // Some repositories hold the weights twice, under their makers' names too.
    let mut weights = top(&["model.safetensors", "model-*.safetensors"]);
    if weights.is_empty() {
        weights = top(&["*.safetensors"]);
    }
    if weights.is_empty() {
        weights = of(&["*.gguf"]);
        if weights.len() > 1 {
            return Err(wrong(format!(
                "it has several GGUF files, take one with --include: {}",
                list(&weights)
            )));
        }
    }
    if weights.is_empty() {
        return Err(wrong(
            "it has neither .safetensors nor .gguf files; name others with --include".to_owned(),
        ));
    }
    weights.extend(top(&["*.json", "*.jinja", "LICENSE*", "NOTICE*"]));
    Ok(weights)
}

/// Whether a name is of a pattern, in which `*` stands for any characters and `?` for one.
fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    // Where to go on if the last star has to stand for one character more.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(c) if *c == '?' || *c == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match star {
                Some((at, from)) => {
                    star = Some((at, from + 1));
                    p = at + 1;
                    n = from + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

fn make_parent(path: &Path) -> Result<(), HubError> {
    let parent = path.parent().unwrap_or(path);
    in_file(parent, fs::create_dir_all(parent))
}

fn in_file<T>(path: &Path, result: std::io::Result<T>) -> Result<T, HubError> {
    result.map_err(|error| HubError::File {
        path: path.to_owned(),
        problem: error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_any_characters() {
        for (pattern, name) in [
            ("*", "a/b"),
            ("*Q4_0.gguf", "x-Q4_0.gguf"),
            ("a*b*c", "abbc"),
            ("model-?.x", "model-1.x"),
            ("a", "a"),
            ("**", ""),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("a", "ab"),
            ("*b", "abc"),
            ("?", ""),
            ("", "a"),
            ("a*a", "a"),
        ] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }

    fn files(names: &[&str]) -> Vec<RemoteFile> {
        let file = |name: &&str| RemoteFile {
            name: (*name).to_owned(),
            size: 1,
            blob: "0".repeat(40),
            sha256: None,
        };
        names.iter().map(file).collect()
    }

    fn chosen(names: &[&str], include: &[&str]) -> Result<Vec<String>, String> {
        let repository = Repository::parse("a/b").expect("a name");
        let include: Vec<String> = include.iter().map(|p| (*p).to_owned()).collect();
        let files = files(names);
        choose(&repository, &files, &include)
            .map(|files| files.iter().map(|file| file.name.clone()).collect())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_checkpoint_is_chosen_once_and_of_several_gguf_files_none_is_guessed() {
        let whole = [
            "config.json",
            "consolidated.safetensors",
            "model.safetensors",
            "onnx/model.onnx",
            "onnx/config.json",
            "pytorch_model.bin",
            "tokenizer.json",
            "LICENSE",
            "chat_template.jinja",
        ];
        assert_eq!(
            chosen(&whole, &[]).expect("a checkpoint"),
            [
                "model.safetensors",
                "config.json",
                "tokenizer.json",
                "LICENSE",
                "chat_template.jinja"
            ]
        );
        assert_eq!(chosen(&["x.gguf", "y.bin"], &[]).expect("one"), ["x.gguf"]);
        let several = ["x-Q4_0.gguf", "x-Q8_0.gguf"];
        let error = chosen(&several, &[]).expect_err("which?");
        assert!(
            error.contains("--include: `x-Q4_0.gguf`, `x-Q8_0.gguf`"),
            "{error}"
        );
        assert_eq!(chosen(&several, &["*Q8_0*"]).expect("one"), ["x-Q8_0.gguf"]);
        let error = chosen(&several, &["*Q9*"]).expect_err("none");
        assert!(error.contains("`*Q9*`; there are `x-Q4_0.gguf`"), "{error}");
        assert!(
            chosen(&["model.bin"], &[])
                .expect_err("none")
                .contains("neither")
        );
    }
}
