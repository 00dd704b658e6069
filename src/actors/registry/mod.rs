//! Registries: one actor per kind of resource that the whole server shares.

pub mod calls;
pub mod hooks;
pub mod resumes;
pub mod rooms;
pub mod sessions;
pub mod voices;
