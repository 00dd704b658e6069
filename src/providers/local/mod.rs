//! The engines that need no key.
use super::ProviderTable;
use crate::config::Providers;
use crate::server::Engine;
/// stub
pub const SLUG: &str = "local";
/// stub
pub fn engines(_: &Providers) -> Vec<Engine> {
    vec![]
}
/// stub
pub fn add_to(_: &mut ProviderTable, _: &Providers) -> std::io::Result<()> {
    Ok(())
}
/// stub
pub mod wyoming {
    /// stub
    pub type Address = String;
}
