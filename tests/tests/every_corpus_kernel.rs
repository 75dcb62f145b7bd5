//! Every kernel of the corpus verifies, round-trips through the text form, and goes through the
//! pipeline of every profile, verified and round-tripped after each pass.

use std::num::NonZeroUsize;
use std::thread;

use iron_ir::parse::parse;
use iron_ir::print::{Options, canonical, print_with};
use iron_ir::registry::{InstanceEntry, KernelEntry, kernels};
use iron_ir::verify::verify;
use iron_lower::profile;
use iron_passes::run_with;

#[test]
fn verifies_round_trips_and_passes_for_every_profile() {
    iron_corpus::link();
    let instances: Vec<(&KernelEntry, &InstanceEntry)> = kernels()
        .into_iter()
        .flat_map(|entry| {
            entry
                .instances
                .iter()
                .map(move |instance| (entry, instance))
        })
        .collect();
    assert!(!instances.is_empty(), "no kernel is registered");
    let workers = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let faults: Vec<String> = thread::scope(|scope| {
        let share = |worker| instances.iter().skip(worker).step_by(workers);
        let work = |worker| move || share(worker).flat_map(|&(e, i)| faults_of(e, i)).collect();
        let workers: Vec<_> = (0..workers).map(|w| scope.spawn(work(w))).collect();
        let shares = workers.into_iter().map(|worker| worker.join());
        let shares = shares.map(|faults: thread::Result<Vec<String>>| faults.expect("no panic"));
        shares.flatten().collect()
    });
    assert!(
        faults.is_empty(),
        "{} faults\n{}",
        faults.len(),
        faults.join("\n")
    );
}

fn faults_of(entry: &KernelEntry, instance: &InstanceEntry) -> Vec<String> {
    let kernel = match (instance.build)() {
        Ok(kernel) => kernel,
        Err(error) => return vec![format!("{} {}: {error}", entry.name, instance.name)],
    };
    let name = kernel.full_name();
    if let Err(errors) = verify(&kernel) {
        return vec![errors.to_string()];
    }
    let mut faults = Vec::new();
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
    faults
}
