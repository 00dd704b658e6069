//! Vivavoce, a real-time voice server: it hears (speech to text), says (text to speech), joins rooms and telephone
//! calls, and records what was said. `docs/architecture.md` is the plan of the house; each folder below is one room.

pub mod audio;
pub mod process;
pub mod providers;
