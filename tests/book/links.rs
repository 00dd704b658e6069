//! The book holds together: every page is in its summary, every link and anchor leads somewhere, and mdBook builds it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::run::text_of;
use super::{all_pages, assert_none, called, pages_of_the_book};
use crate::examples::{in_repository, installed};
use crate::harness::*;

/// A page without its fenced blocks and the code in its lines.
pub fn prose(page: &str) -> String {
    let mut text = String::new();
    let mut fenced = false;
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            let outside = line.split('`').step_by(2);
            text.extend(outside.flat_map(|part| [part, " "]));
            text.push('\n');
        }
    }
    text
}

/// Where a page's links and images lead.
fn links(page: &str) -> Vec<String> {
    let text = prose(page);
    let parts = text.split("](").skip(1);
    let targets = parts.filter_map(|part| part.split([')', ' ']).next());
    targets.map(str::to_owned).collect()
}

/// The anchors of a page's headings, as GitHub and mdBook make them.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    let mut fenced = false;
    for line in page.lines() {
        fenced ^= line.trim_start().starts_with("```");
        let heading = line.trim_start_matches('#');
        if fenced || heading == line || !heading.starts_with(' ') {
            continue;
        }
        let heading = heading.trim().to_lowercase();
        let letters = heading
            .chars()
            .filter(|c| c.is_alphanumeric() || "-_ ".contains(*c));
        let slug: String = letters.map(|c| if c == ' ' { '-' } else { c }).collect();
        let mut unique = slug.clone();
        for number in 1.. {
            if anchors.insert(unique) {
                break;
            }
            unique = format!("{slug}-{number}");
        }
    }
    anchors
}

fn is_elsewhere(link: &str) -> bool {
    link.contains("://") || link.starts_with("mailto:")
}

#[test]
fn every_page_is_in_the_summary_once() {
    let summary = text_of(&in_repository("docs/SUMMARY.md"));
    let mut listed: Vec<String> = links(&summary);
    listed.sort();
    let mut pages: Vec<String> = pages_of_the_book()
        .iter()
        .map(|page| called(page).trim_start_matches("docs/").to_owned())
        .filter(|page| page != "SUMMARY.md")
        .collect();
    pages.sort();
    assert_eq!(listed, pages);
}

#[test]
fn every_link_of_every_page_leads_somewhere() {
    let mut problems = BTreeMap::new();
    for page in all_pages() {
        let text = text_of(&page);
        for link in links(&text).iter().filter(|link| !is_elsewhere(link)) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() {
                page.clone()
            } else {
                page.parent().unwrap().join(file)
            };
            let problem = if !target.exists() {
                Some("there is no such file")
            } else if !anchor.is_empty() && !anchors(&text_of(&target)).contains(anchor) {
                Some("there is no such heading")
            } else {
                None
            };
            if let Some(problem) = problem {
                problems.insert(format!("{} {link}", called(&page)), problem.to_owned());
            }
        }
    }
    assert_none(&problems);
}

/// The columns of the page of fields are the vendors that there are.
#[test]
fn every_vendor_has_a_page_and_the_protocol_stands_by_itself() {
    let fields = text_of(&in_repository("docs/providers.md"));
    let header = fields.lines().find(|line| line.starts_with("| field |"));
    let vendors: Vec<&str> = header.unwrap().split('|').skip(2).map(str::trim).collect();
    assert!(vendors.len() > 6, "{vendors:?}");
    for vendor in vendors.iter().filter(|vendor| !vendor.is_empty()) {
        let page = text_of(&in_repository(&format!("docs/vendors/{vendor}.md")));
        for part in [
            "**models**",
            "**languages**",
            "**limits**",
            "**price",
            "ey of a caller",
        ] {
            let local = *vendor == "local" && part == "ey of a caller";
            assert!(
                local || page.contains(part),
                "{vendor} says nothing of {part}"
            );
        }
    }
    let protocol = text_of(&in_repository("docs/protocol.md"));
    // Only the last section compares the protocol with what it was made from.
    let (rules, _departures) = protocol.split_once("\n## 8. Departures").unwrap();
    for word in ["specified", "the specification"] {
        assert!(!rules.contains(word), "{word}");
    }
}

/// As people read it: links that lead out of the book lead to the repository, all others to a page that is there.
#[test]
fn mdbook_builds_the_book_and_every_link_in_it_leads_somewhere() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(installed(".clients/mdbook/bin/mdbook"))
        .args(["build", "--dest-dir"])
        .arg(folder.path())
        .current_dir(in_repository(""))
        .output()
        .unwrap();
    let said = stdout(&output) + &stderr(&output);
    assert!(output.status.success() && !said.contains("WARN"), "{said}");
    let mut pages: Vec<PathBuf> = Vec::new();
    let mut folders = vec![folder.path().to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path
                .extension()
                .is_some_and(|extension| extension == "html")
            {
                pages.push(path);
            }
        }
    }
    assert!(pages.len() > 50, "{}", pages.len());
    let mut problems = BTreeMap::new();
    for page in &pages {
        // All pages in one, and one for addresses that are not there.
        if ["print.html", "404.html"].contains(&page.file_name().unwrap().to_str().unwrap()) {
            continue;
        }
        let text = text_of(page);
        let main = text.split("<main>").nth(1).unwrap_or_default();
        let main = main.split("</main>").next().unwrap_or_default();
        for link in main
            .split("href=\"")
            .skip(1)
            .filter_map(|part| part.split('"').next())
        {
            if is_elsewhere(link) {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() {
                page.clone()
            } else {
                page.parent().unwrap().join(file)
            };
            if !leads_somewhere(&target, anchor) {
                let page = page.strip_prefix(folder.path()).unwrap().display();
                problems.insert(format!("{page} {link}"), "leads nowhere".to_owned());
            }
        }
    }
    assert_none(&problems);
}

fn leads_somewhere(target: &Path, anchor: &str) -> bool {
    target.exists() && (anchor.is_empty() || text_of(target).contains(&format!("id=\"{anchor}\"")))
}

#[test]
fn links_and_anchors_are_found() {
    let page = "# A page, of *mine*\n[x](a.md#b) `[no](c)` ![y](d.png)\n```sh\n# none\n[no](e)\n```\n## `GET /x` and more\n## A\n## A\n";
    assert_eq!(links(page), ["a.md#b", "d.png"]);
    let expected = ["a", "a-1", "a-page-of-mine", "get-x-and-more"];
    assert_eq!(anchors(page), expected.map(str::to_owned).into());
}
