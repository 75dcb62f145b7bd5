//! What can be wrong with a GGUF file.

use std::path::PathBuf;

use super::TensorType;

/// A GGUF file could not be read.
#[derive(Debug, thiserror::Error)]
#[error("{}: {fault}", path.display())]
pub struct GgufError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub fault: Box<GgufFault>,
}

/// One thing wrong with a GGUF file. Names are already quoted and cut.
#[derive(Debug, thiserror::Error)]
pub enum GgufFault {
    /// The file could not be opened or mapped.
    #[error("cannot be read: {0}")]
    Io(std::io::Error),
    /// The file does not start with the magic.
    #[error(
        "magic is {:02x?}, a GGUF file starts with {:02x?} (\"GGUF\")",
        found,
        b"GGUF"
    )]
    Magic {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// The version is not one that is read.
    #[error("version is {found}, supported are 2 and 3{}", if found.swap_bytes() < 16 { " (the file is big-endian)" } else { "" })]
    Version {
        /// The version in the file.
        found: u32,
    },
    /// The file ends inside a field.
    #[error(
        "{field} at byte {offset} needs {needed} bytes, the file has {available} left; is it cut off?"
    )]
    Truncated {
        /// The field being read.
        field: String,
        /// Where it starts.
        offset: u64,
        /// Bytes that it needs.
        needed: u64,
        /// Bytes that are left.
        available: u64,
    },
    /// A count that the file cannot hold.
    #[error(
        "{field} counts {count} entries of at least {minimum_bytes} bytes, the file has {available} bytes left"
    )]
    Count {
        /// The field.
        field: String,
        /// The count in the file.
        count: u64,
        /// The least an entry takes.
        minimum_bytes: u64,
        /// Bytes that are left.
        available: u64,
    },
    /// A key or name beyond the format's limit.
    #[error("{field} is {length} bytes long, the limit is {longest}")]
    StringTooLong {
        /// The field.
        field: String,
        /// Length in the file.
        length: u64,
        /// The limit.
        longest: u64,
    },
    /// A string that is not UTF-8.
    #[error("{field} at byte {offset} is not valid UTF-8")]
    StringNotUtf8 {
        /// The field.
        field: String,
        /// Where it starts.
        offset: u64,
    },
    /// A boolean that is neither 0 nor 1.
    #[error("{key} is a boolean with value {found}, only 0 and 1 are valid")]
    Boolean {
        /// The key.
        key: String,
        /// The byte in the file.
        found: u8,
    },
    /// A value type that the format does not have.
    #[error("{key} has value type {found}, known are 0 to 12")]
    ValueType {
        /// The key.
        key: String,
        /// The type in the file.
        found: u32,
    },
    /// An array of arrays.
    #[error("{key} is an array of arrays, which no known key uses and is not supported")]
    NestedArray {
        /// The key.
        key: String,
    },
    /// A metadata key that stands twice.
    #[error("metadata key {key} stands twice")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// A tensor name that stands twice.
    #[error("tensor {name} stands twice")]
    DuplicateTensor {
        /// The tensor.
        name: String,
    },
    /// An alignment that is not a power of two.
    #[error("general.alignment is {found}, it must be an unsigned power of two up to 2^30")]
    Alignment {
        /// The value in the file.
        found: String,
    },
    /// A tensor with no dimension, or with more than four.
    #[error("tensor {name} has {found} dimensions, 1 to 4 are valid")]
    Rank {
        /// The tensor.
        name: String,
        /// Dimensions in the file.
        found: u32,
    },
    /// A tensor with a dimension of 0.
    #[error("tensor {name} has a dimension of 0")]
    ZeroDimension {
        /// The tensor.
        name: String,
    },
    /// A shape whose size does not fit.
    #[error("tensor {name} has shape {shape:?}, whose size overflows")]
    ShapeOverflow {
        /// The tensor.
        name: String,
        /// The shape, slowest dimension first.
        shape: Vec<usize>,
    },
    /// A type id that was never published or was withdrawn.
    #[error("tensor {name} has type id {found}, which no published type has")]
    TensorType {
        /// The tensor.
        name: String,
        /// The id in the file.
        found: u32,
    },
    /// A row that ends inside a block.
    #[error("tensor {name} has rows of {row} elements, {ty} stores blocks of {}", ty.block_elements())]
    PartialBlock {
        /// The tensor.
        name: String,
        /// Elements of a row.
        row: usize,
        /// The tensor's type.
        ty: TensorType,
    },
    /// A tensor at an offset that breaks the alignment.
    #[error(
        "tensor {name} starts at data offset {offset}, which is no multiple of general.alignment = {alignment}"
    )]
    TensorAlignment {
        /// The tensor.
        name: String,
        /// Its offset.
        offset: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// A tensor that ends past the file's end.
    #[error("tensor {name} ends at byte {end}, the file ends at byte {file_bytes}; is it cut off?")]
    TensorPastEnd {
        /// The tensor.
        name: String,
        /// Where it would end.
        end: u64,
        /// Where the file ends.
        file_bytes: u64,
    },
    /// Two tensors that share bytes.
    #[error(
        "tensor {first} ends at byte {first_end}, but tensor {second} starts at byte {second_start}: they overlap"
    )]
    Overlap {
        /// The tensor that starts first.
        first: String,
        /// Where it ends.
        first_end: u64,
        /// The tensor that starts inside it.
        second: String,
        /// Where that starts.
        second_start: u64,
    },
}
