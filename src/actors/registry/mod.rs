//! Registries: one actor per kind of thing that the whole server knows of.

pub mod calls;
pub mod hooks;
pub mod rooms;
pub mod sessions;
pub mod voices;
