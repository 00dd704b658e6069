//! The vendors' plugins of LiveKit's framework and of Pipecat, with their default models and voices, pointed at the emulators by nothing
//! but address and key. They are other people's clients: what they ask for is what the emulators have to answer.

use std::time::Duration;

use tokio::process::Command;

use super::{ended, scripted};
use crate::examples::{in_repository, installed};

/// Each plugin of a script gives up long before.
const PATIENCE: Duration = Duration::from_mins(8);

/// Runs a script of `tests/clients/plugins` in the environment of its framework, and shows what it said where it fails.
async fn passes(environment: &str, script: &str) {
    let python = installed(&format!(".clients/{environment}/bin/python"));
    let emulators = scripted(&[]).await;
    let mut command = Command::new(python);
    command
        .arg(in_repository(&format!("tests/clients/plugins/{script}")))
        .env("EMULATE_URL", format!("http://{}", emulators.plain))
        .env("EMULATE_TLS", emulators.tls.to_string())
        .env("EMULATE_GRPC", emulators.grpc.to_string())
        .env("GOOGLE_APPLICATION_CREDENTIALS", emulators.google_account())
        .env("SSL_CERT_FILE", emulators.ca_file());
    let output = ended(&mut command, script, PATIENCE).await;
    let said =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "{}", said.concat());
}

#[tokio::test(flavor = "multi_thread")]
async fn each_vendors_plugin_for_livekits_agents_runs_with_its_defaults() {
    passes("livekit-agents", "livekit_plugins.py").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_vendors_service_of_pipecat_runs_with_its_defaults() {
    passes("pipecat", "pipecat_services.py").await;
}
