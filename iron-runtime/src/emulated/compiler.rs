//! clang++, and what it made of texts: in memory, and on disk under the whole identity (text,
//! headers, flags, compiler version).
//!
//! A start of the compiler costs as much as a dozen kernels, so many texts go into one unit. The
//! disk cache holds the unit's shared object once, and for each text which unit has it.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::library::{Library, Program};
use super::unit::{Text, unit};
use crate::cache::{ArtifactCache, artifact_key, cache_folder};

/// Names the compiler.
pub const CLANG_VARIABLE: &str = "IRON_CLANG";

/// Where the compiler is looked for, 19 first: what the headers were written against.
const NAMES: [&str; 5] = [
    "clang++-19",
    "clang++-20",
    "clang++-21",
    "clang++-22",
    "clang++",
];

/// Texts of one unit: small enough that two compilers share the corpus evenly.
const UNIT_TEXTS: usize = 24;

/// The headers, by the name that units include them by.
const HEADERS: [(&str, &str); 5] = [
    ("core.h", include_str!("include/core.h")),
    ("nvidia_amd.h", include_str!("include/nvidia_amd.h")),
    ("cuda.h", include_str!("include/cuda.h")),
    (
        "hip/hip_runtime.h",
        include_str!("include/hip/hip_runtime.h"),
    ),
    ("metal_stdlib", include_str!("include/metal_stdlib")),
];

/// No contraction, as every vendor's compiler is told; every float operation done, because a
/// folded `x * 1` would keep a signalling NaN; no aliasing by type, because texts load vectors from
/// scalars, which the vendors' compilers allow.
const FLAGS: [&str; 15] = [
    "-std=c++17",
    "-O2",
    "-ffp-contract=off",
    "-ffp-exception-behavior=strict",
    "-fno-strict-aliasing",
    "-fsigned-char",
    "-fno-exceptions",
    "-fno-rtti",
    "-fvisibility=hidden",
    "-fPIC",
    "-shared",
    "-nostdinc",
    "-nostdlib",
    "-w",
    "-ferror-limit=3",
];

/// A clang++ of this machine.
pub(super) struct Compiler {
    program: PathBuf,
    version: String,
    cache: ArtifactCache,
    /// Programs by the key of their text.
    known: Mutex<HashMap<String, Program>>,
    /// Loaded units by their key.
    libraries: Mutex<HashMap<String, Arc<Library>>>,
}

impl Compiler {
    /// The compiler that the environment names, else the first of the known names. The error
    /// says what was looked for.
    pub fn find() -> Result<Compiler, String> {
        match std::env::var_os(CLANG_VARIABLE).filter(|v| !v.is_empty()) {
            Some(path) => Compiler::find_among(&[PathBuf::from(path)])
                .map_err(|path| format!("{CLANG_VARIABLE}={path}")),
            None => Compiler::find_among(&NAMES.map(PathBuf::from))
                .map_err(|names| format!("{names}, or {CLANG_VARIABLE}")),
        }
    }

    /// The first of these programs that is a clang; the error lists them.
    pub fn find_among(programs: &[PathBuf]) -> Result<Compiler, String> {
        for program in programs {
            let Ok(output) = Command::new(program).arg("--version").output() else {
                continue;
            };
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let lines: Vec<&str> = text.lines().take(2).map(str::trim).collect();
            if output.status.success() && text.contains("clang") {
                return Ok(Compiler {
                    program: program.clone(),
                    version: lines.join(", "),
                    cache: ArtifactCache::open("emulated"),
                    known: Mutex::default(),
                    libraries: Mutex::default(),
                });
            }
        }
        let names: Vec<String> = programs.iter().map(|p| p.display().to_string()).collect();
        Err(names.join(", "))
    }

    /// One line that names the compiler.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The same compiler with a cache of its own.
    #[cfg(test)]
    pub fn with_cache(mut self, folder: &std::path::Path) -> Compiler {
        self.cache = ArtifactCache::at(folder);
        self
    }

    /// The same compiler, which finds what is in its cache and nothing else.
    #[cfg(test)]
    pub fn that_compiles_nothing(mut self) -> Compiler {
        self.program = "no-compiler".into();
        self
    }

    /// Hash of everything that makes the compiled text.
    pub fn key(&self, text: &Text) -> String {
        let mut parts: Vec<&[u8]> = vec![text.source.as_bytes(), self.version.as_bytes()];
        let identity = text.identity();
        parts.push(identity.as_bytes());
        parts.extend(FLAGS.iter().map(|f| f.as_bytes()));
        parts.extend(HEADERS.iter().map(|(_, header)| header.as_bytes()));
        artifact_key(&parts)
    }

    /// The compiled text. The error is the compiler's first line.
    pub fn program(&self, text: &Text) -> Result<Program, String> {
        let key = self.key(text);
        if let Some(program) = self.find_program(&key, text) {
            return Ok(program);
        }
        self.compile(&[(&key, text)])?;
        self.find_program(&key, text)
            .ok_or_else(|| "the compiled text has no entry point".into())
    }

