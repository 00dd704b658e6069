//! The small types and functions that every other crate of Vivavoce uses. Nothing here knows a vendor, a session or the
//! settings, and nothing runs in the background.
//!
//! # What lives here
//!
//! * **Input.** [`json`] deserialises JSON from outside with errors that name the field and never repeat the value;
//!   [`phone`], [`host_name`] and [`stream_id`] parse names once, at the edge, into types that are trusted inside;
//!   [`dialect`] reads the names of other servers of the family.
//! * **Text.** [`sentences`] splits text that a language model writes token by token into pieces that can be synthesised
//!   one by one, at most 300 characters (about 20 seconds of speech) each;
//!   [`ssml`] reads documents that say how a text is spoken.
//! * **Who is counted.** [`party`] has the tenant id and the subject that quotas are counted for.
//! * **Connections to other servers.** [`tls_roots`] are the certificate authorities that are trusted beside the system's;
//!   [`egress_policy`] decides which addresses may be connected to when somebody else supplied the URL.
//! * **The server's own certificate.** [`listener_tls`] reloads it when its files change.
//! * **Rates.** [`token_bucket`] says whether another request is within its rate, [`backoff`] when to try again, and
//!   [`log_interval`] whether what happens often is logged again.
//! * **Time.** [`unix_time`] tells the clock on the wall to others.
//! * **Load.** [`busyness`] says whether a thread has the time to do well what could be done quickly, [`priority`] which threads go
//!   first.
//! * **Memory.** [`memory`] gives back to the kernel what the allocator kept of a flood.
//! * **Programs.** [`process`] runs flite, espeak-ng and lame as children with a deadline, an output limit and a sandbox.
//! * **Shared vocabulary.** [`call`] and [`provider_error`] are the types in which telephone calls and provider failures
//!   are described everywhere, [`hash`] is SHA-256 in hexadecimal.
//!
//! Everything that grows is bounded: a JSON text by the number of its values, a child by time, output, memory, files and
//! processes.
//!
//! # Example
//!
//! ```
//! use vivavoce_core::egress_policy::EgressPolicy;
//! use vivavoce_core::phone::PhoneNumber;
//! use vivavoce_core::sentences::complete_len;
//!
//! // Visual separators and a `tel:` prefix (RFC 3966) are dropped.
//! let number = PhoneNumber::parse("tel:+49 (30) 123-456").unwrap();
//! assert_eq!(number.as_str(), "+4930123456");
//!
//! // Only the first sentence is certainly complete; the second may go on.
//! assert_eq!(complete_len("It is five. Shall we"), "It is five. ".len());
//!
//! // A URL from outside may not point into the server's own network.
//! let metadata = "https://169.254.169.254/latest/meta-data".parse().unwrap();
//! assert!(EgressPolicy::default().check(&metadata).is_err());
//! ```

pub mod backoff;
pub mod busyness;
pub mod call;
pub mod causes;
pub mod dialect;
pub mod egress_policy;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
pub mod hash;
pub mod host_name;
pub mod json;
pub mod listener_tls;
pub mod log_interval;
pub mod memory;
pub mod party;
pub mod phone;
pub mod priority;
pub mod process;
pub mod provider_error;
pub mod sdp;
pub mod sentences;
pub mod ssml;
pub mod stream_id;
pub mod tls_roots;
pub mod token_bucket;
pub mod unix_time;
