//! The tensor types of GGUF: names, block sizes, and what Butter can decode.

use std::fmt;

/// Storage type of a tensor: how its bytes decode to numbers.
///
/// Safetensors files use the plain ones. The block sizes of all published
/// types are known, so that offsets can be checked and `butter inspect` can
/// list a file whose types cannot be decoded yet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TensorType {
    id: u32,
    name: &'static str,
    block_elements: usize,
    block_bytes: usize,
}

macro_rules! tensor_types {
    ($($constant:ident = $id:literal, $block_elements:literal, $block_bytes:literal;)*) => {
        impl TensorType {
            $(#[doc = concat!("`", stringify!($constant), "`: ", $block_elements, " elements in ", $block_bytes, " bytes.")]
            pub const $constant: Self = Self {
                id: $id,
                name: stringify!($constant),
                block_elements: $block_elements,
                block_bytes: $block_bytes,
            };)*

            /// Every published type, by ascending id.
            pub const ALL: &'static [Self] = &[$(Self::$constant),*];
        }
    };
}

// Ids and sizes: `ggml_type` and the block structs of ggml's `ggml-common.h`.
tensor_types! {
    F32 = 0, 1, 4;
    F16 = 1, 1, 2;
    Q4_0 = 2, 32, 18;
    Q4_1 = 3, 32, 20;
    Q5_0 = 6, 32, 22;
    Q5_1 = 7, 32, 24;
    Q8_0 = 8, 32, 34;
    Q8_1 = 9, 32, 36;
    Q2_K = 10, 256, 84;
    Q3_K = 11, 256, 110;
    Q4_K = 12, 256, 144;
    Q5_K = 13, 256, 176;
    Q6_K = 14, 256, 210;
    Q8_K = 15, 256, 292;
    IQ2_XXS = 16, 256, 66;
    IQ2_XS = 17, 256, 74;
    IQ3_XXS = 18, 256, 98;
    IQ1_S = 19, 256, 50;
    IQ4_NL = 20, 32, 18;
    IQ3_S = 21, 256, 110;
    IQ2_S = 22, 256, 82;
    IQ4_XS = 23, 256, 136;
    I8 = 24, 1, 1;
    I16 = 25, 1, 2;
    I32 = 26, 1, 4;
    I64 = 27, 1, 8;
    F64 = 28, 1, 8;
    IQ1_M = 29, 256, 56;
    BF16 = 30, 1, 2;
    TQ1_0 = 34, 256, 54;
    TQ2_0 = 35, 256, 66;
    MXFP4 = 39, 32, 17;
    NVFP4 = 40, 64, 36;
}

impl TensorType {
    /// Bytes, which safetensors files hold and GGUF files do not; nothing decodes them alone.
    pub const U8: Self = Self {
        id: u32::MAX,
        name: "U8",
        block_elements: 1,
        block_bytes: 1,
    };

    /// The type with this id in a GGUF file, if one was published.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.iter().copied().find(|ty| ty.id == id)
    }

    /// The type's id in a GGUF file.
    pub const fn id(self) -> u32 {
        self.id
    }

    /// The type's name as the GGUF tools print it.
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// Elements of one block; 1 for the plain types.
    pub const fn block_elements(self) -> usize {
        self.block_elements
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        self.block_bytes
    }

    /// Whether one block holds several elements that share a scale.
    pub const fn is_quantised(self) -> bool {
        self.block_elements > 1
    }

    /// Whether [`dequantise`](fn@super::dequantise) and the kernels decode it.
    pub fn is_supported(self) -> bool {
        [
            Self::F32,
            Self::F16,
            Self::BF16,
            Self::Q8_0,
            Self::Q4_0,
            Self::Q4_1,
            Self::Q5_0,
            Self::Q5_1,
            Self::Q4_K,
            Self::Q5_K,
            Self::Q6_K,
        ]
        .contains(&self)
    }

    /// Bytes of `elements` elements, or `None` if they do not fill whole
    /// blocks or the size does not fit.
    pub fn bytes_of(self, elements: usize) -> Option<usize> {
        if !elements.is_multiple_of(self.block_elements) {
            return None;
        }
        (elements / self.block_elements).checked_mul(self.block_bytes)
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}
