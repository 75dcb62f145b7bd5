//! What rustc and the macros say about wrong kernels. `TRYBUILD=overwrite cargo test -p iron-ir
//! --test ui` accepts the present messages.

// K41: `vec`, `string`, `float_remainder`, `question_mark`, `trait_object`,
// `closure_kept_by_move`, and what lies near them.
#[test]
fn wrong_kernels_are_refused_at_the_authors_token() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/*/*.rs");
}
