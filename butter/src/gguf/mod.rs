//! GGUF files: a reader that maps the file and checks every offset, length and
//! count before it uses it.
//!
//! [`GgufFile::open`] maps and parses; [`GgufHeader::parse`] does the parsing
//! alone, on any bytes. Nothing is allocated from a length in the file before
//! that length was compared with the bytes that are there, so memory stays
//! within a small multiple of the file's size whatever the file claims.
//!
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>,
//! versions 2 and 3, little-endian.

mod dequantise;
mod fault;
mod types;
mod value;

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;

pub use dequantise::{DequantiseError, dequantise, dequantise_mxfp4};
pub use fault::{GgufError, GgufFault};
pub use types::TensorType;
pub use value::{Array, Value};

use crate::quote::quoted;

/// Alignment of tensor data where `general.alignment` is absent.
const DEFAULT_ALIGNMENT: u64 = 32;
/// ggml tensors have at most four dimensions.
const MAX_DIMENSIONS: u32 = 4;
/// The specification's limit on a key's length.
const MAX_KEY_BYTES: u64 = 65_535;

/// A mapped and checked GGUF file.
#[derive(Debug)]
pub struct GgufFile {
    path: PathBuf,
    map: Arc<Mmap>,
    header: GgufHeader,
}

impl GgufFile {
    /// Maps and parses the file at `path`.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let fail = |fault| GgufError {
            path: path.to_owned(),
            fault: Box::new(fault),
        };
        let map = map_file(path).map_err(|error| fail(GgufFault::Io(error)))?;
        let header = GgufHeader::parse(&map).map_err(fail)?;
        Ok(Self {
            path: path.to_owned(),
            map,
            header,
        })
    }

    /// Where the file lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The parsed header.
    pub fn header(&self) -> &GgufHeader {
        &self.header
    }

    /// The mapped bytes of the whole file.
    pub fn map(&self) -> &Arc<Mmap> {
        &self.map
    }
}

/// Maps a file read-only.
pub(crate) fn map_file(path: &Path) -> std::io::Result<Arc<Mmap>> {
    let file = File::open(path)?;
    if file.metadata()?.is_dir() {
        return Err(std::io::Error::new(
            std::io::ErrorKind::IsADirectory,
            "is a directory",
        ));
    }
    // SAFETY: the map is private and read-only. A file that another process
    // truncates while it is mapped would fault; no safe way of mapping excludes
    // that, and copying a checkpoint of many gigabytes is the alternative.
    Ok(Arc::new(unsafe { Mmap::map(&file)? }))
}

/// What a GGUF file says before its tensor data.
#[derive(Clone, Debug)]
pub struct GgufHeader {
    /// Format version, 2 or 3.
    pub version: u32,
    /// Alignment of each tensor's data, in bytes.
    pub alignment: u64,
    metadata: Vec<(Box<str>, Value)>,
    metadata_index: HashMap<Box<str>, usize>,
    tensors: Vec<TensorInfo>,
}

/// One tensor of a GGUF file, with offsets that were checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorInfo {
    /// Name, unique in the file.
    pub name: String,
    /// Storage type.
    pub ty: TensorType,
    /// Shape with the slowest dimension first (GGUF stores it the other way round).
    pub shape: Vec<usize>,
    /// Bytes in the file.
    pub range: Range<usize>,
}

impl GgufHeader {
    /// Parses the header of a whole file.
    pub fn parse(bytes: &[u8]) -> Result<Self, GgufFault> {
        let mut reader = Reader { bytes, offset: 0 };
        let magic = reader.array::<4>("magic")?;
        if &magic != b"GGUF" {
            return Err(GgufFault::Magic { found: magic });
        }
        let version = reader.u32("version")?;
        if version != 2 && version != 3 {
            return Err(GgufFault::Version { found: version });
        }
        let tensor_count = reader.u64("tensor_count")?;
        let metadata_count = reader.u64("metadata_kv_count")?;
        // An entry is at least a key length, a type and one byte of value; a
        // tensor at least a name length, a rank, one dimension, a type and an offset.
        reader.check_count("metadata_kv_count", metadata_count, 8 + 4 + 1)?;
        reader.check_count("tensor_count", tensor_count, 8 + 4 + 8 + 4 + 8)?;

        let mut metadata = Vec::new();
        let mut metadata_index = HashMap::new();
        for _ in 0..metadata_count {
            let key: Box<str> = reader.string("metadata key", MAX_KEY_BYTES)?.into();
            let value = reader.value(&key)?;
            if metadata_index.insert(key.clone(), metadata.len()).is_some() {
                return Err(GgufFault::DuplicateKey { key: quoted(&key) });
            }
            metadata.push((key, value));
        }

        let alignment = match metadata_index.get("general.alignment") {
            None => DEFAULT_ALIGNMENT,
            Some(&index) => match &metadata[index].1 {
                Value::Unsigned(v) if v.is_power_of_two() && *v <= 1 << 30 => *v,
                other => {
                    return Err(GgufFault::Alignment {
                        found: other.describe(),
                    });
                }
            },
        };

        let mut infos = Vec::new();
        for _ in 0..tensor_count {
            infos.push(reader.tensor_info()?);
        }
        let data_start = (reader.offset as u64).next_multiple_of(alignment);
        let tensors = place_tensors(infos, data_start, alignment, bytes.len() as u64)?;
        Ok(Self {
            version,
            alignment,
            metadata,
            metadata_index,
            tensors,
        })
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.metadata_index
            .get(key)
            .map(|&index| &self.metadata[index].1)
    }

