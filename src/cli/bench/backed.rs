//! The set-up for measuring vendors: a server in a process of its own, and behind it the vendors' emulators, in this
//! process so that faults can be injected and records read between rounds.

use std::path::Path;

use super::under_test::{Cores, UnderTest};
use super::{ConfigArgs, Failure};
use crate::emulators::engine::Engine;
use crate::emulators::faults::Fault;
use crate::emulators::visit::Record;
use crate::emulators::{Direction, Emulators, Settings, Vendor};

/// A server and the emulators that it takes for the vendors.
pub(super) struct Backed {
    pub(super) emulators: Emulators,
    /// `ws://host:port/ws`.
    pub(super) url: String,
    _server: UnderTest,
}

impl Backed {
    /// Starts both. Sound leaves as soon as it is there, unless the caller's settings say otherwise: what is measured
    /// is when it could leave.
    pub(super) async fn start(config: &ConfigArgs, cores: Option<&Cores>) -> Result<Self, Failure> {
        let settings = Settings::new(Engine::Scripted);
        let emulators = Emulators::start(settings).await.map_err(Failure::work)?;
        let arguments = arguments(config, &emulators);
        let start = || UnderTest::start(&arguments);
        let server = match cores {
            Some(cores) => cores.on_server_core(start).and_then(|started| started),
            None => start(),
        };
        let server = server.map_err(Failure::work)?;
        Ok(Self {
            emulators,
            url: format!("ws://{}/ws", server.address),
            _server: server,
        })
    }

    /// Sets the faults of connections that are opened from now on, each written as for `vivavoce emulate`.
    pub(super) fn set_faults(&self, faults: &[String]) -> Result<(), Failure> {
        let list = &self.emulators.emulation.faults;
        list.clear();
        for fault in faults {
            let fault: Fault = fault.parse().map_err(Failure::work)?;
            list.add(fault).map_err(Failure::work)?;
        }
        Ok(())
    }

    /// The record of a vendor's first connection since [`Self::forget`].
    pub(super) fn first(&self, vendor: Vendor, direction: Direction) -> Option<Record> {
        let records = self.emulators.emulation.log.all();
        let of_vendor = |record: &Record| {
            record.vendor == vendor.slug() && record.direction == direction.name()
        };
        records.into_iter().find(of_vendor)
    }

    /// Forgets what was recorded.
    pub(super) fn forget(&self) {
        self.emulators.emulation.log.clear();
    }
}

/// One worker, no cache, and the emulators for all vendors.
fn arguments(config: &ConfigArgs, emulators: &Emulators) -> Vec<String> {
    let first = "serve --host 127.0.0.1 --port 0 --data-dir data";
    let mut arguments: Vec<String> = first.split(' ').map(str::to_owned).collect();
    let mut settings: Vec<String> = [
        "server.workers=1",
        "providers.null.enabled=true",
        "cache.enabled=false",
        "log.level=error",
        "socket.pacing=false",
    ]
    .map(str::to_owned)
    .into();
    for vendor in Vendor::STREAMING {
        let slug = vendor.slug();
        let (address, key) = match vendor {
            Vendor::Google => (emulators.grpc, google_key(&emulators.google_account())),
            Vendor::Azure => (emulators.plain, "subscription_key=key".to_owned()),
            _ => (emulators.plain, "api_key=key".to_owned()),
        };
        settings.push(format!("providers.{slug}.stt_url=http://{address}"));
        settings.push(format!("providers.{slug}.tts_url=http://{address}"));
        settings.push(format!("providers.{slug}.{key}"));
    }
    let callers = config.set.iter();
    settings.extend(callers.map(|(key, value)| format!("{key}={value}")));
    for setting in settings {
        arguments.extend(["--set".to_owned(), setting]);
    }
    arguments
}

fn google_key(account: &Path) -> String {
    format!("credentials={}", account.display())
}
