//! A thin language-model engine over Iron's kernels.
