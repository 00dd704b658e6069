//! The crates whose parsers are fuzzed, under the names by which `src/fuzzing.rs` knows them: the root package links the
//! whole server, which takes an hour to build with a fuzzer's instruments.

pub use vivavoce_actors as actors;
pub use vivavoce_audio as audio;
pub use vivavoce_carriers as carriers;
pub use vivavoce_config as config;
pub use vivavoce_core::{phone, ssml};
pub use vivavoce_hooks as hooks;
pub use vivavoce_http as http;
pub use vivavoce_models as models;
pub use vivavoce_realtime as realtime;
pub use vivavoce_recordings as recordings;
pub use vivavoce_rooms as rooms;
pub use vivavoce_telephony as telephony;

#[path = "../../src/fuzzing.rs"]
pub mod fuzzing;
