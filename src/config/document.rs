//! Generates `docs/configuration.md` and the sample settings file `packaging/vivavoce.yaml` from the declarations of the
//! settings; tests compare what is committed with them.

use std::fmt::Write;

use super::TABLE;

/// Characters of a line in the sample settings file.
const SAMPLE_WIDTH: usize = 100;

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

/// The sample settings file: every setting with its meaning and default, each of them commented out.
pub fn sample() -> String {
    let mut text = String::from(
        "# Settings of Vivavoce. Every setting that there is, with its default; remove the # before a key to change it.\n\
         # Where nothing follows the colon, the setting is absent by default.\n\
         #\n\
         # The environment wins over this file, and `--set key=value` over both. `vivavoce check` finds mistakes,\n\
         # `vivavoce print-config` shows each value and where it comes from. On SIGHUP a running server reads this file\n\
         # again: settings with \"reloaded\" take effect, others wait for a restart.\n\
         #\n\
         # Generated from the declarations in `src/config/settings.rs`.\n",
    );
    let mut group = "";
    for setting in TABLE {
        let begins = setting.key.split('.').next().unwrap_or_default();
        if begins != group {
            group = begins;
            let rule = "-".repeat(SAMPLE_WIDTH - 5 - group.len());
            let _ = writeln!(text, "\n# -- {group} {rule}");
        }
        let secret = if setting.secret { ", secret" } else { "" };
        let reloaded = if setting.is_reloaded() {
            ", reloaded"
        } else {
            ""
        };
        text.push('\n');
        comment(&mut text, setting.meaning.trim());
        comment(
            &mut text,
            &format!("({}; {}{secret}{reloaded})", setting.env, setting.shape),
        );
        let space = if setting.default.is_empty() { "" } else { " " };
        let _ = writeln!(
            text,
            "#{}:{space}{}",
            setting.key,
            yaml_scalar(setting.default)
        );
    }
    text
}

/// Adds a paragraph as lines that begin with `# `, broken between words.
fn comment(text: &mut String, paragraph: &str) {
    let mut width = 0;
    for word in paragraph.split_whitespace() {
        let length = word.chars().count();
        if width > 0 && width + 1 + length <= SAMPLE_WIDTH {
            text.push(' ');
            width += 1 + length;
        } else {
            text.push_str(if width > 0 { "\n# " } else { "# " });
            width = 2 + length;
        }
        text.push_str(word);
    }
    text.push('\n');
}

/// A text as YAML, in quotes where it could be taken for anything else than a plain scalar.
fn yaml_scalar(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    if text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
    }
}

#[cfg(test)]
mod tests {
    use crate::TABLE;

    #[test]
    fn the_sample_settings_file_says_what_the_code_does() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/vivavoce.yaml");
        let rendered = super::sample();
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(file, &rendered).unwrap();
        }
        let committed = std::fs::read_to_string(file).unwrap();
        assert!(
            committed == rendered,
            "packaging/vivavoce.yaml is stale; run UPDATE_DOCS=1 cargo test sample_settings_file"
        );
    }

    #[test]
    fn every_line_of_the_sample_settings_file_can_be_switched_on() {
        // Comments begin with `# `, keys with `#` alone.
        let switched_on: String = super::sample()
            .lines()
            .filter_map(|line| line.strip_prefix('#'))
            .filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()))
            .flat_map(|line| [line, "\n"])
            .collect();
        let values = crate::yaml::parse(std::path::Path::new("vivavoce.yaml"), &switched_on);
        let values = values.unwrap();
        let read: Vec<_> = values
            .iter()
            .map(|value| (value.key.as_str(), value.text.as_str()))
            .collect();
        let declared: Vec<_> = TABLE
            .iter()
            .map(|setting| (setting.key, setting.default))
            .collect();
        assert_eq!(read, declared);
    }

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
