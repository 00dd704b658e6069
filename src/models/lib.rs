//! Model files of local speech. The catalogue, a file of this crate, names every file of every model with its size, its
//! SHA-256 and where to get it; [`fetch`] gets what is wanted, and a [`Store`] is the folder that holds it. What the
//! files mean is known by those who run them.
//!
//! # On disk
//!
//! A model is a folder below `models.path`, with its files and a manifest of the hashes that were verified. It appears
//! with all its files at once, by a rename; what is being fetched waits in `.NAME.partial` beside it. A folder without a
//! manifest that somebody has put there counts by the sizes of its files, until `fetch` or `verify` reads them.
//!
//! # Sources
//!
//! In this order: the mirror of the settings, the publisher's own address, then packages of a registry of Python
//! packages, which are ZIP archives: only the members that are needed are read, by ranges. The registry is the one that
//! this machine is configured for ([`vivavoce_config::pip`]). No source is trusted: nothing longer than the catalogue
//! says is read, and nothing with another hash is kept.
//!
//! - [`catalogue`]: what there is.
//! - [`store`]: what is installed.
//! - [`fetch`]: getting it; [`download`] is its HTTP.
//! - [`simple_index`], [`zip`]: parsers of what a registry sends, without I/O.

pub mod catalogue;
mod download;
pub mod fetch;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
mod simple_index;
pub mod store;
mod zip;

pub use catalogue::{Catalogue, ModelEntry, Task};
pub use fetch::{Event, FetchError, Fetcher, Origin};
pub use store::{Problem, State, Store};
