//! The tables of `docs/carriers.md`, generated from what the carriers say of themselves.

use std::fmt::Write;

use super::{Becomes, CARRIERS};

const BEGIN: &str = "<!-- carriers -->\n";

/// The page with the part generated from the code.
pub fn page(text: &str) -> Option<String> {
    let (before, _) = text.split_once(BEGIN)?;
    let mut page = format!("{before}{BEGIN}");
    for carrier in CARRIERS {
        // Writing to a text does not fail.
        let _ = write!(
            page,
            "\n## {} (`{}`)\n\n{}\n\n| part | | |\n|---|---|---|\n",
            carrier.name(),
            carrier.kind(),
            carrier.setup()
        );
        for row in carrier.rows() {
            let becomes = match row.1 {
                Becomes::Honoured => "honoured",
                Becomes::Ignored => "ignored",
                Becomes::Refused => "refused",
            };
            let _ = writeln!(page, "| {} | {becomes} | {} |", row.0, row.2);
        }
    }
    Some(page)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_page_describes_the_carriers() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/carriers.md");
        let written = std::fs::read_to_string(&path).unwrap();
        let page = page(&written).unwrap();
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, &page).unwrap();
        } else {
            let advice = "is stale; run UPDATE_DOCS=1 cargo test -p vivavoce-carriers describes";
            assert!(written == page, "docs/carriers.md {advice}");
        }
    }
}
