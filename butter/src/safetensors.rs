//! Safetensors files: an 8-byte header length, a JSON header, then data.
//!
//! The header is read here rather than by a crate so that each fault has a
//! typed error with both values, duplicate names included, which a plain map
//! would swallow. Format: <https://huggingface.co/docs/safetensors>.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};

use crate::catalogue::{Tensor, TensorCatalogue};
use crate::gguf::{TensorType, map_file};
use crate::quote::quoted;

/// Most dimensions of a tensor.
const MOST_DIMENSIONS: usize = 8;

/// The format's own limit on the header.
const LONGEST_HEADER: u64 = 100_000_000;

/// A safetensors file could not be read.
#[derive(Debug, thiserror::Error)]
#[error("{}: {fault}", path.display())]
pub struct SafetensorsError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub fault: Box<SafetensorsFault>,
}

/// One thing wrong with a safetensors file. Names are already quoted and cut.
#[derive(Debug, thiserror::Error)]
pub enum SafetensorsFault {
    /// The file could not be opened or mapped.
    #[error("cannot be read: {0}")]
    Io(std::io::Error),
    /// The file has no room for the header's length.
    #[error("the file has {found} bytes, the header's length alone takes 8")]
    NoHeader {
        /// Bytes of the file.
        found: usize,
    },
    /// The header's length is past the file or the format's limit.
    #[error(
        "header length (byte 0) is {length}, but {available} bytes follow and the format allows at most {LONGEST_HEADER}"
    )]
    HeaderLength {
        /// The length in the file.
        length: u64,
        /// Bytes behind the length field.
        available: u64,
    },
    /// The header is not the JSON that the format asks for.
    #[error("header (byte 8): {0}")]
    Json(serde_json::Error),
    /// A dtype that Butter does not decode.
    #[error("tensor {name} has dtype {dtype}, supported are F32, F16, BF16 and U8")]
    Dtype {
        /// The tensor.
        name: String,
        /// Its dtype.
        dtype: String,
    },
    /// A tensor's range is reversed or past the file's end.
    #[error(
        "tensor {name} lies at data offsets {start}..{end}, the data has {available} bytes; is the file cut off?"
    )]
    Range {
        /// The tensor.
        name: String,
        /// First byte.
        start: u64,
        /// Byte behind the last.
        end: u64,
        /// Bytes of data in the file.
        available: u64,
    },
    /// A tensor's range and its shape disagree.
    #[error("tensor {name} of shape {shape:?} in {ty} needs {} bytes, its data offsets give {found}", needed.map_or("too many".to_owned(), |n| n.to_string()))]
    Size {
        /// The tensor.
        name: String,
        /// Its shape.
        shape: Vec<u64>,
        /// Its type.
        ty: TensorType,
        /// Bytes that the shape asks for, if they can be counted.
        needed: Option<usize>,
        /// Bytes of its range.
        found: u64,
    },
    /// More dimensions than any tensor of a model has.
    #[error("tensor {name} has {found} dimensions, at most {MOST_DIMENSIONS} are read")]
    Dimensions {
        /// The tensor.
        name: String,
        /// Its dimensions.
        found: usize,
    },
    /// Bytes of the data that no tensor has: the header does not belong to this data.
    #[error("data offsets {start}..{end} belong to no tensor")]
    Unnamed {
        /// First byte.
        start: usize,
        /// Byte behind the last.
        end: usize,
    },
    /// Two tensors that share bytes.
    #[error(
        "tensor {first} ends at data offset {first_end}, but tensor {second} starts at {second_start}: they overlap"
    )]
    Overlap {
        /// The tensor that starts first.
        first: String,
        /// Where it ends.
        first_end: usize,
        /// The tensor that starts inside it.
        second: String,
        /// Where that starts.
        second_start: usize,
    },
    /// A tensor that another file of the checkpoint holds as well.
    #[error("tensor {name} stands in another file of the checkpoint as well")]
    Duplicate {
        /// The tensor.
        name: String,
    },
}

