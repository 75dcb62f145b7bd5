//! Every kernel of the corpus verifies, round-trips through the text form, and goes through the
//! pipeline of every profile, verified and round-tripped after each pass.

use iron_ir::parse::parse;
use iron_ir::print::{Options, canonical, print_with};
use iron_ir::registry::kernels;
use iron_ir::verify::verify;
use iron_lower::profile;
use iron_passes::run_with;

#[test]
fn verifies_round_trips_and_passes_for_every_profile() {
    iron_corpus::link();
    let mut count = 0;
    let mut faults = Vec::new();
    for entry in kernels() {
        for instance in entry.instances {
            count += 1;
            let kernel = match (instance.build)() {
                Ok(kernel) => kernel,
                Err(error) => {
                    faults.push(format!("{} {}: {error}", entry.name, instance.name));
                    continue;
                }
            };
            let name = kernel.full_name();
            if let Err(errors) = verify(&kernel) {
                faults.push(errors.to_string());
                continue;
            }
            let text = print_with(&kernel, Options { spans: true });
            if parse(&text).as_ref() != Ok(&canonical(&kernel)) {
                faults.push(format!("{name}: the text form does not round-trip\n{text}"));
            }
            for profile in profile::all() {
                let done = run_with(kernel.clone(), &profile.legal, &mut |pass, after| {
                    let text = print_with(after, Options { spans: true });
                    if parse(&text).as_ref() != Ok(&canonical(after)) {
                        faults.push(format!(
                            "{name}, {}, after {pass}: no round trip",
                            profile.name
                        ));
                    }
                });
                if let Err(error) = done {
                    faults.push(format!("{name}, {}: {error}", profile.name));
                }
            }
        }
    }
    assert!(count > 0, "no kernel is registered");
    assert!(
        faults.is_empty(),
        "{} faults\n{}",
        faults.len(),
        faults.join("\n")
    );
}
