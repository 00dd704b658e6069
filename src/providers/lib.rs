//! The providers behind the traits of [`vivavoce_seams`]: one folder per vendor, and one line in the list of [`add_vendors`].
//! A provider declares what it accepts and delivers as data ([`Accepts`](vivavoce_seams::Accepts),
//! [`OutputFormat`](vivavoce_seams::OutputFormat)); the pipeline converts. Nothing here knows of sessions.

pub mod local;
pub mod null;
pub mod transport;

use transport::Transport;
use vivavoce_config as config;
use vivavoce_seams::ProviderTable;

/// Declares the vendors' modules, and adds each to the table.
macro_rules! vendors {
    ($($vendor:ident,)+) => {
        $(pub mod $vendor;)+

        /// Adds all vendors, with the server's own credentials where the settings have them.
        pub fn add_vendors(
            table: &mut ProviderTable,
            settings: &config::Providers,
            transport: &Transport,
        ) {
            $($vendor::add_to(table, settings, transport);)+
        }
    };
}

vendors! {
    deepgram,
    elevenlabs,
    google,
    azure,
    cartesia,
    openai,
}
