//! The disk cache of compiled artifacts.
//!
//! A file's name is the hash of everything that makes the artifact (text, architecture, flags,
//! compiler version), so an entry is never out of date; its content carries a checksum, so a
//! torn or edited file is a miss. Files appear by rename: readers see a whole entry or none. A
//! cache that cannot be read or written costs time and nothing else.
//!
//! The folder is `$IRON_CACHE_DIR`, else `$XDG_CACHE_HOME/iron`, else `$HOME/.cache/iron`.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest, Sha256};

/// Names the folder of every disk cache of the runtime.
pub const CACHE_VARIABLE: &str = "IRON_CACHE_DIR";

const MAGIC: &[u8; 8] = b"IRONART1";

/// One kind of artifacts on disk.
#[derive(Clone, Debug)]
pub struct ArtifactCache {
    folder: Option<PathBuf>,
}

impl ArtifactCache {
    /// The cache of that kind (`cubin`, `hsaco`) in the user's folder.
    pub fn open(kind: &str) -> ArtifactCache {
        ArtifactCache {
            folder: cache_folder().map(|f| f.join(kind)),
        }
    }

    /// A cache in a folder of the caller's choice.
    pub fn at(folder: &Path) -> ArtifactCache {
        ArtifactCache {
            folder: Some(folder.to_owned()),
        }
    }

    /// The artifact of a key, if it is there and whole.
    pub fn get(&self, key: &str) -> Option<Vec<u8>> {
        let bytes = std::fs::read(self.folder.as_ref()?.join(key)).ok()?;
        let rest = bytes.strip_prefix(MAGIC)?;
        let (sum, payload) = rest.split_at_checked(32)?;
        (Sha256::digest(payload).as_slice() == sum).then(|| payload.to_vec())
    }

    /// Stores an artifact; failure is reported to the log and harms nothing.
    pub fn put(&self, key: &str, payload: &[u8]) {
        let Some(folder) = &self.folder else { return };
        if let Err(error) = write(folder, key, payload) {
            tracing::warn!(folder = %folder.display(), %error, "artifact cache not written");
        }
    }
}

fn write(folder: &Path, key: &str, payload: &[u8]) -> std::io::Result<()> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    std::fs::create_dir_all(folder)?;
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&Sha256::digest(payload));
    bytes.extend_from_slice(payload);
    let unique = COUNT.fetch_add(1, Ordering::Relaxed);
    let partial = folder.join(format!(".{key}.{}.{unique}", std::process::id()));
    std::fs::write(&partial, &bytes)?;
    std::fs::rename(&partial, folder.join(key)).inspect_err(|_| {
        let _ = std::fs::remove_file(&partial);
    })
}

/// The folder of every disk cache, where the environment gives one.
pub fn cache_folder() -> Option<PathBuf> {
    let set = |name: &str| {
        std::env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    set(CACHE_VARIABLE)
        .or_else(|| set("XDG_CACHE_HOME").map(|f| f.join("iron")))
        .or_else(|| set("HOME").map(|f| f.join(".cache").join("iron")))
}

/// A key of everything that makes an artifact, each part with its length, in hexadecimal.
pub fn artifact_key(parts: &[&[u8]]) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hasher
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("iron-cache-{name}-{}", std::process::id()))
    }

    #[test]
    fn an_entry_reads_back_and_a_torn_one_is_a_miss() {
        let folder = scratch("torn");
        let cache = ArtifactCache::at(&folder);
        assert_eq!(cache.get("k"), None);
        cache.put("k", b"binary");
        assert_eq!(cache.get("k").as_deref(), Some(&b"binary"[..]));
        let whole = std::fs::read(folder.join("k")).expect("written");
        for bytes in [&whole[..whole.len() - 1], &whole[..20], &[][..]] {
            std::fs::write(folder.join("k"), bytes).expect("overwritten");
            assert_eq!(cache.get("k"), None, "{} bytes", bytes.len());
        }
        let mut flipped = whole.clone();
        *flipped.last_mut().expect("not empty") ^= 1;
        std::fs::write(folder.join("k"), flipped).expect("overwritten");
        assert_eq!(cache.get("k"), None);
        std::fs::remove_dir_all(folder).expect("removed");
    }

    // K34
    #[test]
    fn every_part_changes_the_key_and_boundaries_count() {
        let base = artifact_key(&[b"text", b"sm_90a", b"--fmad=false", b"13.0"]);
        assert_eq!(
            base,
            artifact_key(&[b"text", b"sm_90a", b"--fmad=false", b"13.0"])
        );
        for other in [
            artifact_key(&[b"Text", b"sm_90a", b"--fmad=false", b"13.0"]),
            artifact_key(&[b"text", b"sm_80", b"--fmad=false", b"13.0"]),
            artifact_key(&[b"text", b"sm_90a", b"--fmad=true", b"13.0"]),
            artifact_key(&[b"text", b"sm_90a", b"--fmad=false", b"13.1"]),
            artifact_key(&[b"texts", b"m_90a", b"--fmad=false", b"13.0"]),
        ] {
            assert_ne!(base, other);
        }
    }
}