    /// All keys and values in the file's order.
    pub fn metadata(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.metadata.iter().map(|(key, value)| (&**key, value))
    }

    /// All tensors in the file's order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }
}

/// A tensor's description as the file states it.
struct RawTensorInfo {
    name: String,
    ty: TensorType,
    shape: Vec<usize>,
    bytes: usize,
    offset: u64,
}

/// Turns offsets into byte ranges: aligned, inside the file, without overlap.
fn place_tensors(
    infos: Vec<RawTensorInfo>,
    data_start: u64,
    alignment: u64,
    file_bytes: u64,
) -> Result<Vec<TensorInfo>, GgufFault> {
    let mut tensors = Vec::with_capacity(infos.len());
    for info in infos {
        if !info.offset.is_multiple_of(alignment) {
            return Err(GgufFault::TensorAlignment {
                name: quoted(&info.name),
                offset: info.offset,
                alignment,
            });
        }
        let start = data_start.checked_add(info.offset);
        let end = start.and_then(|start| start.checked_add(info.bytes as u64));
        let (Some(start), Some(end)) = (start, end) else {
            return Err(GgufFault::TensorPastEnd {
                name: quoted(&info.name),
                end: u64::MAX,
                file_bytes,
            });
        };
        if end > file_bytes {
            return Err(GgufFault::TensorPastEnd {
                name: quoted(&info.name),
                end,
                file_bytes,
            });
        }
        let range = start as usize..end as usize;
        tensors.push(TensorInfo {
            name: info.name,
            ty: info.ty,
            shape: info.shape,
            range,
        });
    }

    let mut order: Vec<&TensorInfo> = tensors.iter().collect();
    order.sort_by(|a, b| a.name.cmp(&b.name));
    if let Some(pair) = order.windows(2).find(|pair| pair[0].name == pair[1].name) {
        return Err(GgufFault::DuplicateTensor {
            name: quoted(&pair[0].name),
        });
    }
    order.sort_by_key(|tensor| tensor.range.start);
    if let Some(pair) = order
        .windows(2)
        .find(|pair| pair[0].range.end > pair[1].range.start)
    {
        return Err(GgufFault::Overlap {
            first: quoted(&pair[0].name),
            first_end: pair[0].range.end as u64,
            second: quoted(&pair[1].name),
            second_start: pair[1].range.start as u64,
        });
    }
    Ok(tensors)
}

