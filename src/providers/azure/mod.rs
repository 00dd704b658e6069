//! Azure AI Speech: recognition and synthesis.

use crate::config;
use crate::providers::ProviderTable;
use crate::providers::transport::Transport;

/// The slug on the wire.
pub const SLUG: &str = "azure";

/// Adds both directions.
pub fn add_to(_table: &mut ProviderTable, _settings: &config::Providers, _transport: &Transport) {}
