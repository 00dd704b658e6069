//! Every setting, path, command, metric and file that a page names exists.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::fences::{Block, blocks};
use super::run::text_of;
use super::{all_pages, assert_none, called};
use crate::examples::in_repository;
use crate::harness::*;

/// Variables of others that pages name, and parts of names of ours.
const OTHERS: &str = "tests/book/others.txt";
/// Folders of the repository: a path that begins with one of them is a file.
const FOLDERS: [&str; 11] = [
    "benches",
    "clients",
    "console",
    "docs",
    "examples",
    "fuzz",
    "operations",
    "packaging",
    "plugins",
    "scripts",
    "src",
];

/// What there is.
struct Known {
    /// Names of environment variables.
    variables: BTreeSet<String>,
    /// Keys of the settings file.
    keys: BTreeSet<String>,
    sections: BTreeSet<String>,
    paths: BTreeSet<String>,
    metrics: BTreeSet<String>,
    /// Help texts by the words of a command.
    help: BTreeMap<String, String>,
}

impl Known {
    fn new() -> Self {
        let mut variables = BTreeSet::new();
        let mut keys = BTreeSet::new();
        for line in text_of(&in_repository("docs/configuration.md")).lines() {
            let mut cells = line
                .split('|')
                .skip(1)
                .map(|cell| cell.trim().trim_end_matches('↻').trim().trim_matches('`'));
            if let (Some(key), Some(variable)) = (cells.next(), cells.next())
                && key.contains(['.', '_'])
            {
                keys.insert(key.to_owned());
                variables.insert(variable.to_owned());
            }
        }
        assert!(keys.len() > 150, "{}", keys.len());
        let sections = keys
            .iter()
            .filter_map(|key| Some(key.split_once('.')?.0.to_owned()))
            .collect();
        let others = text_of(&in_repository(OTHERS));
        let (attributes, names) = others
            .lines()
            .partition::<Vec<_>, _>(|name| name.contains('.'));
        keys.extend(attributes.into_iter().map(str::to_owned));
        variables.extend(names.into_iter().map(str::to_owned));
        let api: Value =
            serde_json::from_str(&text_of(&in_repository("docs/openapi.json"))).unwrap();
        let codes = api["components"]["schemas"]["Code"]["oneOf"]
            .as_array()
            .unwrap();
        variables.extend(
            codes
                .iter()
                .filter_map(|code| Some(code["const"].as_str()?.to_owned())),
        );
        let mut paths: BTreeSet<String> =
            api["paths"].as_object().unwrap().keys().cloned().collect();
        // The page of all ways in is made from the code.
        let ways_in = text_of(&in_repository("docs/threat-model.md"));
        paths.extend(
            ways_in
                .split('`')
                .filter_map(|code| path_in(code).map(str::to_owned)),
        );
        let socket: Value =
            serde_json::from_str(&text_of(&in_repository("docs/schemas/socket.json"))).unwrap();
        for (part, object) in [("rtc", "RtcConfig"), ("agent", "AgentConfig")] {
            let fields = socket["$defs"][object]["properties"].as_object().unwrap();
            keys.extend(fields.keys().map(|field| format!("{part}.{field}")));
        }
        keys.extend(api["webhooks"].as_object().unwrap().keys().cloned());
        Self {
            variables,
            keys,
            sections,
            paths,
            metrics: super::reference::metrics().into_keys().collect(),
            help: BTreeMap::new(),
        }
    }