/// Maps a safetensors file and adds its tensors to the catalogue.
pub fn read_into(path: &Path, catalogue: &mut TensorCatalogue) -> Result<(), SafetensorsError> {
    let fail = |fault| SafetensorsError {
        path: path.to_owned(),
        fault: Box::new(fault),
    };
    let map = map_file(path).map_err(|error| fail(SafetensorsFault::Io(error)))?;
    let entries = parse_header(&map).map_err(fail)?;
    for entry in entries {
        let tensor = Tensor::new(
            entry.name,
            entry.ty,
            entry.shape,
            Arc::clone(&map),
            entry.range,
        );
        if let Some(earlier) = catalogue.insert(tensor) {
            return Err(fail(SafetensorsFault::Duplicate {
                name: quoted(earlier.name()),
            }));
        }
    }
    Ok(())
}

/// A tensor whose range was checked; the range counts from the file's start.
#[derive(Debug)]
pub struct SafetensorsEntry {
    /// Name.
    pub name: String,
    /// Storage type.
    pub ty: TensorType,
    /// Shape, slowest dimension first.
    pub shape: Vec<usize>,
    /// Bytes in the file.
    pub range: std::ops::Range<usize>,
}

/// Parses and checks the header of a whole file.
pub fn parse_header(bytes: &[u8]) -> Result<Vec<SafetensorsEntry>, SafetensorsFault> {
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(SafetensorsFault::NoHeader { found: bytes.len() });
    };
    let (length, available) = (u64::from_le_bytes(*length), rest.len() as u64);
    if length > available || length > LONGEST_HEADER {
        return Err(SafetensorsFault::HeaderLength { length, available });
    }
    let (header, data) = rest.split_at(length as usize);
    let header: Header = serde_json::from_slice(header).map_err(SafetensorsFault::Json)?;

    let data_start = 8 + length as usize;
    let mut entries = Vec::new();
    for (name, tensor) in header.tensors {
        let ty = match tensor.dtype.as_str() {
            "F32" => TensorType::F32,
            "F16" => TensorType::F16,
            "BF16" => TensorType::BF16,
            "U8" => TensorType::U8,
            other => {
                return Err(SafetensorsFault::Dtype {
                    name: quoted(&name),
                    dtype: quoted(other),
                });
            }
        };
        let [start, end] = tensor.data_offsets;
        let available = data.len() as u64;
        if start > end || end > available {
            return Err(SafetensorsFault::Range {
                name: quoted(&name),
                start,
                end,
                available,
            });
        }
        if tensor.shape.len() > MOST_DIMENSIONS {
            return Err(SafetensorsFault::Dimensions {
                name: quoted(&name),
                found: tensor.shape.len(),
            });
        }
        let shape: Option<Vec<usize>> = tensor
            .shape
            .iter()
            .map(|&dimension| usize::try_from(dimension).ok())
            .collect();
        let needed = shape
            .as_ref()
            .and_then(|shape| shape.iter().try_fold(1usize, |a, &b| a.checked_mul(b)))
            .and_then(|elements| ty.bytes_of(elements));
        let (Some(shape), true) = (shape, needed.is_some_and(|n| n as u64 == end - start)) else {
            return Err(SafetensorsFault::Size {
                name: quoted(&name),
                shape: tensor.shape,
                ty,
                needed,
                found: end - start,
            });
        };
        let range = data_start + start as usize..data_start + end as usize;
        entries.push(SafetensorsEntry {
            name,
            ty,
            shape,
            range,
        });
    }

    let mut order: Vec<&SafetensorsEntry> = entries.iter().collect();
    order.sort_by_key(|entry| (entry.range.start, entry.range.end));
    if let Some(pair) = order
        .windows(2)
        .find(|pair| pair[0].range.end > pair[1].range.start)
    {
        return Err(SafetensorsFault::Overlap {
            first: quoted(&pair[0].name),
            first_end: pair[0].range.end - data_start,
            second: quoted(&pair[1].name),
            second_start: pair[1].range.start - data_start,
        });
    }
    // The format leaves no byte unnamed, so that a header that was cut, or is another file's,
    // cannot shift what tensors hold.
    let mut named = data_start;
    for range in order.iter().map(|entry| &entry.range) {
        if range.start > named {
            break;
        }
        named = range.end;
    }
    if named < bytes.len() {
        let next = order.iter().map(|entry| entry.range.start);
        let end = next.filter(|start| *start > named).min();
        return Err(SafetensorsFault::Unnamed {
            start: named - data_start,
            end: end.unwrap_or(bytes.len()) - data_start,
        });
    }
    Ok(entries)
}

