//! Generates the table of crates in `docs/architecture.md` from the manifests. Cargo itself rejects cyclic
//! dependencies; this test keeps the page up to date.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;

/// The markers around the table in the page.
const BEGIN: &str = "<!-- crates -->\n";
const END: &str = "<!-- /crates -->\n";
const HEAD: &str = "| level | crate | folder | knows |\n|---|---|---|---|\n";
const PREFIX: &str = "vivavoce-";

/// A crate, according to the manifests.
struct Crate {
    folder: String,
    knows: Vec<String>,
}

fn crates() -> BTreeMap<String, Crate> {
    let root = env!("CARGO_MANIFEST_DIR");
    let said = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--no-deps",
            "--offline",
            "--format-version",
            "1",
        ])
        .current_dir(root)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&said.stderr);
    assert!(said.status.success(), "{error}");
    let said: Value = serde_json::from_slice(&said.stdout).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let packages = said["packages"].as_array().unwrap().iter();
    packages
        .map(|package| {
            let manifest = text(&package["manifest_path"]);
            let folder = manifest.trim_end_matches("Cargo.toml").trim_matches('/');
            let folder = folder.strip_prefix(root.trim_matches('/')).unwrap();
            let knows = package["dependencies"].as_array().unwrap().iter();
            let knows = knows
                .filter(|dependency| dependency["kind"].is_null())
                .map(|dependency| text(&dependency["name"]))
                .filter(|name| name.starts_with(PREFIX));
            let known = Crate {
                folder: folder.trim_matches('/').to_owned(),
                knows: knows.collect(),
            };
            (text(&package["name"]), known)
        })
        .collect()
}

/// One more than the highest level of the crates it depends on.
fn level(name: &str, crates: &BTreeMap<String, Crate>) -> usize {
    let known = crates[name].knows.iter();
    known.map(|name| level(name, crates) + 1).max().unwrap_or(0)
}

fn short(name: &str) -> &str {
    name.strip_prefix(PREFIX).unwrap_or(name)
}

/// The page with the table generated from the manifests.
fn page(text: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    let crates = crates();
    let mut rows: Vec<(usize, String)> = crates
        .iter()
        .map(|(name, known)| {
            let level = level(name, &crates);
            let is_root = known.folder.is_empty();
            let folder = if is_root { "src" } else { &known.folder };
            let knows: Vec<_> = known.knows.iter().map(|name| short(name)).collect();
            let knows = if is_root {
                "all of them".to_owned()
            } else {
                knows.join(", ")
            };
            let row = format!("| {level} | {} | `{folder}` | {knows} |", short(name));
            (level, row)
        })
        .collect();
    rows.sort();
    let rows: Vec<_> = rows.into_iter().map(|(_, row)| row).collect();
    let rows = rows.join("\n");
    Some(format!("{before}{BEGIN}\n{HEAD}{rows}\n\n{END}{after}"))
}

#[test]
fn the_page_of_crates_is_what_the_manifests_say() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/architecture.md");
    let text = std::fs::read_to_string(file).unwrap();
    let rendered = page(&text).expect("the page has a place for the table");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(file, rendered).unwrap();
        return;
    }
    assert!(
        text == rendered,
        "docs/architecture.md is stale; run UPDATE_DOCS=1 cargo test --lib page_of_crates"
    );
}
