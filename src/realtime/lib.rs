//! OpenAI's Realtime interface. Its client is given a session (`/ws`) that hears and speaks, and a language model; in between
//! is [`Realtime`], a state machine that says in the words of each side what the others have said.
//!
//! ```text
//! client ─events─> Realtime ─config, speak, clear, sound─> session (SessionActor with its children)
//!        <─events─          <─turns, transcripts, words that were heard, sound─
//!                           ─ChatRequest─> language model (vivavoce_llm)
//!                           <─text, calls─
//! ```
//!
//! Sound is sent at the pace at which it is heard, so that what was heard of an answer that is cut off is known here: the
//! history that the model is told has what the caller has heard. [`open`] runs it over a socket; `docs/openai.md` says what
//! becomes of each event, from [`events`].

pub mod events;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
mod items;
mod machine;
mod names;
mod response;
mod session;
mod socket;

pub use machine::{Begin, Output, Realtime, is_openais};
pub use names::{Named, Names};
pub use session::{Kind, Problem, SessionObject, Sound, Version};
pub use socket::{Open, RealtimeSocket, open};
