//! Generates `docs/configuration.md` from the declarations of the settings; a test compares the two.

use std::fmt::Write;

use super::TABLE;

/// The whole document.
pub fn render() -> String {
    let mut text = String::from(
        "# Settings\n\n\
         Generated from the declarations in `src/config/settings.rs`; a test fails when this page differs from them.\n\n\
         Flags (`--set key=value`) win over the environment, the environment over the YAML file (`--config FILE`, else\n\
         `vivavoce.yaml` in the current folder), the file over the default. An empty value says nothing. `vivavoce check`\n\
         reports every mistake; `vivavoce print-config` shows each value and where it comes from.\n\n\
         SIGHUP has a running server read the file again: settings with ↻ take effect, all or none, for what begins then,\n\
         and each change has a line in the log; changes of others are named there and wait for a restart. The environment of\n\
         a process does not change.\n\n\
         | key | environment | default | value | meaning |\n|---|---|---|---|---|\n",
    );
    for setting in TABLE {
        let default = if setting.default.is_empty() {
            "–".to_owned()
        } else {
            format!("`{}`", setting.default)
        };
        let secret = if setting.secret { ", secret" } else { "" };
        let reloaded = if setting.is_reloaded() { " ↻" } else { "" };
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "| `{}`{reloaded} | `{}` | {default} | {}{secret} | {} |",
            setting.key,
            setting.env,
            setting.shape,
            setting.meaning.trim(),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_settings_page_says_what_the_code_does() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
        let rendered = super::render();
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(file, &rendered).unwrap();
        }
        let committed = std::fs::read_to_string(file).unwrap();
        assert!(
            committed == rendered,
            "docs/configuration.md is stale; run UPDATE_DOCS=1 cargo test settings_page"
        );
    }
}
