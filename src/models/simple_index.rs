//! A page of a package index, in either of its two forms: HTML (PEP 503) or JSON (PEP 691). Only the address of one file
//! is looked for; everything else on the page is somebody else's.

use reqwest::Url;
use serde::Deserialize;

/// The forms that are understood, JSON first.
pub(crate) const ACCEPT: &str = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1";
/// The longest page that is read. That of a project with a thousand releases has a few MiB.
pub(crate) const MAX_PAGE_BYTES: u64 = 32 << 20;

/// A file that a page lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Link {
    /// Its address.
    pub url: Url,
    /// Its SHA-256, where the page says it.
    pub sha256: Option<String>,
}

#[derive(Deserialize)]
struct Page {
    files: Vec<File>,
}

#[derive(Deserialize)]
struct File {
    filename: String,
    url: String,
    #[serde(default)]
    hashes: Hashes,
}

#[derive(Deserialize, Default)]
struct Hashes {
    sha256: Option<String>,
}

/// The file called `file` on the page that was read from `base`.
pub(crate) fn link(page: &[u8], is_json: bool, base: &Url, file: &str) -> Option<Link> {
    if is_json {
        let page: Page = serde_json::from_slice(page).ok()?;
        let found = page.files.into_iter().find(|one| one.filename == file)?;
        let url = base.join(&found.url).ok()?;
        let sha256 = found.hashes.sha256.map(|hash| hash.to_ascii_lowercase());
        return Some(Link { url, sha256 });
    }
    let page = String::from_utf8_lossy(page);
    let mut links = hrefs(&page).filter_map(|href| base.join(&unescaped(href)).ok());
    let url = links.find(|url| {
        let name = url.path_segments().and_then(|mut path| path.next_back());
        name.is_some_and(|name| name == file || name.replace("%2B", "+") == file)
    })?;
    let hash = url.fragment().and_then(|text| text.strip_prefix("sha256="));
    let sha256 = hash.map(str::to_ascii_lowercase);
    let mut url = url;
    url.set_fragment(None);
    Some(Link { url, sha256 })
}

/// The values of `href` of all anchors.
fn hrefs(page: &str) -> impl Iterator<Item = &str> {
    let anchors = page.split('<').filter_map(|tag| {
        let (name, attributes) = tag.split_once(|char: char| char.is_ascii_whitespace())?;
        name.eq_ignore_ascii_case("a").then_some(attributes)
    });
    anchors.filter_map(|attributes| {
        let lower = attributes.to_ascii_lowercase();
        let (at, _) = lower.match_indices("href").find(|(at, _)| {
            let before = lower.get(..*at).and_then(|text| text.chars().next_back());
            let after = lower.get(at + 4..).unwrap_or_default().trim_start();
            before.is_none_or(|char| char.is_ascii_whitespace()) && after.starts_with('=')
        })?;
        let value = attributes.get(at..)?.split_once('=')?.1.trim_start();
        match value.chars().next()? {
            quote @ ('"' | '\'') => value.get(1..)?.split(quote).next(),
            _ => value
                .split(|char: char| char.is_ascii_whitespace() || char == '>')
                .next(),
        }
    })
}

/// The few references that addresses are written with.
fn unescaped(text: &str) -> String {
    text.replace("&#43;", "+")
        .replace("&#x2B;", "+")
        .replace("&quot;", "\"")
        .replace("&amp;", "&")
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHEEL: &str = "a_b-1.0+x-py3-none-any.whl";

    fn base() -> Url {
        "https://index.example/simple/a-b/".parse().unwrap()
    }

    #[test]
    fn a_file_is_found_in_html_and_in_json() {
        let html = r#"<!DOCTYPE html><html><body><h1>Links</h1>
            <a class=x href="../../files/a_b-0.9-py3-none-any.whl">a_b-0.9-py3-none-any.whl</a>
            <A data-href="no" HREF = '../../files/a_b-1.0%2Bx-py3-none-any.whl?a=1&amp;b=2#sha256=ABCD'>a_b</A>
            </body></html>"#;
        let json = r#"{"meta": {"api-version": "1.1"}, "name": "a-b", "files": [{"filename": "a_b-1.0+x-py3-none-any.whl",
            "url": "/files/a_b-1.0%2Bx-py3-none-any.whl?a=1&b=2", "hashes": {"sha256": "abcd"}, "yanked": false}]}"#;
        for (page, is_json) in [(html, false), (json, true)] {
            let link = link(page.as_bytes(), is_json, &base(), WHEEL).unwrap();
            let url = "https://index.example/files/a_b-1.0%2Bx-py3-none-any.whl?a=1&b=2";
            assert_eq!(link.url.as_str(), url);
            assert_eq!(link.sha256.as_deref(), Some("abcd"));
        }
    }

    #[test]
    fn a_page_without_the_file_has_no_link() {
        for (page, is_json) in [
            ("", false),
            ("", true),
            ("<a href=", false),
            ("<a href=>x</a>", false),
            ("<a href='x.whl'>a_b-1.0+x-py3-none-any.whl</a>", false),
            ("{\"files\": []}", true),
            ("<html>not JSON</html>", true),
        ] {
            assert_eq!(
                link(page.as_bytes(), is_json, &base(), WHEEL),
                None,
                "{page}"
            );
        }
    }
}
