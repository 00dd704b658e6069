//! Runs a seeded sample of every target, and checks that `fuzz/` has a file and the seeds of each.

use std::collections::BTreeMap;
use std::path::Path;

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
fn the_sample_of_a_given_session_is_one() {
    for sample in super::given_sessions() {
        assert!(crate::actors::session::fuzz_given(
            std::str::from_utf8(&sample).unwrap()
        ));
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
            text.contains(&format!(
                "| vivavoce_fuzz::fuzzing::run(\"{}\", input)",
                target.name
            )),
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

/// The files of a folder by their names; empty where there is none.
fn files_in(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = std::fs::read_dir(folder).into_iter().flatten();
    files
        .map(|file| {
            let file = file.unwrap();
            let name = file.file_name().into_string().unwrap();
            (name, std::fs::read(file.path()).unwrap())
        })
        .collect()
}

/// libFuzzer begins with files. `UPDATE_DOCS=1 cargo test --lib seeds` writes them.
#[test]
fn the_seeds_of_every_target_are_its_samples() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds");
    for target in targets() {
        let folder = seeds.join(target.name);
        let samples: BTreeMap<String, Vec<u8>> = (target.samples)()
            .into_iter()
            .enumerate()
            .map(|(number, sample)| (number.to_string(), sample))
            .collect();
        if std::env::var_os("UPDATE_DOCS").is_some() {
            let _ = std::fs::remove_dir_all(&folder);
            std::fs::create_dir_all(&folder).unwrap();
            for (name, sample) in &samples {
                std::fs::write(folder.join(name), sample).unwrap();
            }
        }
        let committed = files_in(&folder);
        assert!(committed == samples, "{}: UPDATE_DOCS=1", target.name);
    }
}