    /// Why a piece of code names what there is not.
    fn misnamed(&mut self, code: &str) -> Option<String> {
        let name = code.split(['=', ':']).next().unwrap_or_default().trim();
        if is_variable(name) {
            let known = self.variables.contains(name)
                || self
                    .variables
                    .iter()
                    .any(|known| name.ends_with('_') && known.starts_with(name));
            return (!known).then(|| format!("no setting or code is called `{name}`"));
        }
        if let Some(path) = path_in(code) {
            return (!self.has_path(path)).then(|| format!("there is no path `{path}`"));
        }
        if let Some(metric) = code.strip_prefix("vivavoce_").map(|_| code) {
            let metric = metric.split(['{', ' ', '(']).next().unwrap_or_default();
            if metric
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
            {
                let known = self.metrics.iter().any(|known| {
                    let rest = metric.strip_prefix(known.as_str());
                    rest.is_some_and(|rest| {
                        ["", "_total", "_bucket", "_sum", "_count", "_info"].contains(&rest)
                    }) || metric.ends_with('_') && known.starts_with(metric)
                });
                return (!known).then(|| format!("no metric is called `{metric}`"));
            }
        }
        if let Some(command) = code.strip_prefix("vivavoce ") {
            return self.miscommanded(command);
        }
        if let Some((folder, _)) = code.split_once('/')
            && FOLDERS.contains(&folder)
            && !code.contains(['*', '<', '{', '…', ' '])
        {
            let exists = in_repository(code.split('#').next().unwrap_or_default()).exists();
            return (!exists).then(|| format!("there is no file `{code}`"));
        }
        if let Some((section, rest)) = name.split_once('.')
            && self.sections.contains(section)
            && !rest.is_empty()
            && rest
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "._".contains(c))
            && !self.variables.contains(name)
            && ![".py", ".ts", ".md", ".json"]
                .iter()
                .any(|ending| name.ends_with(ending))
        {
            let known = self.keys.contains(name)
                || self
                    .keys
                    .iter()
                    .any(|key| key.starts_with(&format!("{name}.")));
            let ends =
                name.ends_with(['.', '_']) && self.keys.iter().any(|key| key.starts_with(name));
            return (!known && !ends).then(|| format!("no setting is called `{name}`"));
        }
        None
    }

    fn has_path(&self, path: &str) -> bool {
        let path = path
            .split(['?', '#'])
            .next()
            .unwrap_or_default()
            .trim_end_matches('…');
        let wanted: Vec<&str> = path.split('/').collect();
        let fits = |known: &String| {
            let known: Vec<&str> = known.split('/').collect();
            let same = |(known, wanted): (&&str, &&str)| {
                known == wanted
                    || known.starts_with('{')
                    || wanted.starts_with(['{', '<'])
                    || wanted.is_empty()
            };
            known.len() >= wanted.len()
                && known.iter().zip(&wanted).all(same)
                && (known.len() == wanted.len() || path.ends_with('/'))
        };
        self.paths.iter().any(fits)
    }

    /// Why a command line is none of ours.
    fn miscommanded(&mut self, line: &str) -> Option<String> {
        let mut command = String::new();
        let mut help = self.help_of("");
        let mut words = line.split_whitespace();
        while let Some(word) = words.next() {
            // Flags that stand before a command, with their values.
            if ["-c", "-s"].contains(&word) {
                words.next();
                continue;
            }
            if ["|", ">", "&&", "&", "#", ";"].contains(&word) || word.starts_with(['#', '>', '|'])
            {
                break;
            }
            if let Some(flag) = word.strip_prefix("--") {
                let flag = flag.split(['=', '"', '\'']).next().unwrap_or_default();
                if !help.contains(&format!("--{flag}")) && flag != "help" && flag != "version" {
                    return Some(format!("`vivavoce {command}` has no flag --{flag}"));
                }
            } else if help.contains("\nCommands:\n")
                && word.chars().all(|c| c.is_ascii_lowercase() || c == '-')
            {
                let listed = format!("\n  {word} ");
                let below = format!("{command} {word}");
                let hidden = || {
                    vivavoce(below.split_whitespace().chain(["--help"]))
                        .status
                        .success()
                };
                if !help.contains(&listed) && !help.contains(&format!("\n  {word}\n")) && !hidden()
                {
                    return Some(format!("`vivavoce {command}` has no command {word}"));
                }
                below.trim().clone_into(&mut command);
                help = self.help_of(&command);
            }
        }
        None
    }

    fn help_of(&mut self, command: &str) -> String {
        let ask = || stdout(&vivavoce(command.split_whitespace().chain(["--help"])));
        self.help
            .entry(command.to_owned())
            .or_insert_with(ask)
            .clone()
    }
}

