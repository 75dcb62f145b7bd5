//! What rustc and the macros say about wrong kernels. `TRYBUILD=overwrite cargo test -p iron-ir
//! --test ui` accepts the present messages.

// K41: `07_vec`, `08_string`, `21_float_remainder`, `22_question_mark`, `23_trait_object`,
// `24_closure_kept_by_move`, and what lies near them.
#[test]
fn wrong_kernels_are_refused_at_the_authors_token() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/*.rs");
}
