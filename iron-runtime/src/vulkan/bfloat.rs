//! The features of `VK_KHR_shader_bfloat16`, which `ash` has no declaration of yet.

use std::ffi::{CStr, c_void};

use ash::vk;

/// The extension.
pub(super) const NAME: &CStr = c"VK_KHR_shader_bfloat16";

/// `VkPhysicalDeviceShaderBfloat16FeaturesKHR`.
#[repr(C)]
pub(super) struct Features {
    s_type: vk::StructureType,
    p_next: *mut c_void,
    /// The type `bf16` and its conversions.
    pub shader_bfloat16_type: vk::Bool32,
    shader_bfloat16_dot_product: vk::Bool32,
    /// Cooperative matrices of the type.
    pub shader_bfloat16_cooperative_matrix: vk::Bool32,
}

impl Features {
    /// Nothing, or the type alone.
    pub fn new(has_type: bool) -> Features {
        Features {
            s_type: vk::StructureType::from_raw(1_000_141_000),
            p_next: std::ptr::null_mut(),
            shader_bfloat16_type: has_type.into(),
            shader_bfloat16_dot_product: vk::FALSE,
            shader_bfloat16_cooperative_matrix: vk::FALSE,
        }
    }
}

// SAFETY: the fields are those of the structure in their order, so its first two are those of
// every structure of a chain, and the specification lets it extend a query of features.
unsafe impl vk::ExtendsPhysicalDeviceFeatures2 for Features {}
// SAFETY: as above, and the creation of a device.
unsafe impl vk::ExtendsDeviceCreateInfo for Features {}