/// Whether a text is the name of an environment variable, or a code in capitals.
fn is_variable(text: &str) -> bool {
    text.contains('_')
        && text.starts_with(|c: char| c.is_ascii_uppercase())
        && text
            .chars()
            .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}

/// The path in `GET /path`, `/path`.
fn path_in(code: &str) -> Option<&str> {
    let methods = ["GET ", "HEAD ", "POST ", "PUT ", "PATCH ", "DELETE "];
    let path = methods
        .iter()
        .find_map(|method| code.strip_prefix(method))?;
    let path = path.split_whitespace().next()?;
    path.starts_with('/').then_some(path)
}

/// The pieces of code of a page: in its lines, and the commands and assignments of its blocks.
fn pieces(page: &str, blocks: &[Block]) -> Vec<String> {
    let mut pieces = Vec::new();
    let mut fenced = false;
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            pieces.extend(line.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    for block in blocks
        .iter()
        .filter(|block| ["sh", "ini"].contains(&block.language.as_str()))
    {
        let joined = block.text.replace("\\\n", " ");
        let foreign = ["podman", "docker", "helm"]
            .iter()
            .any(|tool| joined.trim_start().starts_with(tool));
        for line in joined.lines() {
            if foreign {
                continue;
            }
            for word in line.split_whitespace() {
                if let Some((name, _)) = word.split_once('=')
                    && is_variable(name)
                {
                    pieces.push(name.to_owned());
                }
            }
            let command = line.split_once("vivavoce ");
            let command = command.filter(|(before, _)| {
                before.is_empty() || before.ends_with(' ') || before.ends_with("release/")
            });
            if let Some((before, command)) = command
                && block.language == "sh"
                && !before.trim_start().starts_with('#')
                && !before.contains(['"', '{'])
                && [
                    "install",
                    "upgrade",
                    "systemctl",
                    "chown",
                    "docker",
                    "apt",
                    "kubectl",
                ]
                .iter()
                .all(|word| !before.contains(word))
            {
                pieces.push(format!("vivavoce {command}"));
            }
        }
    }
    pieces
}

#[test]
fn every_setting_path_command_metric_and_file_that_a_page_names_exists() {
    let mut known = Known::new();
    let mut problems: BTreeMap<String, String> = BTreeMap::new();
    for page in all_pages() {
        let text = text_of(&page);
        let blocks = blocks(&text).unwrap_or_default();
        for piece in pieces(&text, &blocks) {
            if let Some(problem) = known.misnamed(&piece) {
                problems.insert(format!("{} `{piece}`", called(&page)), problem);
            }
        }
    }
    assert_none(&problems);
}

#[test]
fn what_there_is_not_is_found() {
    let mut known = Known::new();
    for piece in [
        "SERVER_HOST=0.0.0.0",
        "server.hosts",
        "GET /record/{stream_id}",
        "vivavoce recordings lost",
        "vivavoce serve --drain",
        "vivavoce_session",
        "src/config/setting.rs",
    ] {
        assert!(known.misnamed(piece).is_some(), "{piece}");
    }
    for piece in [
        "HOST",
        "AUTH_API_SECRET=…",
        "server.port",
        "recording.s3_",
        "GET /recording/{stream_id}",
        "GET /recording/my-call",
        "vivavoce recordings list",
        "vivavoce models fetch whisper-base",
        "vivavoce_sessions",
        "INVALID_REQUEST",
        "src/config/settings.rs",
    ] {
        assert_eq!(known.misnamed(piece), None, "{piece}");
    }
}
