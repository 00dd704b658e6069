//! Calls that take the place of others (RFC 3891): the `Replaces` header of an INVITE, and the URI with which somebody is told
//! to send one.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use rsipstack::sip::Request;

use super::header::parameter;

/// The option for `Require` and `Supported`.
pub const OPTION: &str = "replaces";
/// Characters that are escaped in a header of a URI: all but `unreserved` (RFC 3261 section 25.1).
const OUTSIDE_HEADER: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'!')
    .remove(b'~')
    .remove(b'*')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')');

/// A dialog of ours, as the other side can be told of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DialogId {
    /// Its Call-ID.
    pub call_id: String,
    /// Our tag.
    pub local_tag: String,
    /// The tag of the other side.
    pub remote_tag: String,
    /// Where the other side is reached.
    pub target: String,
}

impl DialogId {
    /// The URI for `Refer-To` that makes whoever is referred call the other side of this dialog in its place. The other side
    /// must refuse that where it knows no `Replaces`, instead of taking it for one more call. `None` where its address has
    /// headers of its own.
    pub fn replacing(&self) -> Option<String> {
        if self.target.contains(['?', '>', '<']) {
            return None;
        }
        // As the receiver sees it, its own tag is `to-tag` (RFC 3891 section 6.1).
        let Self {
            call_id,
            local_tag,
            remote_tag,
            target,
        } = self;
        let value = format!("{call_id};to-tag={remote_tag};from-tag={local_tag}");
        let value = utf8_percent_encode(&value, OUTSIDE_HEADER);
        Some(format!("{target}?Replaces={value}&Require={OPTION}"))
    }

    /// Whether an INVITE means this dialog.
    pub fn is_meant_by(&self, replaces: &Replaces) -> bool {
        self.call_id == replaces.call_id
            && self.local_tag == replaces.to_tag
            && self.remote_tag == replaces.from_tag
    }
}

/// The value of a `Replaces` header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replaces {
    /// The Call-ID of the dialog that is replaced.
    pub call_id: String,
    /// The tag of whoever receives the INVITE.
    pub to_tag: String,
    /// The tag of the other side.
    pub from_tag: String,
    /// Only a dialog that is not answered yet.
    pub early_only: bool,
}

/// The dialog in whose place a request is to be.
pub(super) fn replaced(request: &Request) -> Option<Replaces> {
    let mut headers = request.headers.iter();
    let named = headers.find(|header| header.name().eq_ignore_ascii_case("replaces"));
    Replaces::parse(named?.value())
}

impl Replaces {
    /// Parses it; `None` without both tags.
    pub fn parse(value: &str) -> Option<Self> {
        let (call_id, parameters) = value.split_once(';')?;
        let tag = |name| parameter(parameters, name).filter(|tag| !tag.is_empty());
        Some(Self {
            call_id: Some(call_id.trim()).filter(|id| !id.is_empty())?.to_owned(),
            to_tag: tag("to-tag")?.to_owned(),
            from_tag: tag("from-tag")?.to_owned(),
            early_only: parameter(parameters, "early-only").is_some(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use percent_encoding::percent_decode_str;

    #[test]
    fn what_a_refer_tells_is_what_an_invite_then_says() {
        let dialog = DialogId {
            call_id: "a84b4c76e66710@pc33.example".to_owned(),
            local_tag: "ours".to_owned(),
            remote_tag: "theirs;+".to_owned(),
            target: "sip:bob@192.0.2.4:5062;transport=tcp".to_owned(),
        };
        let uri = dialog.replacing().unwrap();
        let (target, headers) = uri.split_once('?').unwrap();
        assert_eq!(target, dialog.target);
        let (replaces, require) = headers.split_once('&').unwrap();
        assert_eq!(require, "Require=replaces");
        let value = replaces.strip_prefix("Replaces=").unwrap();
        assert!(!value.contains([';', '=', '@', '+']), "{value}");
        let value = percent_decode_str(value).decode_utf8().unwrap();
        let id = "a84b4c76e66710@pc33.example;to-tag=theirs;+;from-tag=ours";
        assert_eq!(value, id);
        // The other side's view of the same dialog.
        let read = Replaces::parse("x@y; from-tag=1 ;to-tag=2;early-only").unwrap();
        let ours = DialogId {
            call_id: "x@y".to_owned(),
            local_tag: "2".to_owned(),
            remote_tag: "1".to_owned(),
            target: String::new(),
        };
        assert!(ours.is_meant_by(&read) && read.early_only);
        let other = DialogId {
            remote_tag: "3".to_owned(),
            ..ours
        };
        assert!(!other.is_meant_by(&read));
    }

    #[test]
    fn a_header_without_both_tags_means_no_dialog() {
        for value in [
            "",
            "a",
            "a;to-tag=1",
            ";to-tag=1;from-tag=2",
            "a;to-tag=;from-tag=2",
        ] {
            assert_eq!(Replaces::parse(value), None, "{value}");
        }
        let known = DialogId {
            call_id: String::new(),
            local_tag: String::new(),
            remote_tag: String::new(),
            target: "sip:a@b?X-Y=1".to_owned(),
        };
        assert_eq!(known.replacing(), None);
    }
}
