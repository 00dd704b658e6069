//! Generates `docs/providers.md` from the vendors' tables; a test compares the two.

use std::fmt::Write;

use crate::providers::ProviderTable;
use crate::providers::parameters::{Honoured, Parameter, STT_FIELDS, TTS_FIELDS};

/// The whole document.
fn render(providers: &ProviderTable) -> String {
    let mut text = String::from(
        "# What becomes of each field\n\n\
         Generated from the tables in `src/providers/<vendor>/`; a test fails when this page differs from them. `name` is the\n\
         vendor's own parameter; *text* is what this server does before or behind the vendor; – is ignored, and a session that\n\
         asks for it is told so once (`provider_event` `ignored`). `local` is\n\
         this machine's: of `tts_config` it takes every field by conversion.\n",
    );
    let hearing: Vec<_> = providers
        .all_speech_to_text()
        .iter()
        .map(|provider| (provider.slug(), provider.parameters()))
        .collect();
    let speaking: Vec<_> = providers
        .all_text_to_speech()
        .iter()
        .map(|provider| (provider.slug(), provider.parameters()))
        .collect();
    section(&mut text, "stt_config", STT_FIELDS, &hearing);
    section(&mut text, "tts_config", TTS_FIELDS, &speaking);
    text
}

fn section(
    text: &mut String,
    config: &str,
    fields: &[&str],
    vendors: &[(&str, &'static [Parameter])],
) {
    let vendors: Vec<_> = vendors
        .iter()
        .filter(|(_, table)| !table.is_empty())
        .collect();
    // Writing to a String cannot fail.
    let _ = write!(text, "\n## `{config}`\n\n| field |");
    for (slug, _) in &vendors {
        let _ = write!(text, " {slug} |");
    }
    let _ = write!(text, "\n|---|{}\n", "---|".repeat(vendors.len()));
    for field in fields {
        let _ = write!(text, "| `{field}` |");
        for (_, table) in &vendors {
            let row = table.iter().find(|row| row.field == *field);
            let cell = match row.map(|row| row.honoured) {
                Some(Honoured::Own(name)) => format!("`{name}`"),
                Some(Honoured::Converted(how)) => format!("*{how}*"),
                Some(Honoured::Ignored(why)) => format!("– {why}"),
                None => String::new(),
            };
            let _ = write!(text, " {} |", cell.replace('|', "\\|"));
        }
        text.push('\n');
    }
}

#[tokio::test]
async fn the_page_of_providers_says_what_the_code_does() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/providers.md");
    let config = crate::config::Config::from_sources(&[], &[].into(), None).unwrap();
    let rendered = render(&crate::server::providers(&config.settings).unwrap());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(file, &rendered).unwrap();
    }
    let committed = std::fs::read_to_string(file).unwrap_or_default();
    assert!(
        committed == rendered,
        "docs/providers.md is stale; run UPDATE_DOCS=1 cargo test --lib page_of_providers"
    );
}
