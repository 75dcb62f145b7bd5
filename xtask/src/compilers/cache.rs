//! Compile results by content: the key is the hash of everything that the result depends on, so an
//! unchanged kernel costs one small read. Refusals are not kept.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{CompileFailure, Compiled};
use crate::tools::{create_folder, file_error, hash_hex};

/// Bumped when the form of entries changes.
const FORM: u32 = 1;

/// Everything that a compile result depends on.
#[derive(Clone, Debug)]
pub struct CacheKey<'a> {
    /// The text or module.
    pub source: &'a [u8],
    /// The architecture.
    pub arch: &'a str,
    /// The compiler's [`identity`](super::Compiler::identity): version, flags, headers.
    pub compiler: &'a str,
}

impl CacheKey<'_> {
    /// The hash that names the entry.
    pub fn hash(&self) -> String {
        let mut all = format!(
            "{FORM}\n{}\n{}\n{}\n",
            self.arch,
            self.compiler.len(),
            self.compiler
        )
        .into_bytes();
        all.extend_from_slice(self.source);
        hash_hex(&all)
    }
}

/// A folder of compile results.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct Header {
    log: String,
    registers: Option<u32>,
    spills: Option<u32>,
    shared_bytes: Option<u32>,
    checked_by: String,
    bytes_hash: String,
}

impl Cache {
    /// Opens, and makes where needed, the cache at `folder`.
    pub fn open(folder: &Path) -> Result<Self, CompileFailure> {
        create_folder(folder)?;
        Ok(Self {
            folder: folder.to_path_buf(),
        })
    }

    /// The stored result, else that of `compile`, which is stored. The second value says whether it
    /// was stored before.
    pub fn get_or_compile(
        &self,
        key: &CacheKey<'_>,
        compile: impl FnOnce() -> Result<Compiled, CompileFailure>,
    ) -> Result<(Compiled, bool), CompileFailure> {
        let hash = key.hash();
        let path = self.folder.join(&hash[..2]).join(&hash[2..]);
        if let Some(compiled) = std::fs::read(&path).ok().and_then(|entry| decode(&entry)) {
            return Ok((compiled, true));
        }
        let compiled = compile()?;
        self.store(&path, &compiled)?;
        Ok((compiled, false))
    }

    fn store(&self, path: &Path, compiled: &Compiled) -> Result<(), CompileFailure> {
        if let Some(folder) = path.parent() {
            create_folder(folder)?;
        }
        let mut partial = tempfile::NamedTempFile::new_in(&self.folder)
            .map_err(|source| file_error("create a file in", &self.folder, source))?;
        std::io::Write::write_all(&mut partial, &encode(compiled))
            .map_err(|source| file_error("write", path, source))?;
        partial
            .persist(path)
            .map_err(|error| file_error("move into place", path, error.error))?;
        Ok(())
    }
}

/// One line of JSON, then the binary.
fn encode(compiled: &Compiled) -> Vec<u8> {
    let header = Header {
        log: compiled.log.clone(),
        registers: compiled.registers,
        spills: compiled.spills,
        shared_bytes: compiled.shared_bytes,
        checked_by: compiled.checked_by.clone(),
        bytes_hash: hash_hex(&compiled.bytes),
    };
    // Strings and numbers always serialise.
    let mut entry = serde_json::to_vec(&header).unwrap_or_default();
    entry.push(b'\n');
    entry.extend_from_slice(&compiled.bytes);
    entry
}

/// None for an entry that is cut, garbled or of another form: it is compiled again.
fn decode(entry: &[u8]) -> Option<Compiled> {
    let end = entry.iter().position(|&byte| byte == b'\n')?;
    let header: Header = serde_json::from_slice(&entry[..end]).ok()?;
    let bytes = entry[end + 1..].to_vec();
    (hash_hex(&bytes) == header.bytes_hash).then_some(Compiled {
        bytes,
        log: header.log,
        registers: header.registers,
        spills: header.spills,
        shared_bytes: header.shared_bytes,
        checked_by: header.checked_by,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Compiled {
        Compiled {
            bytes: b"\x7fELF\n\n".to_vec(),
            registers: Some(22),
            checked_by: "c 1".into(),
            ..Compiled::default()
        }
    }

    #[test] // K34
    fn every_part_of_the_key_makes_a_miss_and_equal_keys_hit() {
        let scratch = tempfile::tempdir().expect("temporary folder");
        let cache = Cache::open(scratch.path()).expect("opens");
        let key = CacheKey {
            source: b"text",
            arch: "sm_80",
            compiler: "c 1 -O3",
        };
        let first = cache
            .get_or_compile(&key, || Ok(sample()))
            .expect("compiles");
        assert_eq!(first, (sample(), false));
        let again = cache
            .get_or_compile(&key, || panic!("must not compile twice"))
            .expect("hits");
        assert_eq!(again, (sample(), true));
        for other in [
            CacheKey {
                source: b"text2",
                ..key.clone()
            },
            CacheKey {
                arch: "sm_90a",
                ..key.clone()
            },
            CacheKey {
                compiler: "c 2 -O3",
                ..key.clone()
            },
            CacheKey {
                compiler: "c 1 -O2",
                ..key.clone()
            },
        ] {
            assert_ne!(other.hash(), key.hash(), "{other:?}");
        }
    }

    #[test]
    fn a_refusal_and_a_garbled_entry_are_compiled_again() {
        let scratch = tempfile::tempdir().expect("temporary folder");
        let cache = Cache::open(scratch.path()).expect("opens");
        let key = CacheKey {
            source: b"text",
            arch: "sm_80",
            compiler: "c",
        };
        let refusal = || {
            Err(CompileFailure::BrokenTool {
                tool: "c",
                reason: "no".into(),
            })
        };
        assert!(cache.get_or_compile(&key, refusal).is_err());
        assert!(
            !cache
                .get_or_compile(&key, || Ok(sample()))
                .expect("compiles")
                .1
        );
        let hash = key.hash();
        let path = scratch.path().join(&hash[..2]).join(&hash[2..]);
        let mut entry = std::fs::read(&path).expect("entry");
        let last = entry.len() - 1;
        entry[last] ^= 1;
        std::fs::write(&path, &entry).expect("garbled");
        assert!(
            !cache
                .get_or_compile(&key, || Ok(sample()))
                .expect("compiles again")
                .1
        );
    }
}