    /// Compiles those of the texts that are not compiled, many at a time. A text that does not
    /// compile is left to [`program`](Compiler::program), which says why.
    pub fn prepare(&self, texts: &[Text]) {
        let mut missing: Vec<(String, &Text)> = Vec::new();
        for text in texts {
            let key = self.key(text);
            let is_new = !missing.iter().any(|(known, _)| *known == key);
            if is_new && self.find_program(&key, text).is_none() {
                missing.push((key, text));
            }
        }
        let workers = std::thread::available_parallelism().map_or(1, |n| n.get());
        let size = missing.len().div_ceil(workers).clamp(1, UNIT_TEXTS);
        let units: Vec<&[(String, &Text)]> = missing.chunks(size).collect();
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..workers.min(units.len()) {
                scope.spawn(|| {
                    while let Some(texts) = units.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let texts: Vec<(&str, &Text)> =
                            texts.iter().map(|(key, text)| (&**key, *text)).collect();
                        self.compile_or_halve(&texts);
                    }
                });
            }
        });
    }

    /// Compiles a unit; where a text of it is refused, its halves.
    fn compile_or_halve(&self, texts: &[(&str, &Text)]) {
        if let Err(message) = self.compile(texts)
            && texts.len() > 1
        {
            tracing::debug!(%message, texts = texts.len(), "unit refused, compiled by halves");
            let (left, right) = texts.split_at(texts.len() / 2);
            self.compile_or_halve(left);
            self.compile_or_halve(right);
        }
    }

    /// The program of a text that was compiled, in this process or before.
    fn find_program(&self, key: &str, text: &Text) -> Option<Program> {
        if let Some(program) = self.known.lock().get(key) {
            return Some(program.clone());
        }
        let place = String::from_utf8(self.cache.get(key)?).ok()?;
        let (unit, index) = place.split_once(' ')?;
        let loaded = self.libraries.lock().get(unit).cloned();
        let library = match loaded {
            Some(library) => library,
            None => {
                let folder = Scratch::new().ok()?;
                let path = folder.write("unit.so", &self.cache.get(unit)?).ok()?;
                let library = Arc::new(Library::load(&path).ok()?);
                let mut libraries = self.libraries.lock();
                libraries.entry(unit.to_owned()).or_insert(library).clone()
            }
        };
        let program = library
            .program(index.parse().ok()?, text.has_shared())
            .ok()?;
        self.known.lock().insert(key.to_owned(), program.clone());
        Some(program)
    }

    /// Compiles the texts as one unit.
    fn compile(&self, texts: &[(&str, &Text)]) -> Result<(), String> {
        let sources: Vec<&Text> = texts.iter().map(|(_, text)| *text).collect();
        let failed = |what: &str, e: std::io::Error| format!("{what}: {e}");
        let folder = Scratch::new().map_err(|e| failed("no folder to compile in", e))?;
        let write = |name: &str, bytes: &[u8]| {
            let written = folder.write(name, bytes);
            written.map_err(|e| failed(&format!("{name} cannot be written"), e))
        };
        for (name, header) in HEADERS {
            write(name, header.as_bytes())?;
        }
        for (index, text) in sources.iter().enumerate() {
            write(&text.file(index), text.source.as_bytes())?;
        }
        write("unit.cpp", unit(&sources)?.as_bytes())?;
        let output = Command::new(&self.program)
            .current_dir(&folder.path)
            .args(FLAGS)
            .args(["-I.", "unit.cpp", "-o", "unit.so", "-lm", "-lc"])
            .output()
            .map_err(|e| failed(&self.program.display().to_string(), e))?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            let first = text.lines().find(|l| l.contains("error"));
            let line = first.or(text.lines().next()).unwrap_or("no message");
            return Err(line.trim_start_matches("./").into());
        }
        let path = folder.path.join("unit.so");
        let bytes = std::fs::read(&path).map_err(|e| failed("unit.so cannot be read", e))?;
        let library = Arc::new(Library::load(&path)?);
        let keys: Vec<&[u8]> = texts.iter().map(|(key, _)| key.as_bytes()).collect();
        let unit_key = artifact_key(&keys);
        self.cache.put(&unit_key, &bytes);
        for (index, (key, text)) in texts.iter().enumerate() {
            let program = library.program(index, text.has_shared())?;
            self.known.lock().insert((*key).to_owned(), program);
            self.cache
                .put(key, format!("{unit_key} {index}").as_bytes());
        }
        self.libraries.lock().insert(unit_key, library);
        Ok(())
    }
}

/// A folder that is removed with what is in it.
struct Scratch {
    path: PathBuf,
}

impl Scratch {
    fn new() -> std::io::Result<Scratch> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let unique = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!(".emulated.{}.{unique}", std::process::id());
        // The cache's folder first: the system's folder of temporary files may forbid programs.
        let folders = [cache_folder(), Some(std::env::temp_dir())];
        let mut result = Err(std::io::Error::other("no folder"));
        for folder in folders.into_iter().flatten() {
            let path = folder.join(&name);
            result = std::fs::create_dir_all(&path).map(|()| Scratch { path });
            if result.is_ok() {
                break;
            }
        }
        result
    }

    fn write(&self, name: &str, bytes: &[u8]) -> std::io::Result<PathBuf> {
        let path = self.path.join(name);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(&path, bytes)?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A loaded library stays mapped after its file is gone.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