/// A cursor over the header's bytes.
struct Reader<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Reader<'a> {
    fn available(&self) -> u64 {
        (self.bytes.len() - self.offset) as u64
    }

    fn take(&mut self, count: u64, field: &str) -> Result<&'a [u8], GgufFault> {
        if count > self.available() {
            return Err(GgufFault::Truncated {
                field: field.to_owned(),
                offset: self.offset as u64,
                needed: count,
                available: self.available(),
            });
        }
        let start = self.offset;
        self.offset += count as usize;
        Ok(&self.bytes[start..self.offset])
    }

    fn array<const N: usize>(&mut self, field: &str) -> Result<[u8; N], GgufFault> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64, field)?);
        Ok(array)
    }

    fn u32(&mut self, field: &str) -> Result<u32, GgufFault> {
        self.array(field).map(u32::from_le_bytes)
    }

    fn u64(&mut self, field: &str) -> Result<u64, GgufFault> {
        self.array(field).map(u64::from_le_bytes)
    }

    /// Refuses a count whose smallest encoding is longer than what is left.
    fn check_count(&self, field: &str, count: u64, minimum_bytes: u64) -> Result<(), GgufFault> {
        if count > self.available() / minimum_bytes {
            return Err(GgufFault::Count {
                field: field.to_owned(),
                count,
                minimum_bytes,
                available: self.available(),
            });
        }
        Ok(())
    }

    fn string(&mut self, field: &str, longest: u64) -> Result<&'a str, GgufFault> {
        let offset = self.offset as u64;
        let length = self.u64(field)?;
        if length > longest {
            return Err(GgufFault::StringTooLong {
                field: field.to_owned(),
                length,
                longest,
            });
        }
        let bytes = self.take(length, field)?;
        std::str::from_utf8(bytes).map_err(|_| GgufFault::StringNotUtf8 {
            field: field.to_owned(),
            offset,
        })
    }

    fn bool(&mut self, key: &str) -> Result<bool, GgufFault> {
        match self.array::<1>(key)?[0] {
            0 => Ok(false),
            1 => Ok(true),
            found => Err(GgufFault::Boolean {
                key: quoted(key),
                found,
            }),
        }
    }

    fn value(&mut self, key: &str) -> Result<Value, GgufFault> {
        let type_id = self.u32(key)?;
        Ok(match type_id {
            0 => Value::Unsigned(self.array::<1>(key)?[0].into()),
            1 => Value::Signed(i8::from_le_bytes(self.array(key)?).into()),
            2 => Value::Unsigned(u16::from_le_bytes(self.array(key)?).into()),
            3 => Value::Signed(i16::from_le_bytes(self.array(key)?).into()),
            4 => Value::Unsigned(self.u32(key)?.into()),
            5 => Value::Signed(i32::from_le_bytes(self.array(key)?).into()),
            6 => Value::F32(f32::from_le_bytes(self.array(key)?)),
            7 => Value::Bool(self.bool(key)?),
            8 => Value::String(self.string(key, u64::MAX)?.into()),
            9 => Value::Array(self.array_value(key)?),
            10 => Value::Unsigned(self.u64(key)?),
            11 => Value::Signed(i64::from_le_bytes(self.array(key)?)),
            12 => Value::F64(f64::from_le_bytes(self.array(key)?)),
            found => {
                return Err(GgufFault::ValueType {
                    key: quoted(key),
                    found,
                });
            }
        })
    }

    fn array_value(&mut self, key: &str) -> Result<Array, GgufFault> {
        let element_type = self.u32(key)?;
        let count = self.u64(key)?;
        Ok(match element_type {
            0 => Array::U8(self.elements(key, count, |[b]| b)?),
            1 => Array::I8(self.elements(key, count, i8::from_le_bytes)?),
            2 => Array::U16(self.elements(key, count, u16::from_le_bytes)?),
            3 => Array::I16(self.elements(key, count, i16::from_le_bytes)?),
            4 => Array::U32(self.elements(key, count, u32::from_le_bytes)?),
            5 => Array::I32(self.elements(key, count, i32::from_le_bytes)?),
            6 => Array::F32(self.elements(key, count, f32::from_le_bytes)?),
            7 => {
                self.check_count(key, count, 1)?;
                let mut values = Vec::new();
                for _ in 0..count {
                    values.push(self.bool(key)?);
                }
                Array::Bool(values)
            }
            8 => {
                self.check_count(key, count, 8)?;
                let mut values = Vec::new();
                for _ in 0..count {
                    values.push(self.string(key, u64::MAX)?.into());
                }
                Array::String(values)
            }
            9 => return Err(GgufFault::NestedArray { key: quoted(key) }),
            10 => Array::U64(self.elements(key, count, u64::from_le_bytes)?),
            11 => Array::I64(self.elements(key, count, i64::from_le_bytes)?),
            12 => Array::F64(self.elements(key, count, f64::from_le_bytes)?),
            found => {
                return Err(GgufFault::ValueType {
                    key: quoted(key),
                    found,
                });
            }
        })
    }

    fn elements<T, const N: usize>(
        &mut self,
        key: &str,
        count: u64,
        decode: impl Fn([u8; N]) -> T,
    ) -> Result<Vec<T>, GgufFault> {
        self.check_count(key, count, N as u64)?;
        let bytes = self.take(count * N as u64, key)?;
        Ok(bytes
            .as_chunks::<N>()
            .0
            .iter()
            .map(|chunk| decode(*chunk))
            .collect())
    }

    fn tensor_info(&mut self) -> Result<RawTensorInfo, GgufFault> {
        let name = self.string("tensor name", MAX_KEY_BYTES)?.to_owned();
        let rank = self.u32("tensor n_dims")?;
        if rank == 0 || rank > MAX_DIMENSIONS {
            return Err(GgufFault::Rank {
                name: quoted(&name),
                found: rank,
            });
        }
        let mut shape = Vec::new();
        let mut elements = Some(1usize);
        for _ in 0..rank {
            let dimension = self.u64("tensor dimensions")?;
            if dimension == 0 {
                return Err(GgufFault::ZeroDimension {
                    name: quoted(&name),
                });
            }
            let dimension = usize::try_from(dimension).ok();
            elements = elements.zip(dimension).and_then(|(a, b)| a.checked_mul(b));
            shape.push(dimension.unwrap_or(usize::MAX));
        }
        let type_id = self.u32("tensor type")?;
        let offset = self.u64("tensor offset")?;
        let Some(ty) = TensorType::from_id(type_id) else {
            return Err(GgufFault::TensorType {
                name: quoted(&name),
                found: type_id,
            });
        };
        let row = shape[0];
        if !row.is_multiple_of(ty.block_elements()) {
            return Err(GgufFault::PartialBlock {
                name: quoted(&name),
                row,
                ty,
            });
        }
        shape.reverse();
        let Some(bytes) = elements.and_then(|elements| ty.bytes_of(elements)) else {
            return Err(GgufFault::ShapeOverflow {
                name: quoted(&name),
                shape,
            });
        };
        Ok(RawTensorInfo {
            name,
            ty,
            shape,
            bytes,
            offset,
        })
    }
}
