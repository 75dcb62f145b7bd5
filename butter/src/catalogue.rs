//! The tensors of a checkpoint, whichever files they lie in.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use memmap2::Mmap;

use crate::gguf::{DequantiseError, GgufFile, TensorType, dequantise, dequantise_mxfp4};

/// A tensor of a mapped checkpoint. Cloning shares the map.
#[derive(Clone, Debug)]
pub struct Tensor {
    name: String,
    ty: TensorType,
    shape: Vec<usize>,
    map: Arc<Mmap>,
    range: Range<usize>,
    /// The exponents of the blocks of an MXFP4 tensor that is stored in two.
    scales: Option<Arc<Tensor>>,
    /// Bytes that were read of the catalogue's tensors.
    read: Arc<AtomicU64>,
}

impl Tensor {
    /// A tensor whose range a reader has checked against the map.
    pub(crate) fn new(
        name: String,
        ty: TensorType,
        shape: Vec<usize>,
        map: Arc<Mmap>,
        range: Range<usize>,
    ) -> Self {
        debug_assert!(range.end <= map.len());
        Self {
            name,
            ty,
            shape,
            map,
            range,
            scales: None,
            read: Arc::default(),
        }
    }

    /// Counts bytes that are read for a model.
    pub(crate) fn count(&self, bytes: usize) {
        self.read.fetch_add(bytes as u64, Relaxed);
    }

    /// The tensor `[.., columns]` whose codes of four bits lie in `blocks`,
    /// `[.., columns / 32, 16]`, and the exponents of its blocks in `scales`,
    /// `[.., columns / 32]`, both bytes.
    pub(crate) fn mxfp4(blocks: &Self, scales: &Self, shape: &[usize]) -> Self {
        debug_assert_eq!(blocks.range.len(), 16 * scales.range.len());
        Self {
            ty: TensorType::MXFP4,
            shape: shape.to_vec(),
            scales: Some(Arc::new(scales.clone())),
            ..blocks.clone()
        }
    }

    /// The tensor with each element in a row of its own.
    pub(crate) fn by_elements(mut self) -> Self {
        self.shape.push(1);
        self
    }

    /// Whether the bytes do not decode alone.
    pub(crate) fn has_scales(&self) -> bool {
        self.scales.is_some()
    }

    /// Name in the checkpoint.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How the bytes decode.
    pub fn ty(&self) -> TensorType {
        self.ty
    }

    /// Shape, slowest dimension first: a projection is `[outputs, inputs]`.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The tensor's bytes, straight from the map.
    pub fn bytes(&self) -> &[u8] {
        &self.map[self.range.clone()]
    }

    /// Where the bytes lie in their file.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// The whole tensor decoded to `f32`.
    pub fn to_f32(&self) -> Result<Vec<f32>, DequantiseError> {
        let mut values = vec![0.0; self.elements()];
        if let Some(scales) = &self.scales {
            self.count(self.range.len() + scales.range.len());
            dequantise_mxfp4(self.bytes(), scales.bytes(), &mut values);
            return Ok(values);
        }
        self.count(self.range.len());
        dequantise(self.ty, self.bytes(), &mut values)?;
        Ok(values)
    }

    /// One row of a matrix decoded to `f32`; `out` holds one row.
    ///
    /// # Panics
    /// If `row` is past the tensor's last.
    pub fn row_to_f32(&self, row: usize, out: &mut [f32]) -> Result<(), DequantiseError> {
        let columns = self.shape.last().copied().unwrap_or(1);
        if let Some(scales) = &self.scales {
            let blocks = columns / 32;
            let codes = &self.bytes()[row * blocks * 16..(row + 1) * blocks * 16];
            let scales = &scales.bytes()[row * blocks..(row + 1) * blocks];
            self.count(codes.len() + scales.len());
            dequantise_mxfp4(codes, scales, out);
            return Ok(());
        }
        let length = self.ty.bytes_of(columns).unwrap_or(0);
        self.count(length);
        dequantise(
            self.ty,
            &self.bytes()[row * length..(row + 1) * length],
            out,
        )
    }
}

/// All tensors of a checkpoint by name.
#[derive(Clone, Debug, Default)]
pub struct TensorCatalogue {
    tensors: BTreeMap<String, Tensor>,
    read: Arc<AtomicU64>,
}

/// How much of a checkpoint's tensors a model that is being loaded has read.
#[derive(Clone, Debug)]
pub struct ReadProgress {
    read: Arc<AtomicU64>,
    total: u64,
}

impl ReadProgress {
    /// Bytes that were read, and of all tensors.
    pub fn bytes(&self) -> (u64, u64) {
        (self.read.load(Relaxed).min(self.total), self.total)
    }
}

impl TensorCatalogue {
    /// The tensors of a GGUF file.
    pub fn from_gguf(file: &GgufFile) -> Self {
        let mut catalogue = Self::default();
        for info in file.header().tensors() {
            catalogue.insert(Tensor::new(
                info.name.clone(),
                info.ty,
                info.shape.clone(),
                Arc::clone(file.map()),
                info.range.clone(),
            ));
        }
        catalogue
    }

    /// What is read of its tensors from now on, and of copies of them.
    pub fn progress(&self) -> ReadProgress {
        self.read.store(0, Relaxed);
        ReadProgress {
            read: self.read.clone(),
            total: self.bytes() as u64,
        }
    }

    /// Adds a tensor; gives the earlier one of that name back if there was one.
    pub(crate) fn insert(&mut self, mut tensor: Tensor) -> Option<Tensor> {
        tensor.read = self.read.clone();
        self.tensors.insert(tensor.name.clone(), tensor)
    }

    /// The tensor of that name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    /// All tensors in the order of their names.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Tensor> {
        self.tensors.values()
    }

    /// Number of tensors.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether there are no tensors.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Elements of all tensors together.
    pub fn elements(&self) -> usize {
        self.iter().map(Tensor::elements).sum()
    }

    /// Bytes of all tensors together.
    pub fn bytes(&self) -> usize {
        self.iter().map(|tensor| tensor.range.len()).sum()
    }
}
