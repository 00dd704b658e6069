//! Size limits of SIP messages, checked before a message is parsed. Those of phones and gateways have one to four
//! kilobytes; a far larger one is meant to cost time.

/// The largest message, in bytes.
pub const LARGEST: usize = 48 << 10;
/// The largest head, including its empty line.
pub const LARGEST_HEAD: usize = 16 << 10;
/// The largest message from an address that may not call, but may be in a call.
const LARGEST_OF_STRANGERS: usize = 8 << 10;
/// The most header lines.
const MOST_LINES: usize = 128;
/// The longest line: an identity token (RFC 8224) has two kilobytes.
const LONGEST_LINE: usize = 8 << 10;

/// The end of the head, including its empty line. Bytes before `searched` were searched already.
pub fn head_end(message: &[u8], searched: usize) -> Option<usize> {
    let from = searched.saturating_sub(3);
    let rest = message.get(from..)?;
    let place = rest.windows(4).position(|window| window == b"\r\n\r\n")?;
    Some(from + place + 4)
}

/// Whether a message is within the limits.
pub fn fits(message: &[u8], stranger: bool) -> bool {
    let largest = if stranger {
        LARGEST_OF_STRANGERS
    } else {
        LARGEST
    };
    if message.len() > largest {
        return false;
    }
    let head = message.get(..LARGEST_HEAD).unwrap_or(message);
    let Some(end) = head_end(head, 0) else {
        return false;
    };
    let head = head.get(..end).unwrap_or_default();
    let mut lines = head.split(|byte| *byte == b'\n');
    let count = lines
        .by_ref()
        .take(MOST_LINES + 1)
        .try_fold(0, |count, line| {
            (line.len() <= LONGEST_LINE).then_some(count + 1)
        });
    count.is_some_and(|count| count <= MOST_LINES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(headers: &str, body: usize) -> Vec<u8> {
        let mut text = format!("OPTIONS sip:a SIP/2.0\r\n{headers}\r\n").into_bytes();
        text.resize(text.len() + body, b'x');
        text
    }

    #[test]
    fn what_telephones_send_is_read_and_what_is_far_larger_is_not() {
        let line = |bytes: usize| format!("X: {}\r\n", "x".repeat(bytes));
        for (headers, body, known, stranger) in [
            (String::new(), 0, true, true),
            (line(2_000).repeat(3), 1_000, true, true),
            (line(2_000).repeat(3), 20_000, true, false),
            (line(10).repeat(120), 0, true, true),
            (line(10).repeat(128), 0, false, false),
            (line(9_000), 0, false, false),
            (line(2_000).repeat(9), 0, false, false),
            (String::new(), 48 << 10, false, false),
        ] {
            let text = message(&headers, body);
            assert_eq!(fits(&text, false), known, "{} {body}", headers.len());
            assert_eq!(fits(&text, true), stranger, "{} {body}", headers.len());
        }
        assert!(!fits(b"OPTIONS sip:a SIP/2.0\r\n", false), "it has no end");
        assert!(!fits(b"", false));
    }

    #[test]
    fn the_end_of_a_head_is_found_wherever_the_search_goes_on() {
        let text = message("X: y\r\n", 10);
        let end = head_end(&text, 0).unwrap();
        for searched in 0..end {
            // Nothing was found before that.
            assert_eq!(head_end(&text, searched), Some(end));
            assert_eq!(head_end(&text[..searched], 0), None);
        }
    }
}
