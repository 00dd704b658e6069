//! Runs a seeded sample of every target, and checks that `fuzz/` has a file for each.

use super::targets;
use vivavoce_core::fuzzing::rounds::fuzz;

/// Mutated inputs per target in a normal run.
const ROUNDS: u64 = 1_500;

#[test]
fn no_parser_panics() {
    for target in targets() {
        let samples = (target.samples)();
        fuzz(target.name, ROUNDS, target.is_text, samples, target.run);
    }
}

#[test]
fn every_target_has_a_file_for_libfuzzer() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/fuzz_targets");
    let mut files: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    let mut names: Vec<String> = targets()
        .map(|target| format!("{}.rs", target.name))
        .collect();
    names.sort();
    assert_eq!(files, names);
    let manifest = std::fs::read_to_string(format!("{folder}/../Cargo.toml")).unwrap();
    for target in targets() {
        let text = std::fs::read_to_string(format!("{folder}/{}.rs", target.name)).unwrap();
        assert!(
            text.contains(&format!("fuzzing::run(\"{}\"", target.name)),
            "{}",
            target.name
        );
        assert!(
            manifest.contains(&format!("name = \"{}\"", target.name)),
            "{}",
            target.name
        );
    }
}