/// The JSON header; a name that stands twice is an error.
struct Header {
    tensors: BTreeMap<String, HeaderTensor>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct HeaderTensor {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct HeaderVisitor;

        impl<'de> Visitor<'de> for HeaderVisitor {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut tensors = BTreeMap::new();
                let mut has_metadata = false;
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<Option<BTreeMap<String, String>>>()?;
                        if std::mem::replace(&mut has_metadata, true) {
                            return Err(A::Error::custom("__metadata__ stands twice"));
                        }
                        continue;
                    }
                    let tensor = map.next_value::<HeaderTensor>()?;
                    let shown = quoted(&name);
                    if tensors.insert(name, tensor).is_some() {
                        return Err(A::Error::custom(format_args!(
                            "tensor {shown} stands twice"
                        )));
                    }
                }
                Ok(Header { tensors })
            }
        }

        deserializer.deserialize_map(HeaderVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(length: u64, header: &str, data: usize) -> Vec<u8> {
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.resize(bytes.len() + data, 0);
        bytes
    }

    fn fault(header: &str, data: usize) -> String {
        let bytes = file(header.len() as u64, header, data);
        parse_header(&bytes)
            .expect_err("the header is wrong")
            .to_string()
    }

    // E20
    #[test]
    fn each_wrong_header_is_refused_with_its_values() {
        let length = |n| {
            parse_header(&file(n, "{}", 4))
                .expect_err("too long")
                .to_string()
        };
        assert!(length(u64::MAX).contains("18446744073709551615"));
        assert!(length(7).contains("length (byte 0) is 7, but 6 bytes follow"));
        assert!(length(0).starts_with("header (byte 8): EOF"));
        assert!(parse_header(&[0; 7]).is_err());
        assert!(fault("[]", 0).contains("expected an object of tensors"));
        assert!(
            fault(
                r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}"#,
                4
            )
            .contains("EOF")
        );
        let one = r#""a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}"#;
        assert!(fault(&format!("{{{one},{one}}}"), 4).contains("`a` stands twice"));
        assert!(fault(&format!("{{{one}}}"), 3).contains("0..4, the data has 3 bytes"));
        let other = r#""b":{"dtype":"F16","shape":[1],"data_offsets":[2,4]}"#;
        assert!(fault(&format!("{{{one},{other}}}"), 4).contains("they overlap"));
        let big = r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}}"#;
        assert!(fault(big, 4).contains("needs too many bytes"));
        assert!(fault(&format!("{{{one}}}"), 6).contains("4..6 belong to no tensor"));
        let later = r#""b":{"dtype":"F16","shape":[1],"data_offsets":[6,8]}"#;
        assert!(fault(&format!("{{{one},{later}}}"), 8).contains("4..6 belong to no tensor"));
        let metadata = r#""__metadata__":{"format":"pt"}"#;
        assert!(fault(&format!("{{{metadata},{metadata}}}"), 0).contains("stands twice"));
        let reversed = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}"#;
        assert!(fault(reversed, 4).contains("4..0"));
        assert!(
            fault(
                r#"{"a":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}}"#,
                8
            )
            .contains("I64")
        );
    }
}
